package model

import "memplan/internal/estimator/graph"

// glmFamily is GLM-4: pairs of neighbouring columns turned in half of every
// head; GLM-4-0414 has norms behind attention and MLP too. Written from
// transformers 5.24, models/{glm,glm4}.
var glmFamily = Family{
	Name:           "glm",
	ModelTypes:     []string{"glm", "glm4"},
	Source:         "huggingface/transformers:src/transformers/models/glm4/modeling_glm4.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newGlm,
}

func newGlm(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.outBias, l.mlpBias, l.rotary = "Glm", false, false, called(applyPartialNeighbourRotary)
	l.headDim = c.IntOr(128, "head_dim")
	l.qkvBias = c.Bool(true, "attention_bias")
	turned := c.RotaryPart(0.5, "partial_rotary_factor", l.headDim)
	l.table = func(b Build, class string, _ int64) *graph.Module { return rotaryEmbedding(b, class, turned) }
	sandwiched := c.Text("glm", "model_type") == "glm4"
	c.needsTransformers(b, maskingUtilsSince, "earlier versions were not read")
	if err := c.Err(); err != nil {
		return nil, err
	}
	if sandwiched {
		l.class = "Glm4"
	}
	m := newLlamaModel(l, b, func(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
		if sandwiched {
			return glm4DecoderLayer(l, b, ctx)
		}
		return llamaBlock(l, b, ctx, phi3MLP(l, b.DType))
	})
	return m.network(m.causalLM(l.class+"ForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), nil
}

// applyPartialNeighbourRotary turns pairs of neighbouring columns among the
// first of every head, and joins the rest to them (apply_rotary_pos_emb of GLM).
func applyPartialNeighbourRotary(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	spread := func(name string, t *graph.Tensor) *graph.Tensor {
		t = f.Let(name, f.Unsqueeze(t, 1))
		s := t.Shape.D
		half := f.Slice(t, -1, 0, s[3]/2)
		pairs := f.Contiguous(f.Expand(f.Unsqueeze(half, -1), s[0], s[1], s[2], s[3]/2, 2)) // repeat_interleave
		return f.Let(name, f.View(pairs, s[0], s[1], s[2], s[3]))
	}
	cos := spread("cos", in[2])
	sin := spread("sin", in[3])
	width := cos.Shape.At(-1)
	cut := func(name string, x *graph.Tensor) (rot, pass *graph.Tensor) {
		rot = f.Let(name+"_rot", f.Slice(x, -1, 0, width))
		return rot, f.Let(name+"_pass", f.Slice(x, -1, width, x.Shape.At(-1)))
	}
	qRot, qPass := cut("q", in[0])
	kRot, kPass := cut("k", in[1])
	turn := func(x *graph.Tensor) *graph.Tensor {
		straight := f.Mul(x, cos)
		return f.Add(straight, f.Mul(f.Func(rotateNeighbours, x)[0], sin))
	}
	q := f.Let("q_embed", turn(qRot))
	k := f.Let("k_embed", turn(kRot))
	q = f.Let("q_embed", f.Cat(-1, q, qPass))
	return []*graph.Tensor{q, f.Let("k_embed", f.Cat(-1, k, kPass))}
}

// glm4DecoderLayer is one block: attention and MLP, each between two norms and
// beside a residual.
func glm4DecoderLayer(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule("Glm4DecoderLayer")
	attention := m.Child("self_attn", llamaAttention(l, b, ctx))
	mlp := m.Child("mlp", phi3MLP(l, b.DType))
	norm := func(name string) *graph.Module { return m.Child(name, l.norm(b.DType, l.hidden)) }
	input, preForward := norm("input_layernorm"), norm("post_attention_layernorm")
	postAttention, postForward := norm("post_self_attn_layernorm"), norm("post_mlp_layernorm")
	m.Beside = ctx.beside(b.Versions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		residual := f.Let("residual", in[0])
		hidden := f.Let("hidden_states", f.Call1(input, in[0]))
		attended := f.Call(attention, hidden)
		hidden = f.Let("hidden_states", attended[0])
		f.Let("_", attended[1])
		hidden = f.Let("hidden_states", f.Call1(postAttention, hidden))
		hidden = f.Let("hidden_states", f.Add(residual, hidden))

		residual = f.Let("residual", hidden)
		hidden = f.Let("hidden_states", f.Call1(preForward, hidden))
		hidden = f.Let("hidden_states", f.Call1(mlp, hidden))
		hidden = f.Let("hidden_states", f.Call1(postForward, hidden))
		return one(f.Let("hidden_states", f.Add(residual, hidden)))
	}
	return m
}
