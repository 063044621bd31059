package model

import "memplan/internal/estimator/graph"

// cohereFamily is Command R: attention and MLP side by side behind one norm,
// positions turned in pairs of neighbours. Written from transformers 5.24 and
// 4.49, models/cohere/modeling_cohere.py.
var cohereFamily = Family{
	Name:           "cohere",
	ModelTypes:     []string{"cohere"},
	Source:         "huggingface/transformers:src/transformers/models/cohere/modeling_cohere.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newCohere,
}

func newCohere(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.mlpBias = "Cohere", false
	l.tied = c.Bool(true, "tie_word_embeddings")
	l.norm = func(d graph.DType, width int64) *graph.Module { return cohereLayerNorm(d, width) }
	l.table, l.rotary = cohereRotaryEmbedding, called(applyNeighbourRotary)
	if c.Bool(false, "use_qk_norm") {
		l.qkNorm = &qkNorm{names: [2]string{"q_norm", "k_norm"}, place: tokensFirst, make: func(heads int64) *graph.Module {
			return cohereLayerNorm(b.DType, heads, l.headDim)
		}}
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModel(l, b, cohereDecoderLayer)
	lm := m.causalLM("CohereForCausalLM", "model", b, l.hidden, l.vocab, l.tied)
	lm.scores = (*graph.Frame).MulScalar // logit_scale
	return m.network(lm), nil
}

// cohereLayerNorm is a layer norm without bias, operation by operation in fp32.
func cohereLayerNorm(d graph.DType, size ...int64) *graph.Module {
	m := graph.NewModule("CohereLayerNorm")
	weight := m.Param("weight", d, size...)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.To(in[0], graph.F32))
		mean := f.Let("mean", f.MeanLast(hidden))
		variance := f.Let("variance", f.MeanLast(f.Pow(f.Sub(hidden, mean))))
		centred := f.Sub(hidden, mean)
		hidden = f.Let("hidden_states", f.Mul(centred, f.Rsqrt(f.AddScalar(variance))))
		hidden = f.Let("hidden_states", f.Mul(f.To(weight.T(), graph.F32), hidden))
		return one(f.To(hidden, in[0].DType))
	}
	return m
}

// cohereRotaryEmbedding repeats every frequency for two neighbouring columns.
func cohereRotaryEmbedding(b Build, class string, width int64) *graph.Module {
	return rotaryModule(b, class, width, func(f *graph.Frame, freqs *graph.Tensor) *graph.Tensor {
		s := freqs.Shape.D
		pairs := f.Contiguous(f.Expand(f.Unsqueeze(freqs, -1), s[0], s[1], s[2], 2))
		return f.View(pairs, s[0], s[1], 2*s[2])
	})
}

// rotateNeighbours is stack(-odd columns, even columns), flattened.
func rotateNeighbours(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	x := in[0]
	even := f.Let("x1", f.SliceStep(x, 0, 2))
	odd := f.Let("x2", f.SliceStep(x, 1, 2))
	stacked := f.Cat(-1, f.Unsqueeze(f.Neg(odd), -1), f.Unsqueeze(even, -1))
	return one(f.Let("rot_x", f.View(stacked, x.Shape.Slice()...)))
}

// applyNeighbourRotary is Cohere's apply_rotary_pos_emb, in fp32.
func applyNeighbourRotary(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	q := f.Let("q", f.To(in[0], graph.F32))
	k := f.Let("k", f.To(in[1], graph.F32))
	cos := f.Let("cos", f.Unsqueeze(in[2], 1))
	sin := f.Let("sin", f.Unsqueeze(in[3], 1))
	turn := func(x *graph.Tensor) *graph.Tensor {
		straight := f.Mul(x, cos)
		return f.Add(straight, f.Mul(f.Func(rotateNeighbours, x)[0], sin))
	}
	qEmbed := f.Let("q_embed", turn(q))
	kEmbed := f.Let("k_embed", turn(k))
	qEmbed = f.To(qEmbed, in[0].DType)
	return []*graph.Tensor{qEmbed, f.To(kEmbed, in[0].DType)}
}

// cohereDecoderLayer is one block.
func cohereDecoderLayer(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule("CohereDecoderLayer")
	attention := m.Child("self_attn", llamaAttention(l, b, ctx))
	mlp := m.Child("mlp", llamaMLP(l, b.DType))
	norm := m.Child("input_layernorm", l.norm(b.DType, l.hidden))
	m.Beside = ctx.beside(b.Versions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		residual := f.Let("residual", in[0])
		hidden := f.Let("hidden_states", f.Call1(norm, in[0]))
		attended := f.Call(attention, hidden)
		attention := f.Let("hidden_states_attention", attended[0])
		f.Let("_", attended[1])
		forward := f.Let("hidden_states_mlp", f.Call1(mlp, hidden))
		return one(f.Let("hidden_states", f.Add(f.Add(residual, attention), forward)))
	}
	return m
}
