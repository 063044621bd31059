package model

import "memplan/internal/estimator/graph"

// What encoder-decoders share: the batch, the shifted labels, masks and cache
// of the decoder, and the loss.

const conditionalGeneration = "ForConditionalGeneration"

// seq2seq is an encoder-decoder with a language modelling head.
type seq2seq struct {
	build            Build
	encoder, decoder *graph.Module
	// shift makes the decoder's ids of the labels.
	shift func(f *graph.Frame, labels *graph.Tensor) *graph.Tensor
	// shiftFirst says that it does so before the encoder runs.
	shiftFirst bool
	// onesMask says that the decoder makes itself a mask of ones.
	onesMask bool
	// head makes logits of the decoder's states.
	head func(f *graph.Frame, hidden *graph.Tensor) *graph.Tensor

	batch                               Batch
	encoderMask, decoderMask, crossMask *graph.Tensor
	cache                               *keyValueCache
}

// seq2seqInputs are ids, perhaps a mask, and the labels the decoder learns.
func seq2seqInputs(s Sizes) []Input {
	n := s.DecoderTokens
	if n == 0 {
		n = s.Tokens
	}
	return append(s.tokens(), Input{Labels, graph.I64, graph.D(s.Batch, n)})
}

// network makes a Network of the model under root.
func (s *seq2seq) network(root *graph.Module) *Network {
	root.Named("")
	return &Network{
		Root: root, Inputs: seq2seqInputs, Forward: s.run,
		Items: Items{Aligned: true, Uncounted: s.build.Versions.Transformers.Before(maskingUtilsSince)},
	}
}

// run is the model's forward with labels.
func (s *seq2seq) run(f *graph.Frame, b Batch) Outputs {
	s.batch, s.cache = b, nil
	if s.build.UseCache {
		s.cache = &keyValueCache{copies: s.build.Versions.Transformers.AtLeast(copyingCacheSince)}
	}
	out := f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		mask := b.Tensor(AttentionMask)
		var ids *graph.Tensor
		shift := func() { ids = f.Let("decoder_input_ids", s.shift(f, b.Tensor(Labels))) }
		if s.shiftFirst {
			shift()
		}
		encoded := f.Let("hidden_states", f.Call1(s.encoder, b.Tensors[0], mask, nil))
		if !s.shiftFirst {
			shift()
		}
		decoded := f.Let("sequence_output", f.Call1(s.decoder, ids, mask, encoded))
		f.Let("decoder_outputs", decoded)
		logits := s.head(f, decoded)
		loss := meanCrossEntropy(f, b, logits)
		return append(loss, encoded)
	}, b.Tensors...)
	o := Outputs{Loss: f.Own(out[0]), Logits: f.Own(out[1]), Others: []*graph.Tensor{f.Own(out[2])}}
	if s.cache != nil {
		o.Cache = s.cache.tensors
	}
	return o
}

// shiftRightZeros is _shift_right of T5: zeros, the labels but for the last
// copied behind the first.
func shiftRightZeros(f *graph.Frame, labels *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := labels.Shape.D[0], labels.Shape.D[1]
		shifted := f.Let("shifted_input_ids", f.Empty(graph.I64, batch, tokens))
		f.Drop(f.Empty(graph.I64, batch, tokens-1)) // input_ids[..., :-1].clone()
		f.Drop(f.Compare(shifted, nil))
		return one(shifted)
	})[0]
}

// makeMasks builds the masks of the encoder, or of the decoder, whose own is
// causal and whose other one hides the encoder's padding.
func (s *seq2seq) makeMasks(f *graph.Frame, embeds, mask *graph.Tensor, decoder bool) {
	in := maskInputs{embeds: embeds, attention: mask, padded: s.batch.Padded, bidirectional: true}
	if !decoder {
		s.encoderMask = f.Let("attention_mask", createBidirectionalMask(f, s.build, in))
		return
	}
	own := maskInputs{embeds: embeds}
	if s.onesMask {
		own.attention = f.Let("attention_mask", f.Empty(graph.F32, embeds.Shape.D[0], embeds.Shape.D[1]))
	}
	s.decoderMask = f.Let("attention_mask", createCausalMask(f, s.build, own))
	s.crossMask = f.Let("encoder_extended_attention_mask", createBidirectionalMask(f, s.build, in))
}

// masksOf are the masks a layer is called with.
func (s *seq2seq) masksOf(decoder bool) []*graph.Tensor {
	if decoder {
		return []*graph.Tensor{s.decoderMask, s.crossMask}
	}
	return []*graph.Tensor{s.encoderMask}
}

// maskOf is the mask of an attention.
func (s *seq2seq) maskOf(decoder, cross bool) *graph.Tensor {
	switch {
	case cross:
		return s.crossMask
	case decoder:
		return s.decoderMask
	}
	return s.encoderMask
}
