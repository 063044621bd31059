package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// ditFamily is DiT as diffusers builds it. Written from diffusers 0.42,
// models/transformers/dit_transformer_2d.py.
var ditFamily = Family{
	Name:    "dit",
	Classes: []string{"DiTTransformer2DModel", "Transformer2DModel"},
	Source:  "huggingface/diffusers:src/diffusers/models/transformers/dit_transformer_2d.py@v0.42.1",
	New:     newDiT,
}

// ditConfig is what the program needs of a config.json.
type ditConfig struct {
	heads, headDim, width, in, out, layers, patch, grid, classes int64
	act                                                          string
	bias                                                         bool
	dropout                                                      float64
	attention                                                    Attention
}

func readDiT(c *Config, b Build) ditConfig {
	g := readDiffusionTransformer(c, b, 32)
	g.classes = c.IntOr(1000, "num_embeds_ada_norm")
	c.OneOf("norm_type", "ada_norm_zero")
	return g
}

// readDiffusionTransformer reads what the configs of transformers over patches
// share; size is a latent's where it says nothing.
func readDiffusionTransformer(c *Config, b Build, size int64) ditConfig {
	g := ditConfig{
		heads: c.IntOr(16, "num_attention_heads"), headDim: c.IntOr(72, "attention_head_dim"), in: c.IntOr(4, "in_channels"),
		layers: c.IntOr(28, "num_layers"), patch: c.IntOr(2, "patch_size"),
		bias: c.Bool(true, "attention_bias"), dropout: c.Float(0, "dropout"), attention: b.Attention,
	}
	g.out = c.IntOr(g.in, "out_channels")
	g.width = g.heads * g.headDim
	g.grid = c.IntOr(size, "sample_size") / g.patch
	g.act = c.OneOf("activation_fn", "gelu-approximate", "gelu", "geglu")
	c.Refuses("norm_elementwise_affine", "upcast_attention")
	return g
}

func newDiT(c Config, b Build) (*Network, error) {
	g := readDiT(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := graph.NewModule("DiTTransformer2DModel")
	embed := m.Child("pos_embed", patchEmbed(b.DType, g.in, g.width, g.patch, g.grid, false))
	ctx := &ditContext{}
	list := m.Child("transformer_blocks", graph.NewModule("ModuleList"))
	var blocks []*graph.Module
	for i := range g.layers {
		blocks = append(blocks, list.Child(strconv.FormatInt(i, 10), ditBlock(g, b.DType, ctx)))
	}
	norm := m.Child("norm_out", plainNorm())
	proj1 := m.Child("proj_out_1", linear(b.DType, g.width, 2*g.width, true))
	proj2 := m.Child("proj_out_2", linear(b.DType, g.width, g.patch*g.patch*g.out, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		ctx.times, ctx.labels = in[1], in[2]
		hidden := f.Let("hidden_states", f.Call1(embed, in[0]))
		for block := range f.Layers(blocks) {
			hidden = f.Let("hidden_states", f.Call1(block, hidden))
		}
		conditioning := f.Let("conditioning", f.Call1(ctx.first, ctx.times, ctx.labels, hidden))
		halves := f.Split(f.Call1(proj1, f.Silu(conditioning)), 2, 1)
		shift, scale := f.Let("shift", halves[0]), f.Let("scale", halves[1])
		normed := f.Call1(norm, hidden)
		hidden = f.Let("hidden_states", modulated(f, normed, perToken(f, scale), perToken(f, shift)))
		hidden = f.Let("hidden_states", f.Call1(proj2, hidden))
		return one(unpatchify(f, hidden, in[0].Shape.D[2]/g.patch, in[0].Shape.D[3]/g.patch, g.patch, g.out))
	}
	net := denoiser(m, func(f *graph.Frame, b Batch) *graph.Tensor {
		return f.Call1(m, b.Tensor(hiddenStates), b.Tensor(timestep), b.Tensor(classLabels))
	})
	net.Blocks = blocks
	net.Inputs = func(s Sizes) []Input {
		l := latentOf{g.in, g.grid * g.patch, g.grid * g.patch}
		return s.denoised(l, s.latents(hiddenStates, l), Input{classLabels, graph.I64, graph.D(s.Batch)})
	}
	return net, nil
}

const classLabels = "class_labels"

// ditContext is what every block of one forward pass shares, and the first
// block's embedding of it, which the output layer uses again.
type ditContext struct {
	times, labels *graph.Tensor
	first         *graph.Module
}

// ditBlock is BasicTransformerBlock with norm_type ada_norm_zero.
func ditBlock(g ditConfig, d graph.DType, ctx *ditContext) *graph.Module {
	m := graph.NewModule("BasicTransformerBlock")
	norm1 := m.Child("norm1", adaLayerNormZero(d, g, ctx))
	attn := m.Child("attn1", diffusersAttention(d, attentionOf{
		query: g.width, cross: g.width, heads: g.heads, width: g.headDim, bias: g.bias, outBias: true, dropout: g.dropout, attention: g.attention,
	}))
	norm3 := m.Child("norm3", plainNorm())
	ff := m.Child("ff", feedForward(d, g.width, g.act, g.dropout))
	m.Beside = func() (args, bound []*graph.Tensor) { return []*graph.Tensor{ctx.times, ctx.labels}, nil }
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		n := f.Call(norm1, in[0], ctx.times, ctx.labels)
		normed := f.Let("norm_hidden_states", n[0])
		gateAttn, shift, scale, gate := f.Let("gate_msa", n[1]), f.Let("shift_mlp", n[2]), f.Let("scale_mlp", n[3]), f.Let("gate_mlp", n[4])
		output := f.Let("attn_output", f.Call1(attn, normed, nil, nil))
		output = f.Let("attn_output", f.Mul(f.Unsqueeze(gateAttn, 1), output))
		hidden := f.Let("hidden_states", f.Add(output, in[0]))
		normed = f.Let("norm_hidden_states", f.Call1(norm3, hidden))
		normed = f.Let("norm_hidden_states", modulated(f, normed, perToken(f, scale), perToken(f, shift)))
		forward := f.Let("ff_output", f.Call1(ff, normed))
		forward = f.Let("ff_output", f.Mul(f.Unsqueeze(gate, 1), forward))
		return one(f.Let("hidden_states", f.Add(forward, hidden)))
	}
	return m
}

// adaptiveRows are the names of the rows a time is projected to for a block.
var adaptiveRows = [...]string{"shift_msa", "scale_msa", "gate_msa", "shift_mlp", "scale_mlp", "gate_mlp"}

// adaLayerNormZero is AdaLayerNormZero: a norm whose shift and scale, and four
// more rows for the block, are made of time and class.
func adaLayerNormZero(d graph.DType, g ditConfig, ctx *ditContext) *graph.Module {
	m := graph.NewModule("AdaLayerNormZero")
	emb := m.Child("emb", timeAndLabel(d, g.classes, g.width))
	if ctx.first == nil {
		ctx.first = emb
	}
	act := m.Child("silu", silu())
	project := m.Child("linear", linear(d, g.width, 6*g.width, true))
	norm := m.Child("norm", plainNorm())
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		rows := f.Let("emb", f.Call1(emb, in[1], in[2], in[0]))
		rows = f.Let("emb", f.Call1(project, f.Call1(act, rows)))
		c := f.Split(rows, 6, 1)
		for i, name := range adaptiveRows {
			f.Let(name, c[i])
		}
		normed := f.Call1(norm, in[0])
		x := f.Let("x", modulated(f, normed, perToken(f, c[1]), perToken(f, c[0])))
		return []*graph.Tensor{x, c[2], c[3], c[4], c[5]}
	}
	return m
}

// timeAndLabel is CombinedTimestepLabelEmbeddings. One more class stands for
// none: some labels are dropped. The third input says in which type.
func timeAndLabel(d graph.DType, classes, width int64) *graph.Module {
	m := graph.NewModule("CombinedTimestepLabelEmbeddings")
	proj := m.Child("time_proj", timesteps(256, true))
	times := m.Child("timestep_embedder", timestepEmbedding(d, 256, width))
	class := m.Child("class_embedder", graph.NewModule("LabelEmbedding"))
	table := class.Child("embedding_table", embedding(d, classes+1, width))
	class.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		labels := f.Let("labels", f.Func(dropLabels, in[0])[0])
		return one(f.Let("embeddings", f.Call1(table, labels)))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		projected := f.Let("timesteps_proj", f.Call1(proj, in[0]))
		emb := f.Let("timesteps_emb", f.Call1(times, f.To(projected, in[2].DType)))
		labels := f.Let("class_labels", f.Call1(class, in[1]))
		return one(f.Let("conditioning", f.Add(emb, labels)))
	}
	return m
}

// dropLabels is token_drop.
func dropLabels(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	drop := f.Let("drop_ids", f.Compare(f.Empty(graph.F32, in[0].Numel()), nil))
	return one(f.Let("labels", f.Override(drop, in[0])))
}
