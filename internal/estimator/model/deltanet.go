package model

import (
	"fmt"

	"memplan/internal/estimator/graph"
)

// Gated delta nets: linear attention whose state decays and is corrected token
// by token, computed a chunk of tokens at a time (transformers 5.24,
// models/qwen3_5/modeling_qwen3_5.py:Qwen3_5GatedDeltaNet).

// deltaNet is what such a layer needs of a config.json.
type deltaNet struct {
	class                string
	hidden               int64
	keyHeads, valueHeads int64
	keyDim, valueDim     int64 // of a head
	kernel               int64 // tokens that the convolution sees
	act                  string
}

func readDeltaNet(c *Config, b Build, l llamaConfig) deltaNet {
	if b.LinearAttention == "fused" {
		c.fields.Add("training.linear_attention", b.LinearAttention, "fallback: the kernels of flash-linear-attention are not modelled", "fallback")
	}
	n := deltaNet{
		class: l.class, hidden: l.hidden, act: l.act, kernel: c.IntOr(4, "linear_conv_kernel_dim"),
		keyHeads: c.IntOr(16, "linear_num_key_heads"), valueHeads: c.IntOr(32, "linear_num_value_heads"),
		keyDim: c.IntOr(128, "linear_key_head_dim"), valueDim: c.IntOr(128, "linear_value_head_dim"),
	}
	c.Divides("linear_num_key_heads", "linear_num_value_heads", n.keyHeads, n.valueHeads)
	return n
}

// layersOf says which layers layer_types names so; where it is not given, all
// but every so many-th.
func (c *Config) layersOf(kind string, layers, every int64) []bool {
	named, _ := c.values["layer_types"].([]any)
	if named != nil && int64(len(named)) != layers {
		c.fields.Add("model.config.layer_types", len(named), fmt.Sprintf("a list of %d", layers), "")
		return nil
	}
	is := make([]bool, layers)
	for i := range is {
		is[i] = (int64(i)+1)%every != 0
		if named != nil {
			is[i] = named[i] == kind
		}
	}
	return is
}

// recurrentMask is create_recurrent_attention_mask: which tokens are real, for
// layers that zero the others; none where all are.
func recurrentMask(f *graph.Frame, in maskInputs) *graph.Tensor {
	if in.attention == nil {
		return nil
	}
	f.Drop(f.All(f.Compare(in.attention, nil)))
	if !in.padded {
		return nil
	}
	return f.SliceLast(in.attention, 1, in.attention.Shape.D[1])
}

// gatedRMSNorm is a norm of every head, times the activation of a gate in fp32.
func gatedRMSNorm(class string, d graph.DType, width int64) *graph.Module {
	m := graph.NewModule(class + "RMSNormGated")
	weight := m.Param("weight", d, width)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.To(in[0], graph.F32))
		variance := f.Let("variance", f.MeanLast(f.Pow(hidden)))
		hidden = f.Let("hidden_states", f.Mul(hidden, f.Rsqrt(f.AddScalar(variance))))
		hidden = f.Let("hidden_states", f.Mul(weight.T(), f.To(hidden, in[0].DType)))
		hidden = f.Let("hidden_states", f.Mul(hidden, f.Silu(f.To(in[1], graph.F32))))
		return one(f.To(hidden, in[0].DType))
	}
	return m
}

// gatedDeltaNet is the layer.
func gatedDeltaNet(n deltaNet, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule(n.class + "GatedDeltaNet")
	keys, values := n.keyHeads*n.keyDim, n.valueHeads*n.valueDim
	width := 2*keys + values
	dtBias := m.Param("dt_bias", b.DType, n.valueHeads)
	aLog := m.Param("A_log", b.DType, n.valueHeads)
	conv := m.Child("conv1d", graph.NewModule("Conv1d"))
	filter := conv.Param("weight", b.DType, width, 1, n.kernel)
	norm := m.Child("norm", gatedRMSNorm(n.class, b.DType, n.valueDim))
	out := m.Child("out_proj", linear(b.DType, values, n.hidden, false))
	inQKV := m.Child("in_proj_qkv", linear(b.DType, n.hidden, width, false))
	inZ := m.Child("in_proj_z", linear(b.DType, n.hidden, values, false))
	inB := m.Child("in_proj_b", linear(b.DType, n.hidden, n.valueHeads, false))
	inA := m.Child("in_proj_a", linear(b.DType, n.hidden, n.valueHeads, false))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", in[0])
		if ctx.mask != nil {
			hidden = f.Let("hidden_states", f.To(f.Mul(hidden, f.Unsqueeze(ctx.mask, -1)), hidden.DType))
		}
		batch, tokens := hidden.Shape.D[0], hidden.Shape.D[1]
		mixed := f.Let("mixed_qkv", f.Call1(inQKV, hidden))
		mixed = f.Let("mixed_qkv", f.Transpose(mixed, 1, 2))
		z := f.Let("z", f.Call1(inZ, hidden))
		z = f.Let("z", f.Reshape(z, batch, tokens, -1, n.valueDim))
		rate, step := f.Let("b", f.Call1(inB, hidden)), f.Let("a", f.Call1(inA, hidden))
		if ctx.cache != nil {
			ctx.cache.keep(f, f.Empty(mixed.DType, batch, width, n.kernel))
		}
		mixed = f.Let("mixed_qkv", causalConv(f, mixed, filter.T(), nil, n.act))
		if ctx.cache != nil {
			mixed = f.Let("mixed_qkv", f.SliceLast(mixed, -1, tokens))
		}
		mixed = f.Let("mixed_qkv", f.Transpose(mixed, 1, 2))
		parts := f.SplitSizes(mixed, -1, keys, keys, values)
		query, key, value := f.Let("query", parts[0]), f.Let("key", parts[1]), f.Let("value", parts[2])
		query = f.Let("query", f.Reshape(query, batch, tokens, -1, n.keyDim))
		key = f.Let("key", f.Reshape(key, batch, tokens, -1, n.keyDim))
		value = f.Let("value", f.Reshape(value, batch, tokens, -1, n.valueDim))
		beta := f.Let("beta", f.Sigmoid(rate))
		decay := f.Neg(f.Exp(f.To(aLog.T(), graph.F32)))
		decay = f.Let("g", f.Mul(decay, f.Softplus(f.Add(f.To(step, graph.F32), dtBias.T()))))
		mixture := f.Func(chunkDeltaRule(n, ctx.cache), query, key, value, decay, beta)
		core := f.Let("core_attn_out", mixture[0])
		if ctx.cache != nil {
			f.Let("last_recurrent_state", mixture[1])
			ctx.cache.keep(f, f.Empty(graph.F32, batch, n.valueHeads, n.keyDim, n.valueDim))
		}
		core = f.Let("core_attn_out", f.Reshape(core, -1, n.valueDim))
		z = f.Let("z", f.Reshape(z, -1, n.valueDim))
		core = f.Let("core_attn_out", f.Call1(norm, core, z))
		core = f.Let("core_attn_out", f.Reshape(core, batch, tokens, -1))
		return one(f.Let("output", f.Call1(out, core)))
	}
	return m
}

// keep hands a state to the cache.
func (c *keyValueCache) keep(f *graph.Frame, state *graph.Tensor) {
	c.tensors = append(c.tensors, f.Own(state))
}

// causalConv is causal_conv1d_fn without the kernel of that name: every channel
// of [batch, channels, tokens] over its last tokens, and an activation.
func causalConv(f *graph.Frame, x, weight, bias *graph.Tensor, act string) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		channels, tokens, kernel := in[0].Shape.D[1], in[0].Shape.D[2], weight.Shape.At(-1)
		filter := f.Unsqueeze(f.Squeeze(weight, 1), 1)
		out := f.Convolution(f.To(in[0], weight.DType), filter, bias, graph.Conv{
			Stride: graph.D(1), Padding: graph.D(kernel - 1), Dilation: graph.D(1), Groups: channels,
		})
		f.Drop(filter)
		out = f.Let("out", f.Slice(f.SliceWhole(out, 2), -1, 0, tokens))
		out = f.Let("out", activations[act](f, out))
		return one(f.To(out, in[0].DType))
	}, x)[0]
}
