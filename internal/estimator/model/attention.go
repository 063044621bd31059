package model

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// attentionShape is what the attention function must know of the module.
type attentionShape struct {
	groups  int64
	dropout float64
	// positions gives the position ids where the module passes them on.
	positions func() *graph.Tensor
	// softcap says that eager scores are capped by a tanh.
	softcap bool
	// bidirectional says that without a mask every query sees every key.
	bidirectional bool
	// eager is the family's own eager_attention_forward.
	eager attentionFunc
}

// attentionFunc takes queries, keys, values and a mask and returns the output
// [batch, tokens, heads, width] and the weights, if it has them.
type attentionFunc func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor

// attentionInterface is ALL_ATTENTION_FUNCTIONS[config._attn_implementation].
func attentionInterface(b Build, s attentionShape) attentionFunc {
	var fn attentionFunc
	switch b.Attention.Kernel {
	case "eager":
		fn = s.eager
	case "flash":
		fn = flashAttention(b, s)
	default:
		fn = sdpaAttention(b, s)
	}
	return func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor {
		return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			return fn(f, in[0], in[1], in[2], in[3])
		}, query, key, value, mask)
	}
}

// groupedSince is when sdpa began to take grouped keys and values as they are,
// where there is no mask (transformers/integrations/sdpa_attention.py).
var groupedSince = spec.Version{4, 51}

// sdpaAttention is sdpa_attention_forward.
func sdpaAttention(b Build, s attentionShape) attentionFunc {
	return func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor {
		today := b.Versions.Transformers.AtLeast(groupedSince)
		grouped := today && s.groups > 1 && mask == nil && key.Shape.At(-1) <= 256
		if !grouped {
			key = f.Let("key", repeatKV(f, key, s.groups))
			value = f.Let("value", repeatKV(f, value, s.groups))
		}
		if !today { // works around a bug with masks in older kernels
			query = f.Let("query", f.Contiguous(query))
			key = f.Let("key", f.Contiguous(key))
			value = f.Let("value", f.Contiguous(value))
		}
		output := f.Let("attn_output", f.ScaledDotProductAttention(query, key, value, mask, graph.Attention{
			Dropout: s.dropout, Causal: mask == nil && !s.bidirectional, Grouped: grouped, Backend: b.Attention.Backend,
		}))
		return []*graph.Tensor{f.Contiguous(f.Transpose(output, 1, 2)), nil}
	}
}

// repeatKV repeats the heads of keys or values as often as queries have groups
// of them.
func repeatKV(f *graph.Frame, t *graph.Tensor, groups int64) *graph.Tensor {
	if groups == 1 {
		return t
	}
	s := t.Shape.D
	t = f.SliceWhole(f.Unsqueeze(f.SliceWhole(t, 2), 2), 2) // t[:, :, None, :, :]
	wide := f.Expand(t, s[0], s[1], groups, s[2], s[3])
	return f.Reshape(wide, s[0], s[1]*groups, s[2], s[3])
}

// flashAttention is flash_attention_forward without padding: the kernel of the
// flash-attn package, on tensors with tokens before heads. Queries that rotary
// embeddings or norms in fp32 left in that type are cast back: to autocast's
// type, else to the model's own.
func flashAttention(b Build, s attentionShape) attentionFunc {
	return func(f *graph.Frame, query, key, value, _ *graph.Tensor) []*graph.Tensor {
		to, on := f.Autocasting()
		if !on {
			to = b.DType
		}
		if query.DType == graph.F32 {
			query, key, value = f.Let("query_states", f.To(query, to)), f.Let("key_states", f.To(key, to)), f.Let("value_states", f.To(value, to))
		}
		if s.positions != nil {
			findRestarts(f, b, s.positions(), query.Shape.D[0])
		}
		output := f.FlashAttention(query, key, value, s.dropout)
		return []*graph.Tensor{f.Transpose(output, 1, 2), nil}
	}
}

// findRestarts looks at the position ids for packed sequences, in every layer
// (_is_packed_sequence of modeling_flash_attention_utils, and what stood in its
// place before).
func findRestarts(f *graph.Frame, b Build, positions *graph.Tensor, batch int64) {
	tokens := positions.Shape.At(-1)
	if b.Versions.Transformers.Before(maskingUtilsSince) {
		f.Drop(f.All(f.Compare(f.Empty(graph.I64, positions.Shape.D[0], tokens-1), nil)))
		return
	}
	if batch != 1 || tokens == 1 {
		return
	}
	f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		count := f.Arange(tokens)
		f.Drop(f.Empty(graph.I64)) // the smallest position
		increasing := f.Let("increasing_position_sequences", f.AddScalar(count))
		distance := f.Neg(f.Sub(increasing, positions)) // its absolute value
		f.Drop(f.To(f.SumAll(distance), graph.Bool))
		return nil
	})
}

// eagerAttention is the eager_attention_forward of the Llama family: softmax in
// fp32, and the weights are returned, so that the layer holds them.
func eagerAttention(s attentionShape) attentionFunc {
	return func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor {
		keys := f.Let("key_states", repeatKV(f, key, s.groups))
		values := f.Let("value_states", repeatKV(f, value, s.groups))
		weights := f.Let("attn_weights", f.MulScalar(f.Matmul(query, f.Transpose(keys, 2, 3))))
		if s.softcap {
			weights = f.Let("attn_weights", f.MulScalar(weights))
			weights = f.Let("attn_weights", f.Tanh(weights))
			weights = f.Let("attn_weights", f.MulScalar(weights))
		}
		if mask != nil {
			weights = f.Let("attn_weights", f.Add(weights, f.Slice(mask, 3, 0, keys.Shape.At(-2))))
		}
		weights = f.Let("attn_weights", f.To(f.Softmax(weights, graph.F32), query.DType))
		weights = f.Let("attn_weights", f.Dropout(weights, s.dropout))
		output := f.Let("attn_output", f.Matmul(weights, values))
		output = f.Let("attn_output", f.Contiguous(f.Transpose(output, 1, 2)))
		return []*graph.Tensor{output, weights}
	}
}
