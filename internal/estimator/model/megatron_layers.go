package model

import "memplan/internal/estimator/graph"

// The modules of a layer of Megatron-core's GPTModel
// (megatron/core/transformer/ @core_v0.16.1).

// parallelLinear is how the model's linear layers multiply.
func (g *gptModel) parallelLinear(gathers int64) graph.ParallelLinear {
	return graph.ParallelLinear{Gathers: gathers, Fused: g.b.Ranks.FusedAccumulation, Buffer: &g.buffer}
}

// column is ColumnParallelLinear: each rank has some of the columns of the
// result.
func (g *gptModel) column(in, out int64, bias bool) *graph.Module {
	r := g.b.Ranks
	m := graph.NewModule("ColumnParallelLinear")
	weight := m.Param("weight", g.b.DType, out/r.Tensor, in)
	var b *graph.Param
	if bias {
		b = m.Param("bias", g.b.DType, out/r.Tensor)
	}
	product := g.parallelLinear(r.sequence())
	m.Forward = func(f *graph.Frame, x ...*graph.Tensor) []*graph.Tensor {
		if b == nil {
			return one(f.ParallelLinear(product, x[0], weight.T(), nil))
		}
		return one(f.ParallelLinear(product, x[0], weight.T(), b.T()))
	}
	return m
}

// skipsBias makes a layer leave its bias to what comes after it.
func (g *gptModel) skipsBias(m *graph.Module) {
	weight := m.Params[0]
	product := g.parallelLinear(g.b.Ranks.sequence())
	m.Forward = func(f *graph.Frame, x ...*graph.Tensor) []*graph.Tensor {
		return one(f.ParallelLinear(product, x[0], weight.T(), nil))
	}
}

// row is RowParallelLinear: each rank has a share of every number of the
// result, which are summed. Its bias is left to what comes after it.
func (g *gptModel) row(in, out int64, bias bool) *graph.Module {
	r := g.b.Ranks
	m := graph.NewModule("RowParallelLinear")
	weight := m.Param("weight", g.b.DType, out, in/r.Tensor)
	if bias {
		m.Param("bias", g.b.DType, out)
	}
	product := g.parallelLinear(1)
	m.Forward = func(f *graph.Frame, x ...*graph.Tensor) []*graph.Tensor {
		out := f.Let("output_parallel", f.ParallelLinear(product, x[0], weight.T(), nil))
		switch {
		case r.Tensor == 1:
			return one(out)
		case r.Sequence:
			return one(f.ReduceScatter(out, r.Tensor))
		}
		return one(f.SumRanks(out))
	}
	return m
}

// norm is WrappedTorchNorm. It is made in fp32 and cast with the model.
func (g *gptModel) norm(width int64) *graph.Module {
	if !g.c.rms {
		return layerNorm(graph.F32, width)
	}
	m := graph.NewModule("RMSNorm")
	weight := m.Param("weight", graph.F32, width)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.RMSNorm(in[0], weight.T()))
	}
	return m
}

// layer is TransformerLayer.
func (g *gptModel) layer() *graph.Module {
	m := graph.NewModule("TransformerLayer")
	inputNorm := m.Child("input_layernorm", g.norm(g.c.hidden))
	attention, proj := g.attention()
	m.Child("self_attention", attention)
	mlpNorm := m.Child("pre_mlp_layernorm", g.norm(g.c.hidden))
	mlp, fc2 := g.mlp()
	m.Child("mlp", mlp)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			normed := f.Let("input_layernorm_output", f.Call1(inputNorm, in[0]))
			attended := f.Let("attention_output", f.Call1(attention, normed))
			return one(f.Let("hidden_states", g.biasDropoutAdd(f, attended, proj, in[0])))
		}, in[0])[0])
		return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			normed := f.Let("pre_mlp_layernorm_output", f.Call1(mlpNorm, in[0]))
			output := f.Let("mlp_output", f.Call1(mlp, normed))
			return one(f.Let("hidden_states", g.biasDropoutAdd(f, output, fc2, in[0])))
		}, hidden)
	}
	return m
}

// biasDropoutAdd is _bias_dropout_add_func, not fused: the bias that a layer
// left, dropout, the residual.
func (g *gptModel) biasDropoutAdd(f *graph.Frame, x *graph.Tensor, layer *graph.Module, residual *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", in[0])
		if len(layer.Params) > 1 {
			x = f.Let("x", f.Add(x, layer.Params[1].T()))
		}
		out := f.Let("out", f.Dropout(x, g.c.hiddenDropout))
		return one(f.Let("out", f.Add(in[1], out)))
	}, x, residual)[0]
}

// attention is SelfAttention and its last projection.
func (g *gptModel) attention() (attention, proj *graph.Module) {
	c, r := g.c, g.b.Ranks
	heads, groups := c.heads/r.Tensor, c.groups/r.Tensor
	m := graph.NewModule("SelfAttention")
	core := m.Child("core_attention", g.coreAttention(heads, groups))
	core.Beside = func() (args, bound []*graph.Tensor) { return []*graph.Tensor{g.mask}, nil }
	proj = m.Child("linear_proj", g.row(c.heads*c.headDim, c.hidden, c.bias))
	qkv := m.Child("linear_qkv", g.column(c.hidden, (c.heads+2*c.groups)*c.headDim, c.qkvBias))
	each := heads / groups * c.headDim
	var queryNorm, keyNorm *graph.Module
	if c.qkNorm {
		queryNorm, keyNorm = m.Child("q_layernorm", g.norm(c.headDim)), m.Child("k_layernorm", g.norm(c.headDim))
	}
	project := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		mixed := f.Let("mixed_qkv", f.Call1(qkv, in[0]))
		tokens, batch := mixed.Shape.D[0], mixed.Shape.D[1]
		mixed = f.Let("mixed_qkv", f.View(mixed, tokens, batch, groups, each+2*c.headDim))
		parts := f.SplitSizes(mixed, -1, each, c.headDim, c.headDim)
		query, key, value := f.Let("query", parts[0]), f.Let("key", parts[1]), f.Let("value", parts[2])
		query = f.Let("query", f.Reshape(query, tokens, batch, heads, c.headDim))
		if c.qkNorm {
			query = f.Let("query", f.Call1(queryNorm, query))
			key = f.Let("key", f.Call1(keyNorm, key))
		}
		return []*graph.Tensor{query, key, value}
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		output := f.Func(project, in[0])
		f.Let("qkv_output[0]", output[0])
		f.Let("qkv_output[1]", output[1])
		f.Let("qkv_output[2]", output[2])
		query, key, value := f.Let("query", output[0]), f.Let("key", output[1]), f.Let("value", output[2])
		if c.rope {
			query = f.Let("query", f.Func(g.rotate, query, g.rotary)[0])
			key = f.Let("key", f.Func(g.rotate, key, g.rotary)[0])
		}
		var context *graph.Tensor
		if r.RecomputeCore {
			context = f.CheckpointFunc(true, core, core.Forward, query, key, value)[0]
		} else {
			context = f.Call1(core, query, key, value)
		}
		context = f.Let("core_attn_out", context)
		return one(f.Let("output", f.Call1(proj, context)))
	}
	return m, proj
}

// rotate is _apply_rotary_pos_emb_bshd of x and the angles.
func (g *gptModel) rotate(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	t, freqs := in[0], in[1]
	width := freqs.Shape.At(-1)
	pass := f.Let("t_pass", f.Slice(t, -1, width, t.Shape.At(-1))) // often of no width, and part of the graph all the same
	if width < t.Shape.At(-1) {                                    // indexing all of a tensor gives it back
		t = f.Slice(t, -1, 0, width)
	}
	t = f.Let("t", t)
	cos := f.Let("cos_", f.To(f.MulScalar(f.Cos(freqs)), t.DType))
	sin := f.Let("sin_", f.To(f.MulScalar(f.Sin(freqs)), t.DType))
	t = f.Let("t", f.Add(f.Mul(t, cos), f.Mul(f.Func(rotateHalfOf, t)[0], sin)))
	return one(f.Cat(-1, t, pass))
}

// rotateHalfOf is _rotate_half.
func rotateHalfOf(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	halves := f.Split(in[0], 2, -1)
	x1, x2 := f.Let("x1", halves[0]), f.Let("x2", halves[1])
	return one(f.Cat(-1, f.Neg(x2), x1))
}

// coreAttention is DotProductAttention, of queries, keys and values of shape
// [tokens, batch, heads, width].
func (g *gptModel) coreAttention(heads, groups int64) *graph.Module {
	m := graph.NewModule("DotProductAttention")
	spread := func(f *graph.Frame, t *graph.Tensor) *graph.Tensor { // repeat_interleave
		s := t.Shape
		wide := f.Expand(f.Unsqueeze(t, 3), s.D[0], s.D[1], groups, heads/groups, s.D[3])
		return f.View(f.Contiguous(wide), s.D[0], s.D[1], heads, s.D[3])
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		query, key, value := f.Let("query", in[0]), f.Let("key", in[1]), f.Let("value", in[2])
		if heads > groups {
			key = f.Let("key", spread(f, key))
			value = f.Let("value", spread(f, value))
		}
		tokens, batch, width := query.Shape.D[0], query.Shape.D[1], query.Shape.D[3]
		query = f.Let("query", f.Reshape(query, tokens, batch*heads, width))
		key = f.Let("key", f.Reshape(key, tokens, batch*heads, width))
		buffer := g.buffer.Take(f.Machine, query.DType, graph.D(batch*heads, tokens, tokens))
		result := f.Let("matmul_result", f.Baddbmm(buffer, f.Transpose(query, 0, 1), f.Transpose(f.Transpose(key, 0, 1), 1, 2)))
		scores := f.Let("attention_scores", f.View(result, batch, heads, tokens, tokens))
		probs := f.Let("attention_probs", f.Func(g.softmax, scores)[0])
		probs = f.Let("attention_probs", f.Dropout(probs, g.c.attentionDropout))
		value = f.Let("value", f.Reshape(value, tokens, batch*heads, width))
		probs = f.Let("attention_probs", f.View(probs, batch*heads, tokens, tokens))
		context := f.Let("context", f.Bmm(probs, f.Transpose(value, 0, 1)))
		context = f.Let("context", f.View(context, batch, heads, tokens, width))
		context = f.Let("context", f.Contiguous(f.Permute(context, 2, 0, 1, 3)))
		return one(f.Let("context", f.View(context, tokens, batch, heads*width)))
	}
	return m
}

// fusedSoftmaxTokens is how many keys the fused kernel takes at most.
const fusedSoftmaxTokens = 4096

// softmax is FusedScaleMaskSoftmax of scores of shape [batch, heads, queries,
// keys]: one kernel where that takes them, else a mask in place and a softmax.
func (g *gptModel) softmax(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	s := in[0].Shape
	if s.D[3] > 16 && s.D[3] <= fusedSoftmaxTokens && s.D[2]%4 == 0 && s.D[3]%4 == 0 && s.D[0]*s.D[1]%4 == 0 && in[0].DType != graph.F32 {
		return one(f.FusedSoftmax(in[0]))
	}
	mask := f.Let("mask", f.Compare(f.Empty(graph.Bool, s.D[2], s.D[3]), nil))
	return one(f.Let("probs", f.Softmax(f.MaskedFillInPlace(in[0], mask), in[0].DType)))
}

// mlp is MLP and its second layer.
func (g *gptModel) mlp() (mlp, fc2 *graph.Module) {
	c := g.c
	parts := int64(1)
	if c.swiglu {
		parts = 2
	}
	m := graph.NewModule("MLP")
	fc1 := m.Child("linear_fc1", g.column(c.hidden, parts*c.inner, c.bias))
	g.skipsBias(fc1)
	fc2 = m.Child("linear_fc2", g.row(c.inner, c.hidden, c.bias))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		intermediate := f.Let("intermediate_parallel", f.Call1(fc1, in[0]))
		var bias *graph.Tensor
		if len(fc1.Params) > 1 {
			bias = fc1.Params[1].T()
		}
		intermediate = f.Let("intermediate_parallel", f.FusedGate(intermediate, bias, parts))
		return one(f.Let("output", f.Call1(fc2, intermediate)))
	}
	return m, fc2
}
