package model

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// qwen35Family is the text model of Qwen 3.5: three of four layers are gated
// delta nets, the fourth attends with a gate on its output. Written from
// transformers 5.24, models/qwen3_5/modeling_qwen3_5.py.
var qwen35Family = Family{
	Name:           "qwen3_5",
	ModelTypes:     []string{"qwen3_5_text"},
	Source:         "huggingface/transformers:src/transformers/models/qwen3_5/modeling_qwen3_5.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newQwen35,
}

// qwen35Since is the first transformers that has the model.
var qwen35Since = spec.Version{5, 2}

func newQwen35(c Config, b Build) (*Network, error) {
	c.needsTransformers(b, qwen35Since, "the model was not there before")
	l := readLlama(&c)
	l.class, l.mlpBias, l.norm = "Qwen3_5", false, gemmaRMSNorm
	l.headDim = c.IntOr(256, "head_dim")
	net := readDeltaNet(&c, b, l)
	linear := c.layersOf("linear_attention", l.layers, c.IntOr(4, "full_attention_interval"))
	width := c.RotaryPart(0.25, "partial_rotary_factor", l.headDim)
	l.table = func(b Build, class string, _ int64) *graph.Module { return gridRotary(b, class, width) }
	if err := c.Err(); err != nil {
		return nil, err
	}
	local := &llamaContext{}
	m := newLlamaModelOf(l, b, func(i int64, ctx *llamaContext) *graph.Module {
		if linear[i] {
			return qwen35Block(l, b, local, "linear_attn", gatedDeltaNet(net, b, local))
		}
		return qwen35Block(l, b, ctx, "self_attn", gatedAttention(l, b, ctx))
	})
	m.local, m.localMask = local, recurrentMask
	network := m.network(m.causalLM("Qwen3_5ForCausalLM", "model", b, l.hidden, l.vocab, l.tied))
	network.Recurrent = true
	return network, nil
}

// gridRotary gives cosines and sines for positions in time, height and width,
// which are the same for text, and takes each column's from one of the three.
func gridRotary(b Build, class string, width int64) *graph.Module {
	m := graph.NewModule(class)
	invFreq := m.Buffer("inv_freq", b.DType, width/2)
	m.Buffer("original_inv_freq", b.DType, width/2)
	recomposed := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		freqs := f.Let("freqs_thw", f.Select(in[0], 0))
		return one(f.Cat(-1, freqs, freqs))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		rows, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		return castTable(f, in[0].DType, func() (cos, sin *graph.Tensor) {
			positions := f.To(f.Unsqueeze(f.Expand(f.Unsqueeze(in[1], 0), 3, rows, tokens), -1), graph.F32)
			freqs := f.Let("freqs", f.Mul(positions, f.To(invFreq.T(), graph.F32)))
			cos = f.Let("cos", f.MulScalar(f.Cos(freqs)))
			sin = f.Let("sin", f.MulScalar(f.Sin(freqs)))
			sin = f.Let("sin", f.Func(recomposed, sin)[0])
			return f.Let("cos", f.Func(recomposed, cos)[0]), sin
		})
	}
	return m
}

// qwen35Block is one layer: a mixer of tokens and an MLP, each behind a norm and
// beside a residual.
func qwen35Block(l llamaConfig, b Build, ctx *llamaContext, name string, mixer *graph.Module) *graph.Module {
	m := graph.NewModule(l.class + "DecoderLayer")
	m.Child(name, mixer)
	mlp := m.Child("mlp", llamaMLP(l, b.DType))
	inputNorm := m.Child("input_layernorm", l.norm(b.DType, l.hidden))
	postNorm := m.Child("post_attention_layernorm", l.norm(b.DType, l.hidden))
	m.Beside = ctx.beside(b.Versions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		residual := f.Let("residual", in[0])
		hidden := f.Let("hidden_states", f.Call1(inputNorm, in[0]))
		mixed := f.Call(mixer, hidden)
		hidden = f.Let("hidden_states", mixed[0])
		if len(mixed) > 1 {
			f.Let("_", mixed[1])
		}
		hidden = f.Let("hidden_states", f.Add(residual, hidden))
		residual = f.Let("residual", hidden)
		hidden = f.Let("hidden_states", f.Call1(postNorm, hidden))
		hidden = f.Let("hidden_states", f.Call1(mlp, hidden))
		return one(f.Let("hidden_states", f.Add(residual, hidden)))
	}
	return m
}

// gatedAttention is attention whose queries come with a gate for its output.
func gatedAttention(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule(l.class + "Attention")
	q := m.Child("q_proj", linear(b.DType, l.hidden, l.heads*l.headDim*2, l.qkvBias))
	k := m.Child("k_proj", linear(b.DType, l.hidden, l.kvHeads*l.headDim, l.qkvBias))
	v := m.Child("v_proj", linear(b.DType, l.hidden, l.kvHeads*l.headDim, l.qkvBias))
	out := m.Child("o_proj", linear(b.DType, l.heads*l.headDim, l.hidden, l.outBias))
	qNorm, kNorm := m.Child("q_norm", l.norm(b.DType, l.headDim)), m.Child("k_norm", l.norm(b.DType, l.headDim))
	shape := attentionShape{groups: l.heads / l.kvHeads, dropout: l.attentionDropout, positions: func() *graph.Tensor { return ctx.positions }}
	shape.eager = eagerAttention(shape)
	attention := attentionInterface(b, shape)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		parts := f.Split(f.View(f.Call1(q, in[0]), batch, tokens, -1, l.headDim*2), 2, -1)
		query, gate := f.Let("query_states", parts[0]), f.Let("gate", parts[1])
		gate = f.Let("gate", f.Reshape(gate, batch, tokens, -1))
		query = f.Let("query_states", f.Transpose(f.Call1(qNorm, f.View(query, batch, tokens, -1, l.headDim)), 1, 2))
		key := f.Let("key_states", f.Transpose(f.Call1(kNorm, f.View(f.Call1(k, in[0]), batch, tokens, -1, l.headDim)), 1, 2))
		value := f.Let("value_states", f.Transpose(f.View(f.Call1(v, in[0]), batch, tokens, -1, l.headDim), 1, 2))
		turned := f.Func(applyPartialRotary, query, key, ctx.cos, ctx.sin)
		query, key = f.Let("query_states", turned[0]), f.Let("key_states", turned[1])
		key, value = ctx.updateCache(f, "key_states", "value_states", key, value)
		result := attention(f, query, key, value, ctx.mask)
		output, weights := f.Let("attn_output", result[0]), result[1]
		if weights != nil {
			weights = f.Let("attn_weights", weights)
		}
		output = f.Let("attn_output", f.Contiguous(f.Reshape(output, batch, tokens, -1)))
		output = f.Let("attn_output", f.Mul(output, f.Sigmoid(gate)))
		return []*graph.Tensor{f.Let("attn_output", f.Call1(out, output)), weights}
	}
	return m
}
