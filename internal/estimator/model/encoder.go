package model

import (
	"strings"

	"memplan/internal/estimator/graph"
)

// What the encoders of the BERT kind share: their heads with the losses, and
// the mask that hides padding.

// encoderFamilies lists the encoders and encoder-decoders.
func encoderFamilies() []Family {
	return []Family{bertFamily, modernbertFamily, debertaFamily, distilbertFamily, albertFamily, t5Family, bartFamily, whisperFamily}
}

// The heads a transformers class name ends with.
const (
	maskedLM               = "ForMaskedLM"
	sequenceClassification = "ForSequenceClassification"
	questionAnswering      = "ForQuestionAnswering"
	tokenClassification    = "ForTokenClassification"
)

// Head is which head the config's architecture puts on a class, of those the
// program knows. A config that names no architecture gets the head of the job's
// objective.
func (c *Config) Head(b Build, class string, known ...string) string {
	named, _ := c.values["architectures"].([]any)
	if len(named) == 0 {
		if b.Objective == "classification" {
			return sequenceClassification
		}
		return known[0]
	}
	name, _ := named[0].(string)
	head := strings.TrimPrefix(name, class)
	for _, k := range known {
		if head == k {
			return head
		}
	}
	var all []string
	for _, k := range known {
		all = append(all, class+k)
	}
	c.fields.Add("model.config.architectures", name, "one of "+join(all), nearest(name, all))
	return known[0]
}

// Classes is the number of classes: the job's, or the config's. One class alone
// would be a regression, which has another loss.
func (c *Config) Classes(b Build) int64 {
	n := c.IntOr(2, "num_labels")
	if names, ok := c.values["id2label"].(map[string]any); ok && len(names) > 0 {
		n = int64(len(names))
	}
	if b.Classes > 0 {
		n = b.Classes
	}
	if n == 1 {
		c.fields.Add("model.config.num_labels", n, "at least 2 (regression is not modelled)", "2")
	}
	return n
}

// encoderHead puts a head on an encoder, whose call returns the hidden states
// and perhaps their pooled first token.
type encoderHead struct {
	base   *graph.Module
	batch  *Batch          // where the encoder looks the batch up
	steps  []*graph.Module // from hidden states to logits, one after the other
	pooled bool            // they start with the pooled token
	first  bool            // they start with the first token
	inline bool            // they are not a module of their own
	// loss gives the loss and the logits; nil is the one the head has.
	loss func(f *graph.Frame, b Batch, logits *graph.Tensor) []*graph.Tensor
}

// put makes the head with its loss the network's forward.
func (e encoderHead) put(net *Network, b Build, head string) {
	net.Items = Items{Aligned: true, Uncounted: b.Versions.Transformers.Before(maskingUtilsSince)}
	finish := meanCrossEntropy
	switch head {
	case sequenceClassification:
		net.Inputs = ClassInputs
	case questionAnswering:
		net.Inputs, finish = SpanInputs, spanLoss
	}
	if e.loss != nil {
		finish = e.loss
	}
	net.Forward = func(f *graph.Frame, b Batch) Outputs {
		*e.batch = b
		out := f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
			results := f.Call(e.base, b.Tensor(InputIDs), b.Tensor(AttentionMask))
			hidden := f.Let("sequence_output", results[0])
			if len(results) > 1 {
				if pooled := f.Let("pooler_output", results[1]); e.pooled {
					hidden = pooled
				}
			}
			if e.inline {
				return finish(f, b, e.logitsHere(f, hidden))
			}
			return finish(f, b, f.Let("logits", f.Func(e.logits, hidden)[0]))
		}, b.Tensors...)
		o := Outputs{Loss: f.Own(out[0]), Logits: f.Own(out[1])}
		for _, t := range out[2:] {
			o.Others = append(o.Others, f.Own(t))
		}
		return o
	}
}

// logits runs the head's modules under one name, as a module does.
func (e encoderHead) logits(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	x := e.start(f, in[0])
	for _, step := range e.steps {
		x = f.Let("x", f.Call1(step, x))
	}
	return one(x)
}

// logitsHere runs them in the model's own frame, where the name of the last
// one's input lives on.
func (e encoderHead) logitsHere(f *graph.Frame, hidden *graph.Tensor) *graph.Tensor {
	x, last := e.start(f, hidden), len(e.steps)-1
	for _, step := range e.steps[:last] {
		x = f.Let("pooled_output", f.Call1(step, x))
	}
	return f.Let("logits", f.Call1(e.steps[last], x))
}

// start is what the head begins with.
func (e encoderHead) start(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
	if !e.first {
		return x
	}
	x = f.Select(f.SliceWhole(x, 1), 1)
	if !e.inline {
		x = f.SliceWhole(x, 1) // written features[:, 0, :]
	}
	return f.Let("x", x)
}

// meanCrossEntropy is CrossEntropyLoss of all logits and labels. It returns the
// loss and the logits.
func meanCrossEntropy(f *graph.Frame, b Batch, logits *graph.Tensor) []*graph.Tensor {
	flat := f.View(logits, -1, logits.Shape.At(-1))
	return []*graph.Tensor{f.Let("loss", f.CrossEntropy(flat, f.View(b.Tensor(Labels), -1))), logits}
}

// maskedLMLoss is ForMaskedLMLoss: the logits in fp32, and the sum over the
// labels divided by their number where a trainer passes it
// (transformers/loss/loss_utils.py).
func maskedLMLoss(f *graph.Frame, b Batch, logits *graph.Tensor) []*graph.Tensor {
	loss := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		var loss *graph.Tensor
		f.As(graph.Logits, func() {
			wide := f.Let("logits", f.To(in[0], graph.F32))
			wide = f.Let("logits", f.View(wide, -1, in[0].Shape.At(-1)))
			labels := f.Let("labels", f.View(in[1], -1))
			loss = f.Let("loss", f.CrossEntropy(wide, labels))
		})
		return one(perItem(f, b, loss))
	}, logits, b.Tensor(Labels))[0]
	return []*graph.Tensor{f.Let("loss", loss), logits}
}

// spanLoss is the mean of the losses of where an answer starts and ends.
func spanLoss(f *graph.Frame, b Batch, logits *graph.Tensor) []*graph.Tensor {
	parts := f.Split(logits, 2, -1)
	starts, ends := f.Let("start_logits", parts[0]), f.Let("end_logits", parts[1])
	starts = f.Let("start_logits", f.Contiguous(f.Squeeze(starts, -1)))
	ends = f.Let("end_logits", f.Contiguous(f.Squeeze(ends, -1)))
	from := f.Let("start_positions", f.Clamp(b.Tensor("start_positions")))
	to := f.Let("end_positions", f.Clamp(b.Tensor("end_positions")))
	startLoss := f.Let("start_loss", f.CrossEntropy(starts, from))
	endLoss := f.Let("end_loss", f.CrossEntropy(ends, to))
	return []*graph.Tensor{f.Let("total_loss", f.MulScalar(f.Add(startLoss, endLoss))), starts, ends}
}

// encoderMask builds the mask that hides padding from every query.
type encoderMask struct {
	padding int64 // the padding token's id, -1 for none
}

// build is create_bidirectional_mask, or what models did before it. The result
// is a temporary, or nil.
func (e encoderMask) build(f *graph.Frame, b Build, ids, embeds, mask *graph.Tensor, padded bool) *graph.Tensor {
	in := maskInputs{embeds: embeds, attention: mask, padded: padded, bidirectional: true}
	if b.Versions.Transformers.AtLeast(maskingUtilsSince) {
		return createBidirectionalMask(f, b, in)
	}
	if mask == nil {
		in.attention = f.Let("ones", f.Empty(graph.F32, ids.Shape.D[0], ids.Shape.D[1]))
	}
	if b.Attention.Kernel == "sdpa" {
		if ignoredBySDPA(f, in) {
			return nil
		}
		return expandPadding(f, in)
	}
	return extendedMask(f, b, in)
}

// warn is warn_if_padding_and_no_attention_mask, before transformers 5: it looks
// for the padding token at both ends of each row.
func (e encoderMask) warn(f *graph.Frame, b Build, ids, mask *graph.Tensor) {
	if b.Versions.Transformers.Before(maskingUtilsSince) {
		e.look(f, ids, mask)
	}
}

// look is the same in the models that still do it.
func (e encoderMask) look(f *graph.Frame, ids, mask *graph.Tensor) {
	if e.padding < 0 || mask != nil {
		return
	}
	ends := f.Let("ends", f.IndexLast(ids, 2))
	if e.padding > 0 { // the ids are taken to be zeros
		f.Drop(f.Any(f.Compare(ends, nil)))
	}
	f.Del("ends")
}

// createBidirectionalMask is create_bidirectional_mask of masking_utils, or
// create_bidirectional_sliding_window_mask: nothing where no token is hidden.
func createBidirectionalMask(f *graph.Frame, b Build, in maskInputs) *graph.Tensor {
	return f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		padding := in.attention
		if padding != nil {
			padding = f.Let("attention_mask", f.To(padding, graph.Bool))
			f.Drop(f.All(padding))
		}
		if !(in.padded || in.windowed()) || b.Attention.Kernel == "flash" {
			return one(nil)
		}
		allowed := booleanMask(f, in, padding)
		if b.Attention.Kernel != "eager" {
			return one(allowed)
		}
		return one(f.Choose(f.Let("mask", allowed), in.embeds.DType))
	})[0]
}

// extendedMask is get_extended_attention_mask: one row of an additive mask for
// all queries.
func extendedMask(f *graph.Frame, b Build, in maskInputs) *graph.Tensor {
	return f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in.attention.Shape.D[0], in.attention.Shape.D[1]
		extended := f.Let("extended", f.View(in.attention, batch, 1, 1, tokens))
		extended = f.Let("extended", f.To(extended, b.DType))
		return one(f.MulScalar(f.AddScalar(extended)))
	})[0]
}

// encoderAttention is the attention function of the BERT kind: without a
// family's own eager function it is theirs.
func encoderAttention(b Build, s attentionShape) attentionFunc {
	s.bidirectional = true
	if b.Versions.Transformers.AtLeast(maskingUtilsSince) {
		if s.eager == nil {
			s.eager = bertEagerAttention(s)
		}
		return attentionInterface(b, s)
	}
	fn := bertAttentionBefore5(s)
	if b.Attention.Kernel != "eager" {
		fn = plainSDPA(b, s)
	}
	return func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor {
		return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			return fn(f, in[0], in[1], in[2], in[3])
		}, query, key, value, mask)
	}
}

// plainSDPA is scaled_dot_product_attention as modules called it themselves.
func plainSDPA(b Build, s attentionShape) attentionFunc {
	return func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor {
		output := f.ScaledDotProductAttention(query, key, value, mask, graph.Attention{Dropout: s.dropout, Backend: b.Attention.Backend})
		return []*graph.Tensor{f.Transpose(output, 1, 2), nil}
	}
}

// bertAttentionBefore5 is BertSelfAttention without its projections: scores and
// probabilities have names of their own, and nothing but the context is
// returned.
func bertAttentionBefore5(s attentionShape) attentionFunc {
	return func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor {
		scores := f.Let("attention_scores", f.Matmul(query, f.Transpose(key, -1, -2)))
		scores = f.Let("attention_scores", f.MulScalar(scores))
		if mask != nil {
			scores = f.Let("attention_scores", f.Add(scores, mask))
		}
		probs := f.Let("attention_probs", f.Softmax(scores, scores.DType))
		probs = f.Let("attention_probs", f.Dropout(probs, s.dropout))
		context := f.Let("context_layer", f.Matmul(probs, value))
		context = f.Let("context_layer", f.Contiguous(f.Transpose(context, 1, 2)))
		return []*graph.Tensor{context, nil}
	}
}

// bertEagerAttention is BERT's eager_attention_forward: softmax in the type of
// the scores.
func bertEagerAttention(s attentionShape) attentionFunc {
	return func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor {
		weights := f.Let("attn_weights", f.MulScalar(f.Matmul(query, f.Transpose(key, 2, 3))))
		if mask != nil {
			weights = f.Let("attn_weights", f.Add(weights, mask))
		}
		weights = f.Let("attn_weights", f.Softmax(weights, weights.DType))
		weights = f.Let("attn_weights", f.Dropout(weights, s.dropout))
		output := f.Let("attn_output", f.Matmul(weights, value))
		output = f.Let("attn_output", f.Contiguous(f.Transpose(output, 1, 2)))
		return []*graph.Tensor{output, weights}
	}
}
