package model

import "memplan/internal/estimator/graph"

// nemotronFamily is Nemotron 3 and 4 and Minitron: layer norms that add one to
// their weight, plain MLPs with squared ReLU. Written from transformers 5.24,
// models/nemotron/modeling_nemotron.py.
var nemotronFamily = Family{
	Name:           "nemotron",
	ModelTypes:     []string{"nemotron"},
	Source:         "huggingface/transformers:src/transformers/models/nemotron/modeling_nemotron.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newNemotron,
}

func newNemotron(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.norm, l.rotary = "Nemotron", nemotronLayerNorm, called(applyFirstRotary)
	l.act = c.Activation("relu2", "hidden_act")
	turned := c.RotaryPart(0.5, "partial_rotary_factor", l.headDim)
	l.table = func(b Build, class string, _ int64) *graph.Module { return rotaryEmbedding(b, class, turned) }
	c.needsTransformers(b, maskingUtilsSince, "earlier versions were not read")
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModel(l, b, func(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
		return llamaBlock(l, b, ctx, plainMLP("NemotronMLP", b.DType, l.hidden, l.inner, l.act, l.mlpBias, [2]string{"up_proj", "down_proj"}))
	})
	return m.network(m.causalLM("NemotronForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), nil
}

// nemotronLayerNorm is NemotronLayerNorm1P, which casts what it is given to
// autocast's type and leaves autocast.
func nemotronLayerNorm(d graph.DType, width int64) *graph.Module {
	m := graph.NewModule("NemotronLayerNorm1P")
	weight, bias := m.Param("weight", d, width), m.Param("bias", d, width)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		scale, shift, x := f.Let("given", f.AddScalar(weight.T())), bias.T(), in[0]
		if to, on := f.Autocasting(); on {
			x, scale, shift = f.To(x, to), f.To(scale, to), f.To(shift, to)
		}
		x, scale, shift = f.Let("args[0]", x), f.Let("args[2]", scale), f.Let("args[3]", shift)
		f.Del("given")
		var out *graph.Tensor
		f.NoAutocast(func() { out = f.LayerNorm(x, scale, shift) })
		return one(out)
	}
	return m
}

// applyFirstRotary turns the first columns of every head and joins the rest to
// them (apply_rotary_pos_emb of Nemotron).
func applyFirstRotary(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	cos := f.Let("cos", f.Unsqueeze(in[2], 1))
	sin := f.Let("sin", f.Unsqueeze(in[3], 1))
	width := cos.Shape.At(-1)
	cut := func(name string, x *graph.Tensor) (rot, pass *graph.Tensor) {
		rot, pass = f.Slice(x, -1, 0, width), f.Slice(x, -1, width, x.Shape.At(-1))
		return f.Let(name, rot), f.Let(name+"_pass", pass)
	}
	qRot, qPass := cut("q", in[0])
	kRot, kPass := cut("k", in[1])
	q := f.Let("q_embed", turn(f, qRot, cos, sin))
	k := f.Let("k_embed", turn(f, kRot, cos, sin))
	q = f.Cat(-1, q, qPass)
	return []*graph.Tensor{q, f.Cat(-1, k, kPass)}
}
