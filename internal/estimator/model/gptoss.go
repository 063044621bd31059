package model

import "memplan/internal/estimator/graph"

// gptOssFamily is gpt-oss: a mixture with biases and a gate of its own in every
// layer, windows in every other, and a sink beside the scores. Written from
// transformers 5.24, models/gpt_oss/modeling_gpt_oss.py.
var gptOssFamily = Family{
	Name:           "gpt_oss",
	ModelTypes:     []string{"gpt_oss"},
	Source:         "huggingface/transformers:src/transformers/models/gpt_oss/modeling_gpt_oss.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newGptOss,
}

func newGptOss(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.norm, l.rotary = "GptOss", olmo2RMSNorm(b), called(applyHalfRotary)
	l.qkvBias = c.Bool(true, "attention_bias")
	l.outBias = l.qkvBias
	l.table = func(b Build, class string, width int64) *graph.Module {
		return rotaryModule(b, class, width, func(_ *graph.Frame, freqs *graph.Tensor) *graph.Tensor { return freqs })
	}
	e := moeConfig{
		class: l.class, hidden: l.hidden, inner: l.inner, act: l.act,
		experts: c.IntOr(128, "num_local_experts"), chosen: c.IntOr(4, "num_experts_per_tok", "experts_per_token"),
	}
	e.check(&c, b)
	window, sliding := c.IntOr(128, "sliding_window"), c.Sliding(l.layers, 2)
	if b.Attention.Kernel != "eager" {
		b.Attention = Attention{Kernel: c.eagerOr(b.Attention.Kernel)}
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	local := &llamaContext{}
	m := newLlamaModelOf(l, b, func(i int64, ctx *llamaContext) *graph.Module {
		if sliding[i] {
			ctx = local
		}
		return llamaBlockOf(l, b, ctx, gptOssAttention(l, b, ctx), gptOssMLP(e, b.DType))
	})
	m.local, m.window, m.unplaced = local, window, true
	return e.in(m.network(m.causalLM("GptOssForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), l.layers), nil
}

// applyHalfRotary turns columns i and i + half by one frequency, half by half
// (apply_rotary_pos_emb of gpt-oss).
func applyHalfRotary(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	cos := f.Let("cos", f.Unsqueeze(in[2], 1))
	sin := f.Let("sin", f.Unsqueeze(in[3], 1))
	turn := func(f *graph.Frame, x ...*graph.Tensor) []*graph.Tensor {
		halves := f.Split(x[0], 2, -1)
		first, second := f.Let("first_half", halves[0]), f.Let("second_half", halves[1])
		left := f.Mul(first, cos)
		left = f.Let("first_", f.Sub(left, f.Mul(second, sin)))
		right := f.Mul(second, cos)
		right = f.Let("second_", f.Add(right, f.Mul(first, sin)))
		return one(f.Cat(-1, left, right))
	}
	q := f.Let("q_embed", f.Func(turn, in[0])[0])
	return []*graph.Tensor{q, f.Let("k_embed", f.Func(turn, in[1])[0])}
}

// gptOssAttention is Llama's with a sink for every head.
func gptOssAttention(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule("GptOssAttention")
	sinks := m.Param("sinks", b.DType, l.heads)
	l.attention = func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor {
		return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			return sinkAttention(f, l, sinks, in[0], in[1], in[2], in[3])
		}, query, key, value, mask)
	}
	p := projectionsOf(l, b, m)
	attend := l.attend(b, ctx)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		query, key, value := p.project(f, in[0])
		return attend(f, query, key, value, p.out)
	}
	return m
}

// sinkAttention is eager_attention_forward of gpt-oss: a learned score joins
// those of the keys and takes its share of the softmax.
func sinkAttention(f *graph.Frame, l llamaConfig, sinks *graph.Param, query, key, value, mask *graph.Tensor) []*graph.Tensor {
	keys := f.Let("key_states", repeatKV(f, key, l.heads/l.kvHeads))
	values := f.Let("value_states", repeatKV(f, value, l.heads/l.kvHeads))
	weights := f.Let("attn_weights", f.MulScalar(f.Matmul(query, f.Transpose(keys, 2, 3))))
	weights = f.Let("attn_weights", f.Add(weights, mask))
	sink := f.View(sinks.T(), 1, -1, 1, 1)
	sink = f.Let("sinks", f.Expand(sink, query.Shape.D[0], -1, query.Shape.D[2], 1))
	logits := f.Let("combined_logits", f.Cat(-1, weights, sink))
	largest, index := f.TopK(logits, 1) // max
	f.Drop(index)
	logits = f.Let("combined_logits", f.Sub(logits, largest))
	probs := f.Let("probs", f.SoftmaxIn(logits, logits.DType))
	scores := f.Let("scores", f.Slice(probs, -1, 0, probs.Shape.At(-1)-1))
	weights = f.Let("attn_weights", f.To(f.Dropout(scores, l.attentionDropout), values.DType))
	output := f.Let("attn_output", f.Matmul(weights, values))
	output = f.Let("attn_output", f.Contiguous(f.Transpose(output, 1, 2)))
	return []*graph.Tensor{output, weights}
}

// gptOssMLP is the router and its experts. Its second result are the router's
// scores.
func gptOssMLP(e moeConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("GptOssMLP")
	router := m.Child("router", graph.NewModule("GptOssTopKRouter"))
	weight, bias := router.Param("weight", d, e.experts, e.hidden), router.Param("bias", d, e.experts)
	router.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		logits := f.Let("router_logits", f.Linear(in[0], weight.T(), bias.T()))
		top, indices := f.TopK(logits, e.chosen)
		top, indices = f.Let("router_top_value", top), f.Let("router_indices", indices)
		return []*graph.Tensor{logits, f.Let("router_scores", f.SoftmaxIn(top, top.DType)), indices}
	}
	mlps := m.Child("experts", gptOssExperts(e, d))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		rows := f.Let("hidden_states", f.Reshape(in[0], -1, e.hidden))
		chosen := f.Call(router, rows)
		f.Let("_", chosen[0])
		scores, indices := f.Let("router_scores", chosen[1]), f.Let("router_indices", chosen[2])
		rows = f.Let("hidden_states", f.Call1(mlps, rows, indices, scores))
		rows = f.Let("hidden_states", f.Reshape(rows, batch, tokens, e.hidden))
		return []*graph.Tensor{rows, scores}
	}
	return m
}

// gptOssExperts are the experts: weights as they are multiplied, a bias for
// each, gate and up side by side.
func gptOssExperts(e moeConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("GptOssExperts")
	gateUp, gateUpBias := m.Param("gate_up_proj", d, e.experts, e.hidden, 2*e.inner), m.Param("gate_up_proj_bias", d, e.experts, 2*e.inner)
	down, downBias := m.Param("down_proj", d, e.experts, e.inner, e.hidden), m.Param("down_proj_bias", d, e.experts, e.hidden)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			g := routeRows(f, e, in[0], in[2], in[1])
			biases := f.Let("selected_biases", f.IndexRows(gateUpBias.T(), g.experts))
			out := f.Let("proj_out", biasedGroupedLinear(f, g.rows, gateUp.T(), g.offsets, biases))
			out = f.Let("proj_out", f.Func(clampedGate, out)[0])
			biases = f.Let("selected_biases", f.IndexRows(downBias.T(), g.experts))
			out = f.Let("proj_out", biasedGroupedLinear(f, out, down.T(), g.offsets, biases))
			return one(g.gather(f, e, out, in[0]))
		}, in...)
	}
	return m
}

// biasedGroupedLinear is _grouped_linear of weights that need no transpose, with
// a bias for every row.
func biasedGroupedLinear(f *graph.Frame, rows, weight, offsets, bias *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		out := f.Let("out", f.GroupedMM(f.To(rows, weight.DType), weight, offsets))
		return one(f.AddInPlace(out, bias))
	}, rows, offsets, bias)[0]
}

// clampedGate is _apply_gate of gpt-oss: gates and ups alternate, both are
// clamped.
func clampedGate(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	gate := f.Let("gate", f.SliceStep(in[0], 0, 2))
	up := f.Let("up", f.SliceStep(in[0], 1, 2))
	gate = f.Let("gate", f.ClampBelow(gate))
	up = f.Let("up", f.ClampBetween(up))
	glu := f.Let("glu", f.Mul(gate, f.Sigmoid(f.MulScalar(gate))))
	return one(f.Let("gated_output", f.Mul(f.AddScalar(up), glu)))
}
