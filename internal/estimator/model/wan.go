package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// wanFamily is the transformer of Wan 2.1 and 2.2 that turns text into video.
// Written from diffusers 0.42, models/transformers/transformer_wan.py.
var wanFamily = Family{
	Name:    "wan",
	Classes: []string{"WanTransformer3DModel"},
	Source:  "huggingface/diffusers:src/diffusers/models/transformers/transformer_wan.py@v0.42.1",
	New:     newWan,
}

// wanConfig is what the program needs of a config.json.
type wanConfig struct {
	d                                                         graph.DType
	heads, headDim, width, in, out, layers, inner, text, freq int64
	patch                                                     []int64 // frames, rows, columns
	places                                                    int64   // positions there is a table for
	crossNorm                                                 bool
	backend                                                   string
}

func readWan(c *Config, b Build) wanConfig {
	g := wanConfig{
		d: b.DType, heads: c.IntOr(40, "num_attention_heads"), headDim: c.IntOr(128, "attention_head_dim"), in: c.IntOr(16, "in_channels"),
		layers: c.IntOr(40, "num_layers"), inner: c.IntOr(13824, "ffn_dim"), text: c.IntOr(4096, "text_dim"), freq: c.IntOr(256, "freq_dim"),
		patch: []int64{1, 2, 2}, places: c.IntOr(1024, "rope_max_seq_len"), crossNorm: c.Bool(true, "cross_attn_norm"), backend: b.Attention.Backend,
	}
	g.width = g.heads * g.headDim
	g.out = c.IntOr(g.in, "out_channels")
	if _, set := c.values["patch_size"]; set {
		g.patch = c.PerLevel(1, 3, "patch_size")
	}
	if g.patch[0] != 1 {
		c.fields.Add("model.config.patch_size[0]", g.patch[0], "1: frames in patches are not modelled", "1")
	}
	c.needsFused(b)
	c.OneOf("qk_norm", "rms_norm_across_heads")
	c.Refuses("image_dim", "added_kv_proj_dim", "pos_embed_seq_len")
	return g
}

// wanFrames is how many frames of a video its VAE makes one of.
const wanFrames = 4

// latent is the shape of a latent video: channels, frames, height, width.
func (g wanConfig) latent(s Sizes) []int64 {
	switch {
	case len(s.Latent) == 4:
		return s.Latent
	case s.Height > 0 && s.Frames > 0:
		return []int64{g.in, (s.Frames-1)/wanFrames + 1, s.Height / vaeScale, s.Width / vaeScale}
	}
	return []int64{g.in, 21, 60, 104} // 81 frames of 480 by 832
}

func newWan(c Config, b Build) (*Network, error) {
	g := readWan(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := graph.NewModule("WanTransformer3DModel")
	table := m.Param("scale_shift_table", g.d, 1, 2, g.width)
	rope := m.Child("rope", gridPositions(g))
	embed := m.Child("patch_embedding", conv3d(g.d, g.in, g.width, graph.D(g.patch...), graph.D(g.patch...), graph.D(0, 0, 0), 1, true))
	condition := m.Child("condition_embedder", wanCondition(g))
	list := m.Child("blocks", graph.NewModule("ModuleList"))
	var positions [2]*graph.Tensor
	var blocks []*graph.Module
	for i := range g.layers {
		block := list.Child(strconv.FormatInt(i, 10), wanBlock(g, &positions))
		block.Beside = func() (args, bound []*graph.Tensor) { return nil, positions[:] }
		blocks = append(blocks, block)
	}
	norm := m.Child("norm_out", plainNorm())
	project := m.Child("proj_out", linear(g.d, g.width, g.out*g.patch[1]*g.patch[2], true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		d := in[0].Shape.D
		rotary := f.Call(rope, in[0])
		positions = [2]*graph.Tensor{f.Let("rotary_emb.0", rotary[0]), f.Let("rotary_emb.1", rotary[1])}
		hidden := f.Let("hidden_states", f.Call1(embed, in[0]))
		hidden = f.Let("hidden_states", f.Transpose(f.Reshape(hidden, d[0], g.width, -1), 1, 2))
		hidden = f.Let("hidden_states", f.Contiguous(hidden))
		out := f.Call(condition, in[1], in[2])
		temb, rows, text := f.Let("temb", out[0]), f.Let("timestep_proj", out[1]), f.Let("encoder_hidden_states", out[2])
		rows = f.Let("timestep_proj", f.View(rows, d[0], 6, -1))
		for block := range f.Layers(blocks) {
			hidden = f.Let("hidden_states", f.Call1(block, hidden, text, rows))
		}
		halves := f.Split(f.Add(table.T(), f.Unsqueeze(temb, 1)), 2, 1)
		shift, scale := f.Let("shift", halves[0]), f.Let("scale", halves[1])
		normed := modulated(f, f.Call1(norm, f.To(hidden, graph.F32)), scale, shift)
		hidden = f.Let("hidden_states", f.To(normed, hidden.DType))
		hidden = f.Let("hidden_states", f.Call1(project, hidden))
		// Patches are one frame long, and frames stand before rows on both sides.
		p := g.patch[1]
		patches := f.Let("hidden_states", f.Reshape(hidden, d[0], d[2]*(d[3]/p), d[4]/p, p, p, -1))
		output := f.Reshape(f.Permute(patches, 0, 5, 1, 3, 2, 4), d[0], g.out, d[2], d[3], d[4])
		return one(f.Let("output", output))
	}
	net := denoiser(m, func(f *graph.Frame, b Batch) *graph.Tensor {
		return f.Call1(m, b.Tensor(hiddenStates), b.Tensor(textStates), b.Tensor(timestep))
	})
	net.Blocks = blocks
	net.Inputs = func(s Sizes) []Input {
		shape := graph.D(append([]int64{s.Batch}, g.latent(s)...)...)
		return []Input{{target, s.Continuous, shape}, {timestep, graph.I64, graph.D(s.Batch)}, {hiddenStates, s.Continuous, shape}, s.text(512, g.text)}
	}
	return net, nil
}

// gridPositions is WanRotaryPosEmbed: a table of cosines and sines for frames,
// rows and columns, spread over the grid of a latent's patches.
func gridPositions(g wanConfig) *graph.Module {
	m := graph.NewModule("WanRotaryPosEmbed")
	tables := []*graph.Param{m.Buffer("freqs_cos", g.d, g.places, g.headDim), m.Buffer("freqs_sin", g.d, g.places, g.headDim)}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		d := in[0].Shape.D
		tokens := (d[2] / g.patch[0]) * (d[3] / g.patch[1]) * (d[4] / g.patch[2])
		out := make([]*graph.Tensor, len(tables))
		for i, t := range tables {
			out[i] = f.Let(t.Name, f.Empty(t.DType, 1, tokens, 1, g.headDim))
		}
		return out
	}
	return m
}

// wanCondition is WanTimeTextImageEmbedding without an image, of text and
// times: the time's embedding, its six rows for the blocks, and the text.
func wanCondition(g wanConfig) *graph.Module {
	m := graph.NewModule("WanTimeTextImageEmbedding")
	proj := m.Child("timesteps_proj", timesteps(g.freq, true))
	embed := m.Child("time_embedder", timestepEmbedding(g.d, g.freq, g.width))
	act := m.Child("act_fn", silu())
	rows := m.Child("time_proj", linear(g.d, g.width, 6*g.width, true))
	words := m.Child("text_embedder", textProjection(g.d, g.text, g.width, gelu()))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		time := f.Let("timestep", f.Call1(proj, in[1]))
		time = f.Let("timestep", f.To(time, g.d))
		temb := f.Let("temb", f.To(f.Call1(embed, time), in[0].DType))
		projected := f.Let("timestep_proj", f.Call1(rows, f.Call1(act, temb)))
		return []*graph.Tensor{temb, projected, f.Let("encoder_hidden_states", f.Call1(words, in[0]))}
	}
	return m
}

// wanBlock is WanTransformerBlock, on hidden states, text and the time's six
// rows. Sums and norms are in fp32.
func wanBlock(g wanConfig, positions *[2]*graph.Tensor) *graph.Module {
	m := graph.NewModule("WanTransformerBlock")
	table := m.Param("scale_shift_table", g.d, 1, 6, g.width)
	norm1, attn1 := m.Child("norm1", plainNorm()), m.Child("attn1", wanAttention(g, positions))
	attn2 := m.Child("attn2", wanAttention(g, nil))
	norm2 := m.Child("norm2", wanCrossNorm(g))
	ff := m.Child("ffn", feedForwardTo(g.d, g.width, g.inner, "gelu-approximate", 0))
	norm3 := m.Child("norm3", plainNorm())
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := in[0]
		wide := func(t *graph.Tensor) *graph.Tensor { return f.To(t, graph.F32) }
		r := f.Split(f.Add(table.T(), wide(in[2])), 6, 1)
		for i, name := range adaptiveRows {
			r[i] = f.Let(name, r[i])
		}
		normed := f.Let("norm_hidden_states", f.To(modulated(f, f.Call1(norm1, wide(hidden)), r[1], r[0]), hidden.DType))
		output := f.Let("attn_output", f.Call1(attn1, normed, nil))
		raised := wide(hidden)
		hidden = f.Let("hidden_states", f.To(f.Add(raised, f.Mul(output, r[2])), hidden.DType))
		normed = f.Let("norm_hidden_states", f.To(f.Call1(norm2, wide(hidden)), hidden.DType))
		output = f.Let("attn_output", f.Call1(attn2, normed, in[1]))
		hidden = f.Let("hidden_states", f.Add(hidden, output))
		normed = f.Let("norm_hidden_states", f.To(modulated(f, f.Call1(norm3, wide(hidden)), r[4], r[3]), hidden.DType))
		forward := f.Let("ff_output", f.Call1(ff, normed))
		raised = wide(hidden)
		return one(f.Let("hidden_states", f.To(f.Add(raised, f.Mul(wide(forward), r[5])), hidden.DType)))
	}
	return m
}

// wanCrossNorm is FP32LayerNorm before the attention to the text, or nothing.
func wanCrossNorm(g wanConfig) *graph.Module {
	if !g.crossNorm {
		return function("Identity", func(_ *graph.Frame, x *graph.Tensor) *graph.Tensor { return x })
	}
	m := graph.NewModule("FP32LayerNorm")
	w, b := m.Param("weight", g.d, g.width), m.Param("bias", g.d, g.width)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		weight, bias := f.Let("weight", f.To(w.T(), graph.F32)), f.Let("bias", f.To(b.T(), graph.F32))
		return one(f.LayerNorm(in[0], weight, bias))
	}
	return m
}

// wanAttention is WanAttention with WanAttnProcessor: to itself, turned by
// positions, or to a text where there are none.
func wanAttention(g wanConfig, positions *[2]*graph.Tensor) *graph.Module {
	m := graph.NewModule("WanAttention")
	project := func(name string) *graph.Module { return m.Child(name, linear(g.d, g.width, g.width, true)) }
	toQ, toK, toV := project("to_q"), project("to_k"), project("to_v")
	list := m.Child("to_out", graph.NewModule("ModuleList"))
	out, drop := list.Child("0", linear(g.d, g.width, g.width, true)), list.Child("1", dropout(0))
	normQ, normK := m.Child("norm_q", rmsNorm(g.d, g.width)), m.Child("norm_k", rmsNorm(g.d, g.width))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, source := in[0].Shape.D[0], in[0]
		if in[1] != nil {
			source = in[1]
		}
		query, key, value := f.Let("query", f.Call1(toQ, in[0])), f.Let("key", f.Call1(toK, source)), f.Let("value", f.Call1(toV, source))
		query = f.Let("query", f.Call1(normQ, query))
		key = f.Let("key", f.Call1(normK, key))
		divided := func(name string, t *graph.Tensor) *graph.Tensor {
			return f.Let(name, f.View(t, batch, -1, g.heads, g.headDim))
		}
		query, key, value = divided("query", query), divided("key", key), divided("value", value)
		if positions != nil {
			query = f.Let("query", f.Func(turnHalves, query, positions[0], positions[1])[0])
			key = f.Let("key", f.Func(turnHalves, key, positions[0], positions[1])[0])
		}
		hidden := f.Let("hidden_states", f.Func(nativeAttention(g.backend), query, key, value)[0])
		hidden = f.Let("hidden_states", f.Reshape(hidden, batch, -1, g.width))
		hidden = f.Let("hidden_states", f.To(hidden, query.DType))
		hidden = f.Let("hidden_states", f.Call1(out, hidden))
		return one(f.Let("hidden_states", f.Call1(drop, hidden)))
	}
	return m
}

// turnHalves is WanAttnProcessor's apply_rotary_emb: each half of the
// neighbouring columns is computed and written into an empty result.
func turnHalves(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	x := in[0]
	halves := f.UnbindAt(f.Reshape(x, append(x.Shape.Slice()[:3:3], -1, 2)...), -1)
	x1, x2 := f.Let("x1", halves[0]), f.Let("x2", halves[1])
	cos, sin := f.Let("cos", f.SliceStep(in[1], 0, 2)), f.Let("sin", f.SliceStep(in[2], 1, 2))
	out := f.Let("out", f.Empty(x.DType, x.Shape.Slice()...))
	first := f.Mul(x1, cos)
	out = f.Let("out", f.CopyInto(out, f.Sub(first, f.Mul(x2, sin))))
	second := f.Mul(x1, sin)
	out = f.Let("out", f.CopyInto(out, f.Add(second, f.Mul(x2, cos))))
	return one(out)
}
