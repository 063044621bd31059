package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// pixartFamily is PixArt-alpha and -sigma. Written from diffusers 0.42,
// models/transformers/pixart_transformer_2d.py.
var pixartFamily = Family{
	Name:    "pixart",
	Classes: []string{"PixArtTransformer2DModel"},
	Source:  "huggingface/diffusers:src/diffusers/models/transformers/pixart_transformer_2d.py@v0.42.1",
	New:     newPixArt,
}

// pixartConfig is what the program needs of a config.json.
type pixartConfig struct {
	ditConfig
	cross, caption int64 // width of the text in the blocks, and as it comes; 0 is as in the blocks
	conditions     bool  // the size of the image and its aspect ratio are embedded too
}

func readPixArt(c *Config, b Build) pixartConfig {
	g := pixartConfig{ditConfig: readDiffusionTransformer(c, b, 128)}
	g.cross, g.caption = c.IntOr(1152, "cross_attention_dim"), c.Count(0, "caption_channels")
	g.conditions = c.Bool(g.grid*g.patch == 128, "use_additional_conditions")
	c.OneOf("norm_type", "ada_norm_single")
	c.OneOf("attention_type", "default")
	return g
}

// Names of what PixArt is told of an image.
const (
	resolution  = "resolution"
	aspectRatio = "aspect_ratio"
)

func newPixArt(c Config, b Build) (*Network, error) {
	g := readPixArt(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := graph.NewModule("PixArtTransformer2DModel")
	table := m.Param("scale_shift_table", b.DType, 2, g.width)
	embed := m.Child("pos_embed", patchEmbed(b.DType, g.in, g.width, g.patch, g.grid, false))
	list := m.Child("transformer_blocks", graph.NewModule("ModuleList"))
	var blocks []*graph.Module
	for i := range g.layers {
		blocks = append(blocks, list.Child(strconv.FormatInt(i, 10), pixartBlock(g, b.DType)))
	}
	norm := m.Child("norm_out", plainNorm())
	project := m.Child("proj_out", linear(b.DType, g.width, g.patch*g.patch*g.out, true))
	single := m.Child("adaln_single", adaLayerNormSingle(b.DType, g.width, g.conditions))
	var caption *graph.Module
	if g.caption > 0 {
		caption = m.Child("caption_projection", textProjection(b.DType, g.caption, g.width, gelu()))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Call1(embed, in[0]))
		times := f.Call(single, in[2], hidden, in[3], in[4])
		timestep, embedded := f.Let("timestep", times[0]), f.Let("embedded_timestep", times[1])
		text := f.Let("encoder_hidden_states", in[1])
		if caption != nil {
			text = f.Let("encoder_hidden_states", f.Call1(caption, text))
			text = f.Let("encoder_hidden_states", f.View(text, hidden.Shape.D[0], -1, g.width))
		}
		for block := range f.Layers(blocks) {
			hidden = f.Let("hidden_states", f.Call1(block, hidden, text, timestep))
		}
		rows := f.Split(f.Add(f.Unsqueeze(table.T(), 0), perToken(f, embedded)), 2, 1)
		shift, scale := f.Let("shift", rows[0]), f.Let("scale", rows[1])
		hidden = f.Let("hidden_states", f.Call1(norm, hidden))
		hidden = f.Let("hidden_states", modulated(f, hidden, scale, shift))
		hidden = f.Let("hidden_states", f.Call1(project, hidden))
		return one(unpatchify(f, hidden, in[0].Shape.D[2]/g.patch, in[0].Shape.D[3]/g.patch, g.patch, g.out))
	}
	net := denoiser(m, func(f *graph.Frame, b Batch) *graph.Tensor {
		return f.Call1(m, b.Tensor(hiddenStates), b.Tensor(textStates), b.Tensor(timestep), b.Tensor(resolution), b.Tensor(aspectRatio))
	})
	net.Blocks = blocks
	net.Inputs = func(s Sizes) []Input {
		l := latentOf{g.in, g.grid * g.patch, g.grid * g.patch}
		width := g.caption
		if width == 0 {
			width = g.cross
		}
		in := s.denoised(l, s.latents(hiddenStates, l), s.text(120, width))
		if g.conditions {
			in = append(in, Input{resolution, s.Continuous, graph.D(s.Batch, 2)}, Input{aspectRatio, s.Continuous, graph.D(s.Batch, 1)})
		}
		return in
	}
	return net, nil
}

// pixartBlock is BasicTransformerBlock with norm_type ada_norm_single: all
// blocks share what the time is projected to, and each adds rows of its own.
// Its inputs are hidden states, the text and the time's six rows.
func pixartBlock(g pixartConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("BasicTransformerBlock")
	table := m.Param("scale_shift_table", d, 6, g.width)
	a := attentionOf{query: g.width, cross: g.width, heads: g.heads, width: g.headDim, bias: g.bias, outBias: true, dropout: g.dropout, attention: g.attention}
	norm1, attn1 := m.Child("norm1", plainNorm()), m.Child("attn1", diffusersAttention(d, a))
	a.cross = g.cross
	norm2, attn2 := m.Child("norm2", plainNorm()), m.Child("attn2", diffusersAttention(d, a))
	ff := m.Child("ff", feedForward(d, g.width, g.act, g.dropout))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		r := f.Split(f.Add(f.Unsqueeze(table.T(), 0), f.View(in[2], in[0].Shape.D[0], 6, -1)), 6, 1)
		for i, name := range adaptiveRows {
			r[i] = f.Let(name, r[i])
		}
		normed := f.Let("norm_hidden_states", f.Call1(norm1, in[0]))
		normed = f.Let("norm_hidden_states", modulated(f, normed, r[1], r[0]))
		output := f.Let("attn_output", f.Call1(attn1, normed, nil, nil))
		output = f.Let("attn_output", f.Mul(r[2], output))
		hidden := f.Let("hidden_states", f.Add(output, in[0]))
		normed = f.Let("norm_hidden_states", hidden)
		output = f.Let("attn_output", f.Call1(attn2, normed, in[1], nil))
		hidden = f.Let("hidden_states", f.Add(output, hidden))
		normed = f.Let("norm_hidden_states", f.Call1(norm2, hidden))
		normed = f.Let("norm_hidden_states", modulated(f, normed, r[4], r[3]))
		forward := f.Let("ff_output", f.Call1(ff, normed))
		forward = f.Let("ff_output", f.Mul(r[5], forward))
		return one(f.Let("hidden_states", f.Add(forward, hidden)))
	}
	return m
}

// adaLayerNormSingle is AdaLayerNormSingle: six rows for all blocks, and the
// embedding they were made of. The second input says in which type; the image's
// size and aspect ratio follow where they are embedded.
func adaLayerNormSingle(d graph.DType, width int64, conditions bool) *graph.Module {
	m := graph.NewModule("AdaLayerNormSingle")
	emb := m.Child("emb", timeAndSize(d, width, conditions))
	act := m.Child("silu", silu())
	project := m.Child("linear", linear(d, width, 6*width, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		embedded := f.Let("embedded_timestep", f.Call1(emb, in...))
		return []*graph.Tensor{f.Call1(project, f.Call1(act, embedded)), embedded}
	}
	return m
}

// timeAndSize is PixArtAlphaCombinedTimestepSizeEmbeddings.
func timeAndSize(d graph.DType, width int64, conditions bool) *graph.Module {
	m := graph.NewModule("PixArtAlphaCombinedTimestepSizeEmbeddings")
	proj := m.Child("time_proj", timesteps(256, true))
	times := m.Child("timestep_embedder", timestepEmbedding(d, 256, width))
	var more, size, aspect *graph.Module
	if conditions {
		more = m.Child("additional_condition_proj", timesteps(256, true))
		size = m.Child("resolution_embedder", timestepEmbedding(d, 256, width/3))
		aspect = m.Child("aspect_ratio_embedder", timestepEmbedding(d, 256, width/3))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		projected := f.Let("timesteps_proj", f.Call1(proj, in[0]))
		emb := f.Let("timesteps_emb", f.Call1(times, f.To(projected, in[1].DType)))
		if !conditions {
			return one(emb)
		}
		further := func(name string, t *graph.Tensor, embed *graph.Module) *graph.Tensor {
			e := f.Let(name, f.To(f.Call1(more, f.View(t, -1)), in[1].DType))
			return f.Let(name, f.Reshape(f.Call1(embed, e), emb.Shape.D[0], -1))
		}
		r, a := further("resolution_emb", in[2], size), further("aspect_ratio_emb", in[3], aspect)
		return one(f.Let("conditioning", f.Add(emb, f.Cat(1, r, a))))
	}
	return m
}

// textProjection is PixArtAlphaTextProjection.
func textProjection(d graph.DType, in, width int64, act *graph.Module) *graph.Module {
	m := graph.NewModule("PixArtAlphaTextProjection")
	layers := []*graph.Module{m.Child("linear_1", linear(d, in, width, true)), m.Child("act_1", act), m.Child("linear_2", linear(d, width, width, true))}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := in[0]
		for _, l := range layers {
			hidden = f.Let("hidden_states", f.Call1(l, hidden))
		}
		return one(hidden)
	}
	return m
}
