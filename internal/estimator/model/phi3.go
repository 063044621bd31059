package model

import "memplan/internal/estimator/graph"

// phi3Family is Phi 3, 3.5 and 4: Llama with one projection for queries, keys
// and values and one for gate and up. Written from transformers 5.24 and 4.49,
// models/phi3/modeling_phi3.py.
var phi3Family = Family{
	Name:           "phi3",
	ModelTypes:     []string{"phi3"},
	Source:         "huggingface/transformers:src/transformers/models/phi3/modeling_phi3.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"qkv_proj"},
	New:            newPhi3,
}

func newPhi3(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.rotary = "Phi3", called(phi3RotaryPosEmb)
	turned := c.RotaryPart(1, "partial_rotary_factor", l.headDim)
	l.table = func(b Build, class string, _ int64) *graph.Module { return rotaryEmbedding(b, class, turned) }
	window, drop := c.Window(0, "sliding_window"), c.Float(0, "resid_pdrop")
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModel(l, b, func(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
		return phi3DecoderLayer(l, b, ctx, drop)
	})
	m.window, m.compared = window, true
	return m.network(m.causalLM("Phi3ForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), nil
}

// phi3RotaryPosEmb turns the first columns of every head and joins the rest to
// them, queries first.
func phi3RotaryPosEmb(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	cos := f.Let("cos", f.Unsqueeze(in[2], 1))
	sin := f.Let("sin", f.Unsqueeze(in[3], 1))
	width := cos.Shape.At(-1)
	cut := func(name string, x *graph.Tensor) (rot, pass *graph.Tensor) {
		rot = f.Let(name+"_rot", f.Slice(x, -1, 0, width))
		return rot, f.Let(name+"_pass", f.Slice(x, -1, width, x.Shape.At(-1)))
	}
	qRot, qPass := cut("q", in[0])
	kRot, kPass := cut("k", in[1])
	q := f.Let("q_embed", f.Cat(-1, turn(f, qRot, cos, sin), qPass))
	return []*graph.Tensor{q, f.Let("k_embed", f.Cat(-1, turn(f, kRot, cos, sin), kPass))}
}

// phi3Attention cuts queries, keys and values out of one product.
func phi3Attention(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule("Phi3Attention")
	queries, keys := l.heads*l.headDim, l.kvHeads*l.headDim
	out := m.Child("o_proj", linear(b.DType, queries, l.hidden, false))
	qkv := m.Child("qkv_proj", linear(b.DType, l.hidden, queries+2*keys, false))
	attend := l.attend(b, ctx)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		states := f.Let("qkv", f.Call1(qkv, in[0]))
		query := f.Let("query_states", f.Slice(states, -1, 0, queries))
		key := f.Let("key_states", f.Slice(states, -1, queries, queries+keys))
		value := f.Let("value_states", f.Slice(states, -1, queries+keys, queries+2*keys))
		heads := func(t *graph.Tensor) *graph.Tensor {
			return f.Transpose(f.View(t, batch, tokens, -1, l.headDim), 1, 2)
		}
		query = f.Let("query_states", heads(query))
		key = f.Let("key_states", heads(key))
		value = f.Let("value_states", heads(value))
		return attend(f, query, key, value, out)
	}
	return m
}

// phi3MLP is the gated MLP with one product for gate and up.
func phi3MLP(l llamaConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("Phi3MLP")
	gateUp := m.Child("gate_up_proj", linear(d, l.hidden, 2*l.inner, false))
	down := m.Child("down_proj", linear(d, l.inner, l.hidden, false))
	act := m.Child("activation_fn", activation(l.act))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		up := f.Let("up_states", f.Call1(gateUp, in[0]))
		halves := f.Split(up, 2, -1)
		gate, up := f.Let("gate", halves[0]), f.Let("up_states", halves[1])
		up = f.Let("up_states", f.Mul(up, f.Call1(act, gate)))
		return one(f.Call1(down, up))
	}
	return m
}

// phi3DecoderLayer is one block.
func phi3DecoderLayer(l llamaConfig, b Build, ctx *llamaContext, drop float64) *graph.Module {
	m := graph.NewModule("Phi3DecoderLayer")
	attention := m.Child("self_attn", phi3Attention(l, b, ctx))
	mlp := m.Child("mlp", phi3MLP(l, b.DType))
	inputNorm := m.Child("input_layernorm", l.norm(b.DType, l.hidden))
	postNorm := m.Child("post_attention_layernorm", l.norm(b.DType, l.hidden))
	attentionDrop := m.Child("resid_attn_dropout", dropout(drop))
	mlpDrop := m.Child("resid_mlp_dropout", dropout(drop))
	m.Beside = ctx.beside(b.Versions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		residual := f.Let("residual", in[0])
		hidden := f.Let("hidden_states", f.Call1(inputNorm, in[0]))
		attended := f.Call(attention, hidden)
		hidden = f.Let("hidden_states", attended[0])
		f.Let("self_attn_weights", attended[1])
		hidden = f.Let("hidden_states", f.Add(residual, f.Call1(attentionDrop, hidden)))

		residual = f.Let("residual", hidden)
		hidden = f.Let("hidden_states", f.Call1(postNorm, hidden))
		hidden = f.Let("hidden_states", f.Call1(mlp, hidden))
		return one(f.Let("hidden_states", f.Add(residual, f.Call1(mlpDrop, hidden))))
	}
	return m
}
