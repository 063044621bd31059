package model

import "memplan/internal/estimator/graph"

// What transformers gives every causal language model: the attention
// functions, the mask, the cache, the loss.

// keyValueCache is a DynamicCache during training: it keeps the keys and
// values of every layer until the outputs die (transformers/cache_utils.py).
type keyValueCache struct{ tensors []*graph.Tensor }

// update appends to an empty cache, which concatenates: both are copied.
func (c *keyValueCache) update(f *graph.Frame, key, value *graph.Tensor) []*graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		k := f.Let("keys", f.Cat(-2, in[0]))
		v := f.Let("values", f.Cat(-2, in[1]))
		c.tensors = append(c.tensors, f.Keep(k), f.Keep(v))
		return []*graph.Tensor{k, v}
	}, key, value)
}

// attentionShape is what the attention function must know of the module.
type attentionShape struct {
	groups  int64
	dropout float64
}

// attentionFunc takes queries, keys, values and a mask and returns the output
// [batch, tokens, heads, width] and the weights, if it has them.
type attentionFunc func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor

// attentionInterface is ALL_ATTENTION_FUNCTIONS[config._attn_implementation].
func attentionInterface(b Build, s attentionShape) attentionFunc {
	return func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor {
		return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			out := f.Let("attn_output", f.FlashAttention(in[0], in[1], in[2]))
			return []*graph.Tensor{f.Contiguous(f.Transpose(out, 1, 2)), nil}
		}, query, key, value, mask)
	}
}

// causalMask is create_causal_mask.
func causalMask(f *graph.Frame, b Build, embeds, mask *graph.Tensor) *graph.Tensor { return nil }

// causalLMLoss is ForCausalLMLoss: logits in fp32, labels shifted by padding,
// and the sum over the labels divided by their number where a trainer passes it
// (transformers/loss/loss_utils.py).
func causalLMLoss(f *graph.Frame, b Batch, logits *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		loss := f.Let("loss", shiftedCrossEntropy(f, in...))
		switch {
		case b.NumItems != nil:
			loss = f.Let("loss", f.DivTensor(loss, b.NumItems))
		case b.Counted:
			loss = f.Let("loss", f.MulScalar(loss))
		}
		return one(loss)
	}, logits, b.Labels)[0]
}

func shiftedCrossEntropy(f *graph.Frame, in ...*graph.Tensor) *graph.Tensor {
	vocab := in[0].Shape.At(-1)
	var loss *graph.Tensor
	f.As(graph.Logits, func() {
		logits := f.Let("logits", f.To(in[0], graph.F32))
		labels := f.Let("labels", f.PadLast(in[1], 1))
		shifted := f.Let("shift_labels", f.Contiguous(f.Slice(labels, -1, 1, labels.Shape.At(-1))))
		logits = f.Let("logits", f.View(logits, -1, vocab))
		shifted = f.Let("shift_labels", f.View(shifted, -1))
		loss = f.CrossEntropy(logits, shifted)
	})
	return loss
}
