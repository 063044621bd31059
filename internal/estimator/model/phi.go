package model

import "memplan/internal/estimator/graph"

// phiFamily is Phi 1, 1.5 and 2: attention and MLP side by side behind one
// layer norm, partly rotary heads, biases everywhere. Written from transformers
// 5.24 and 4.49, models/phi/modeling_phi.py.
var phiFamily = Family{
	Name:           "phi",
	ModelTypes:     []string{"phi"},
	Source:         "huggingface/transformers:src/transformers/models/phi/modeling_phi.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"q_proj", "v_proj", "fc1", "fc2"},
	New:            newPhi,
}

func newPhi(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.norm, l.rotary, l.outName = "Phi", layerNorm, turnFirst, "dense"
	l.qkvBias, l.outBias, l.act = true, true, c.Activation("gelu_new", "hidden_act")
	turned := c.RotaryPart(0.5, "partial_rotary_factor", l.headDim)
	residual, embedded := c.Float(0, "resid_pdrop"), c.Float(0, "embd_pdrop")
	if c.Bool(false, "qk_layernorm") {
		l.qkNorm = &qkNorm{names: [2]string{"q_layernorm", "k_layernorm"}, place: headsFirst, make: func(int64) *graph.Module {
			return layerNorm(b.DType, l.hidden/l.heads)
		}}
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newDecoder("PhiModel")
	m.embedTokens = m.Child("embed_tokens", embedding(b.DType, l.vocab, l.hidden))
	m.stack("layers", l.layers, func(int64) *graph.Module { return phiDecoderLayer(l, b, m.ctx, residual) })
	m.rotary = m.Child("rotary_emb", rotaryEmbedding(b, "PhiRotaryEmbedding", turned))
	drop := m.Child("embed_dropout", dropout(embedded))
	m.dropped = func(f *graph.Frame, embeds *graph.Tensor) *graph.Tensor {
		return f.Let("inputs_embeds", f.Call1(drop, embeds))
	}
	m.norm = m.Child("final_layernorm", layerNorm(b.DType, l.hidden))
	lm := m.causalLM("PhiForCausalLM", "model", b, l.hidden, l.vocab, false)
	lm.setHead("lm_head", linear(b.DType, l.hidden, l.vocab, true))
	if l.tied {
		lm.head.Params[0].Tied = m.embedTokens.Params[0]
	}
	return m.network(lm), nil
}

// plainMLP is two linear layers with an activation between them.
func plainMLP(class string, d graph.DType, hidden, inner int64, act string, bias bool, names [2]string) *graph.Module {
	m := graph.NewModule(class)
	up := m.Child(names[0], linear(d, hidden, inner, bias))
	down := m.Child(names[1], linear(d, inner, hidden, bias))
	activate := m.Child("act", activation(act))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Call1(up, in[0]))
		hidden = f.Let("hidden_states", f.Call1(activate, hidden))
		return one(f.Let("hidden_states", f.Call1(down, hidden)))
	}
	return m
}

// phiDecoderLayer is one block.
func phiDecoderLayer(l llamaConfig, b Build, ctx *llamaContext, drop float64) *graph.Module {
	m := graph.NewModule("PhiDecoderLayer")
	attention := m.Child("self_attn", llamaAttention(l, b, ctx))
	mlp := m.Child("mlp", plainMLP("PhiMLP", b.DType, l.hidden, l.inner, l.act, true, [2]string{"fc1", "fc2"}))
	norm := m.Child("input_layernorm", layerNorm(b.DType, l.hidden))
	dropped := m.Child("resid_dropout", dropout(drop))
	m.Beside = ctx.beside(b.Versions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		residual := f.Let("residual", in[0])
		hidden := f.Let("hidden_states", f.Call1(norm, in[0]))
		attended := f.Call(attention, hidden)
		output := f.Let("attn_outputs", attended[0])
		f.Let("_", attended[1])
		output = f.Let("attn_outputs", f.Call1(dropped, output))
		forward := f.Let("feed_forward_hidden_states", f.Call1(dropped, f.Call1(mlp, hidden)))
		return one(f.Let("hidden_states", f.Add(f.Add(output, forward), residual)))
	}
	return m
}
