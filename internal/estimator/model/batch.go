package model

import "memplan/internal/estimator/graph"

// Names of the tensors that most batches have.
const (
	InputIDs      = "input_ids"
	AttentionMask = "attention_mask"
	Labels        = "labels"
)

// Input is a tensor of a batch: an argument of the model's forward.
type Input struct {
	Name  string
	DType graph.DType
	Shape graph.Dims
}

// Sizes are what a job says of its batches.
type Sizes struct {
	Batch         int64 // samples
	Tokens        int64 // of a sample; audio: samples of sound or frames of the spectrogram
	DecoderTokens int64 // labels of an encoder-decoder
	Masked        bool  // an attention mask is passed
	Continuous    graph.DType
	Height, Width int64 // of an image
	Channels      int64 // of an image, 0 is three
	Frames        int64 // of a video
	// Latent is the shape of a latent image: channels, frames of a video, height,
	// width. Empty is what a VAE makes of the image.
	Latent        []int64
	ImageIsLatent bool  // Height and Width are the latent image's
	LatentTokens  int64 // of a latent image that comes in patches; 0 is by its shape
	TextTokens    int64 // of the text a latent image is conditioned on; 0 is the family's own
}

// tokens are the ids and, if there is one, the mask.
func (s Sizes) tokens() []Input {
	in := []Input{{InputIDs, graph.I64, graph.D(s.Batch, s.Tokens)}}
	if s.Masked {
		in = append(in, Input{AttentionMask, graph.I64, graph.D(s.Batch, s.Tokens)})
	}
	return in
}

// TokenInputs are ids, perhaps a mask, and a label for every token.
func TokenInputs(s Sizes) []Input {
	return append(s.tokens(), Input{Labels, graph.I64, graph.D(s.Batch, s.Tokens)})
}

// ClassInputs are ids, perhaps a mask, and a class for every sample.
func ClassInputs(s Sizes) []Input {
	return append(s.tokens(), Input{Labels, graph.I64, graph.D(s.Batch)})
}

// SpanInputs are ids, perhaps a mask, and where each answer starts and ends.
func SpanInputs(s Sizes) []Input {
	return append(s.tokens(), Input{"start_positions", graph.I64, graph.D(s.Batch)}, Input{"end_positions", graph.I64, graph.D(s.Batch)})
}

// Items says how a model takes its loss, and how the Trainer counts what that is
// divided by.
type Items struct {
	// Uncounted says that the model's forward takes no further keywords: the
	// Trainer does not pass it a count, and divides the loss by the number of
	// micro batches itself.
	Uncounted bool
	// Aligned says that the labels are not shifted against the tokens: all of
	// them count.
	Aligned bool
	// LossUpcast is the type the loss is taken in, as training.loss.upcast names
	// it: fp32, or none for that of the logits; empty where nothing is to tell.
	LossUpcast string
	// ShiftCopies says that the logits are copied to shift them.
	ShiftCopies bool
}

// Batch is the tensors of one micro batch, on the card.
type Batch struct {
	Inputs  []Input
	Tensors []*graph.Tensor // one for each input
	Padded  bool            // the mask hides some tokens
	// Counted says that the trainer passes the number of labels it counted,
	// by which the summed loss is divided: NumItems, or a Python number when
	// that is nil.
	Counted  bool
	NumItems *graph.Tensor
}

// Tensor is the input of that name, nil where the batch has none.
func (b Batch) Tensor(name string) *graph.Tensor {
	for i, in := range b.Inputs {
		if in.Name == name {
			return b.Tensors[i]
		}
	}
	return nil
}

// Hold takes references to the batch's tensors, given back with Release.
func (b Batch) Hold(f *graph.Frame) Batch {
	held := make([]*graph.Tensor, len(b.Tensors))
	for i, t := range b.Tensors {
		held[i] = f.Keep(t)
	}
	b.Tensors = held
	return b
}

// Release gives back what Hold took.
func (b *Batch) Release(f *graph.Frame) {
	for _, t := range b.Tensors {
		f.Forget(t)
	}
	*b = Batch{}
}
