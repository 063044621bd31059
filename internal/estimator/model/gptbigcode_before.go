package model

import "memplan/internal/estimator/graph"

// GPT-BigCode before it took to transformers' interfaces: positions counted
// from the mask, a mask cut out of a buffer, attention classes of its own, and
// a cache that keeps keys and values as one view of the product they are part
// of (transformers 4.49).

// bigCodeBefore is the older model's forward.
func bigCodeBefore(m *placedDecoder, g bigCodeConfig, b Build) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	bias := m.Buffers[0]
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		tokens := in[0].Shape.D[1]
		var positions *graph.Tensor
		if in[1] == nil {
			positions = f.Let("position_ids", f.Unsqueeze(f.Arange(tokens), 0))
		} else {
			positions = f.Let("position_ids", f.AddScalar(f.Cumsum(in[1])))
			f.Drop(f.Compare(in[1], nil)) // masked_fill_
		}
		triangle := f.Let("self_attention_mask", f.Unsqueeze(f.Slice(f.Slice(bias.T(), 0, 0, tokens), 1, 0, tokens), 0))
		m.ctx.mask = f.Let("attention_mask", bigCodeMask(f, g, b, triangle, in[1]))
		embeds := f.Let("inputs_embeds", f.Call1(m.wte, in[0]))
		places := f.Let("position_embeds", f.Call1(m.wpe, positions))
		hidden := f.Let("hidden_states", f.Add(embeds, places))
		hidden = f.Let("hidden_states", f.Call1(m.drop, hidden))
		for block := range f.Layers(m.blocks) {
			outputs := f.Call(block, hidden)
			present := f.Let("outputs[1]", outputs[1])
			hidden = f.Let("hidden_states", f.Let("outputs[0]", outputs[0]))
			if present != nil {
				m.ctx.cache.tensors = append(m.ctx.cache.tensors, f.Keep(present))
			}
		}
		return one(f.Let("hidden_states", f.Call1(m.lnF, hidden)))
	}
}

// bigCodeMask is the mask of the blocks: none for flash, booleans for eager, an
// additive one for sdpa.
func bigCodeMask(f *graph.Frame, g bigCodeConfig, b Build, triangle, present *graph.Tensor) *graph.Tensor {
	if b.Attention.Kernel == "flash" {
		if present != nil {
			f.Drop(f.All(f.Compare(present, nil)))
		}
		return nil
	}
	mask := triangle
	if present != nil {
		shown := f.To(f.View(present, present.Shape.D[0], 1, -1), graph.Bool)
		mask = f.Let("self_attention_mask", f.And(mask, shown))
	}
	heads := 1
	if g.kvHeads == 1 {
		heads = 2
	}
	mask = f.Let("self_attention_mask", f.Unsqueeze(mask, heads))
	if b.Attention.Kernel == "eager" {
		return mask
	}
	mask = f.Let("self_attention_mask", f.Choose(mask, b.DType))
	if g.kvHeads == 1 {
		mask = f.Let("self_attention_mask", f.Transpose(mask, 1, 2))
	}
	if present != nil {
		mask = f.Let("self_attention_mask", unmaskUnattended(f, mask))
	}
	return mask
}

// bigCodeAttentionBefore cuts queries off the product, then keys and values. Its
// second result is what the cache keeps, under checkpointing too.
func bigCodeAttentionBefore(g bigCodeConfig, b Build, ctx *decoderContext) *graph.Module {
	m := graph.NewModule("GPTBigCodeAttention")
	width := g.hidden / g.heads
	cAttn := m.Child("c_attn", linear(b.DType, g.hidden, g.hidden+2*g.kvHeads*width, true))
	cProj := m.Child("c_proj", linear(b.DType, g.hidden, g.hidden, true))
	drop := m.Child("resid_dropout", dropout(g.residual))
	attend := bigCodeAttend(g, b)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		states := f.Call1(cAttn, in[0])
		var parts []*graph.Tensor
		if g.kvHeads == 1 {
			parts = f.SplitSizes(states, 2, g.hidden, 2*width)
		} else {
			parts = f.SplitSizes(f.Transpose(f.View(states, batch, tokens, g.heads, 3*width), 1, 2), 3, width, 2*width)
		}
		query, both := f.Let("query", parts[0]), f.Let("key_value", parts[1])
		var present *graph.Tensor
		if ctx.cache != nil {
			present = f.Let("present", both)
		}
		halves := f.SplitSizes(both, int(both.Shape.N)-1, width, width)
		key, value := f.Let("key", halves[0]), f.Let("value", halves[1])
		output := f.Let("attn_output", f.Func(attend, query, key, value, ctx.mask)[0])
		output = f.Let("attn_output", f.Reshape(output, batch, tokens, g.hidden))
		if b.Attention.Kernel == "flash" {
			f.Let("attn_weights_reshaped", output)
		}
		output = f.Let("attn_output", f.Call1(cProj, output))
		return []*graph.Tensor{f.Let("attn_output", f.Call1(drop, output)), present}
	}
	return m
}

// bigCodeAttend is _attn of the class for the kernel: it takes queries
// [batch, tokens, hidden] and keys and values [batch, tokens, width], or all
// with heads first where every head has its own.
func bigCodeAttend(g bigCodeConfig, b Build) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	width, shared := g.hidden/g.heads, g.kvHeads == 1
	var least *graph.Tensor // mask_value, which the module keeps
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		query, key, value, mask := in[0], in[1], in[2], in[3]
		batch := query.Shape.D[0]
		switch b.Attention.Kernel {
		case "eager":
			return one(bigCodeScores(f, g, &least, query, key, value, mask))
		case "flash":
			if shared {
				query = f.Let("query", f.Transpose(f.View(query, batch, -1, g.heads, width), 1, 2))
				key, value = f.Let("key", f.Unsqueeze(key, 1)), f.Let("value", f.Unsqueeze(value, 1))
			}
			return one(f.Transpose(f.FlashAttention(query, key, value, g.attention), 1, 2))
		}
		if shared {
			query = f.Let("query", f.Transpose(f.View(query, batch, -1, g.heads, width), 1, 2))
			key = f.Let("key", f.Expand(f.Unsqueeze(key, 1), batch, g.heads, -1, width))
			value = f.Let("value", f.Expand(f.Unsqueeze(value, 1), batch, g.heads, -1, width))
		} else {
			query = f.Let("query", f.Contiguous(query))
			key, value = f.Let("key", f.Contiguous(key)), f.Let("value", f.Contiguous(value))
		}
		result := f.Let("sdpa_result", f.ScaledDotProductAttention(query, key, value, mask, graph.Attention{
			Dropout: g.attention, Causal: mask == nil, Backend: b.Attention.Backend,
		}))
		return one(f.Let("sdpa_result", f.Transpose(result, 1, 2)))
	}
}

// bigCodeScores is the eager way: one batched product over the queries of all
// heads, written over an empty tensor, and softmax in fp32.
func bigCodeScores(f *graph.Frame, g bigCodeConfig, least **graph.Tensor, query, key, value, mask *graph.Tensor) *graph.Tensor {
	width, shared := g.hidden/g.heads, g.kvHeads == 1
	batch, dtype, shape := query.Shape.D[0], query.DType, query.Shape
	turned := f.Transpose(key, -1, -2)
	keys := turned.Shape.At(-1)
	view, four := []int64{batch, shape.D[1] * g.heads, keys}, []int64{batch, shape.D[1], g.heads, keys}
	if shared {
		query = f.Let("query", f.Reshape(query, batch, -1, width))
		key = f.Let("key", turned)
	} else {
		view, four = []int64{batch * g.heads, shape.D[2], keys}, []int64{batch, g.heads, shape.D[2], keys}
		query = f.Let("query", f.Reshape(query, batch*g.heads, -1, width))
		key = f.Let("key", f.Reshape(turned, batch*g.heads, width, keys))
	}
	weights := f.Let("attn_weights", f.Empty(dtype, view...))
	weights = f.Let("attn_weights", f.View(f.Baddbmm(weights, query, key), four...))
	if *least == nil {
		*least = f.Own(f.Empty(graph.F32))
	}
	weights = f.Let("attn_weights", bigCodeSoftmax(f, weights, mask, *least, dtype))
	weights = f.Let("attn_weights", f.Dropout(weights, g.attention))
	if shared {
		return f.View(f.Matmul(f.View(weights, view...), value), shape.Slice()...)
	}
	return f.Transpose(f.Matmul(weights, value), 1, 2)
}

// bigCodeSoftmax masks and normalises in fp32 and comes back to type d: the
// scripted upcast_masked_softmax, as it runs before TorchScript fuses it.
func bigCodeSoftmax(f *graph.Frame, weights, mask, least *graph.Tensor, d graph.DType) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		if d != graph.F32 {
			x = f.MulScalar(f.To(x, graph.F32))
		}
		return one(f.To(f.Softmax(f.Where(mask, x, least), graph.F32), d))
	}, weights)[0]
}
