package model

import "memplan/internal/estimator/graph"

// t5Place says where an attention module stands.
type t5Place struct {
	decoder bool
	cross   bool // it attends to the encoder's states
	bias    bool // it has the table of the relative position bias
	block   *graph.Module
}

// t5Attention attends with a bias by position, which the first layer makes and
// the others are given. It takes states, the encoder's states for attention to
// them, and the bias or nil.
func t5Attention(r t5Config, b Build, s *seq2seq, at t5Place) *graph.Module {
	m := graph.NewModule("T5Attention")
	inner := r.heads * r.key
	query := m.Child("q", linear(b.DType, r.model, inner, false))
	key := m.Child("k", linear(b.DType, r.model, inner, false))
	value := m.Child("v", linear(b.DType, r.model, inner, false))
	output := m.Child("o", linear(b.DType, inner, r.model, false))
	var table *graph.Module
	if at.bias {
		table = m.Child("relative_attention_bias", embedding(b.DType, r.buckets, r.heads))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		heads := func(t *graph.Tensor) *graph.Tensor {
			return f.Transpose(f.View(t, t.Shape.D[0], t.Shape.D[1], r.heads, r.key), 1, 2)
		}
		states := in[0]
		if at.cross {
			states = in[1]
		}
		q := f.Let("query_states", heads(f.Call1(query, in[0])))
		k := f.Let("key_states", heads(f.Call1(key, states)))
		v := f.Let("value_states", heads(f.Call1(value, states)))
		if at.decoder {
			k, v = s.cache.update(f, "key_states", "value_states", k, v)
		}
		bias := in[2]
		if bias == nil {
			bias = f.Let("position_bias", t5Bias(f, r, q, k, at, table))
		}
		result := t5Attend(f, b, r, q, k, v, s.maskOf(at.decoder, at.cross), bias, at.decoder && !at.cross)
		out, weights := f.Let("attn_output", result[0]), f.Let("attn_weights", result[1])
		out = f.Let("attn_output", f.Contiguous(f.Reshape(out, out.Shape.D[0], out.Shape.D[1], -1)))
		return []*graph.Tensor{f.Let("attn_output", f.Call1(output, out)), bias, weights}
	}
	return m
}

// t5Bias is the position bias: looked up by distance, or zeros where the module
// has no table. Under checkpointing the zeros ask for a gradient.
func t5Bias(f *graph.Frame, r t5Config, q, k *graph.Tensor, at t5Place, table *graph.Module) *graph.Tensor {
	queries, keys := q.Shape.At(-2), k.Shape.At(-2)
	if table == nil {
		zeros := f.Empty(q.DType, 1, r.heads, queries, keys)
		if at.block.Recompute != graph.KeepAll {
			f.RequireGrad(zeros)
		}
		return zeros
	}
	return f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		context := f.Let("context_position", f.AddScalar(f.Unsqueeze(f.Arange(queries), 1)))
		memory := f.Let("memory_position", f.Unsqueeze(f.Arange(keys), 0))
		relative := f.Let("relative_position", f.Sub(memory, context))
		bucket := f.Let("relative_position_bucket", t5Bucket(f, relative, !at.decoder))
		values := f.Let("values", f.Call1(table, bucket))
		return one(f.Unsqueeze(f.Permute(values, 2, 0, 1), 0))
	})[0]
}

// t5Bucket is _relative_position_bucket.
func t5Bucket(f *graph.Frame, relative *graph.Tensor, bidirectional bool) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		position := in[0]
		var buckets *graph.Tensor
		if bidirectional {
			side := f.MulScalar(f.To(f.Compare(position, nil), graph.I64))
			buckets = f.Let("relative_buckets", f.AddScalar(side))
			position = f.Let("relative_position", f.Abs(position))
		} else {
			zeros := f.Empty(graph.I64, position.Shape.Slice()...)
			position = f.Let("relative_position", f.Neg(f.Minimum(position, zeros)))
		}
		small := f.Let("is_small", f.Compare(position, nil))
		scaled := f.MulScalar(f.MulScalar(f.Log(f.MulScalar(f.To(position, graph.F32)))))
		large := f.Let("relative_position_if_large", f.AddScalar(f.To(scaled, graph.I64)))
		full := f.Empty(graph.I64, large.Shape.Slice()...)
		large = f.Let("relative_position_if_large", f.Minimum(large, full))
		chosen := f.Where(small, position, large)
		if buckets == nil {
			return one(f.AddScalar(chosen))
		}
		return one(f.Let("relative_buckets", f.AddInPlace(buckets, chosen)))
	}, relative)[0]
}

// t5Attend is the attention function with a bias: added to the scores, or part
// of the mask that sdpa is given.
func t5Attend(f *graph.Frame, b Build, r t5Config, q, k, v, mask, bias *graph.Tensor, causal bool) []*graph.Tensor {
	fn := t5Eager(r)
	if b.Attention.Kernel != "eager" {
		fn = t5SDPA(b, r, causal)
	}
	return f.Func(fn, q, k, v, mask, bias)
}

// t5Eager is eager_attention_forward.
func t5Eager(r t5Config) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		query, key, value, mask, bias := in[0], in[1], in[2], in[3], in[4]
		weights := f.Let("attn_weights", f.MulScalar(f.Matmul(query, f.Transpose(key, 2, 3))))
		weights = f.Let("attn_weights", f.Add(weights, bias))
		if mask != nil {
			weights = f.Let("attn_weights", f.Add(weights, mask))
		}
		weights = f.Let("attn_weights", f.Softmax(weights, weights.DType))
		weights = f.Let("attn_weights", f.Dropout(weights, r.drop))
		output := f.Let("attn_output", f.Matmul(weights, value))
		output = f.Let("attn_output", f.Contiguous(f.Transpose(output, 1, 2)))
		return []*graph.Tensor{output, weights}
	}
}

// t5SDPA is sdpa_attention_forward, whose mask is made of bias and mask
// (create_position_bias_mask).
func t5SDPA(b Build, r t5Config, causal bool) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		query, key, value := in[0], in[1], in[2]
		mask := f.Let("attention_mask", f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			mask, bias := in[0], in[1]
			switch {
			case mask == nil && causal:
				rows, columns := f.Unsqueeze(f.Arange(query.Shape.At(-2)), 1), f.Unsqueeze(f.Arange(key.Shape.At(-2)), 0)
				triangle := f.Let("causal_mask", f.Compare(rows, columns))
				triangle = f.Let("causal_mask", f.View(triangle, 1, 1, triangle.Shape.D[0], triangle.Shape.D[1]))
				bias = f.Let("position_bias_mask", f.Where(triangle, bias, f.Empty(bias.DType)))
			case mask != nil:
				bias = f.Let("position_bias_mask", f.Where(mask, bias, f.Empty(bias.DType)))
			}
			return one(f.Contiguous(bias))
		}, in[3], in[4])[0])
		output := f.Let("attn_output", f.ScaledDotProductAttention(query, key, value, mask, graph.Attention{Dropout: r.drop, Backend: b.Attention.Backend}))
		return []*graph.Tensor{f.Contiguous(f.Transpose(output, 1, 2)), nil}
	}
}
