package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// ltxFamily is the transformer of LTX-Video. Written from diffusers 0.42,
// models/transformers/transformer_ltx.py.
var ltxFamily = Family{
	Name:    "ltx",
	Classes: []string{"LTXVideoTransformer3DModel"},
	Source:  "huggingface/diffusers:src/diffusers/models/transformers/transformer_ltx.py@v0.42.1",
	New:     newLTX,
}

// ltxConfig is what the program needs of a config.json.
type ltxConfig struct {
	d                                                      graph.DType
	heads, headDim, width, in, out, layers, cross, caption int64
	bias, outBias                                          bool
	act, backend                                           string
}

func readLTX(c *Config, b Build) ltxConfig {
	g := ltxConfig{
		d: b.DType, heads: c.IntOr(32, "num_attention_heads"), headDim: c.IntOr(64, "attention_head_dim"), in: c.IntOr(128, "in_channels"),
		layers: c.IntOr(28, "num_layers"), cross: c.IntOr(2048, "cross_attention_dim"), caption: c.IntOr(4096, "caption_channels"),
		bias: c.Bool(true, "attention_bias"), outBias: c.Bool(true, "attention_out_bias"), backend: b.Attention.Backend,
	}
	g.width = g.heads * g.headDim
	g.out = c.IntOr(g.in, "out_channels")
	g.act = c.OneOf("activation_fn", "gelu-approximate", "gelu", "geglu")
	c.needsFused(b)
	c.OneOf("qk_norm", "rms_norm_across_heads")
	c.Refuses("norm_elementwise_affine")
	for _, key := range []string{"patch_size", "patch_size_t"} {
		if n := c.IntOr(1, key); n != 1 {
			c.fields.Add("model.config."+key, n, "1: latents come packed", "1")
		}
	}
	return g
}

// ltxVAE is by how much a video's sides and frames are longer than its
// latent's (AutoencoderKLLTXVideo).
var ltxVAE = struct{ side, frames int64 }{32, 8}

// latent is the shape of a latent video: channels, frames, height, width.
func (g ltxConfig) latent(s Sizes) []int64 {
	switch {
	case len(s.Latent) == 4:
		return s.Latent
	case s.Height > 0 && s.Frames > 0:
		return []int64{g.in, (s.Frames-1)/ltxVAE.frames + 1, s.Height / ltxVAE.side, s.Width / ltxVAE.side}
	}
	return []int64{g.in, 7, 16, 24} // 49 frames of 512 by 768
}

const textMask = "encoder_attention_mask"

func newLTX(c Config, b Build) (*Network, error) {
	g := readLTX(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := graph.NewModule("LTXVideoTransformer3DModel")
	table := m.Param("scale_shift_table", g.d, 2, g.width)
	embed := m.Child("proj_in", linear(g.d, g.in, g.width, true))
	times := m.Child("time_embed", adaLayerNormSingle(g.d, g.width, false))
	caption := m.Child("caption_projection", textProjection(g.d, g.caption, g.width, gelu()))
	var size []int64 // of the latent in hand
	rope := m.Child("rope", videoPositions(g.width, &size))
	list := m.Child("transformer_blocks", graph.NewModule("ModuleList"))
	var positions [2]*graph.Tensor
	var mask *graph.Tensor
	var blocks []*graph.Module
	for i := range g.layers {
		block := list.Child(strconv.FormatInt(i, 10), ltxBlock(g, &positions))
		block.Beside = func() (args, bound []*graph.Tensor) { return nil, positions[:] }
		blocks = append(blocks, block)
	}
	norm := m.Child("norm_out", plainNorm())
	project := m.Child("proj_out", linear(g.d, g.width, g.out, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		rotary := f.Call(rope, in[0])
		positions = [2]*graph.Tensor{f.Let("image_rotary_emb.0", rotary[0]), f.Let("image_rotary_emb.1", rotary[1])}
		mask = f.Let("encoder_attention_mask", f.MulScalar(f.AddScalar(f.To(in[3], in[0].DType))))
		mask = f.Let("encoder_attention_mask", f.Unsqueeze(mask, 1))
		batch := in[0].Shape.D[0]
		hidden := f.Let("hidden_states", f.Call1(embed, in[0]))
		time := f.Call(times, in[2], hidden)
		temb := f.Let("temb", f.View(time[0], batch, -1, 6*g.width))
		embedded := f.Let("embedded_timestep", f.View(time[1], batch, -1, g.width))
		text := f.Let("encoder_hidden_states", f.Call1(caption, in[1]))
		text = f.Let("encoder_hidden_states", f.View(text, batch, -1, g.width))
		for block := range f.Layers(blocks) {
			hidden = f.Let("hidden_states", f.Call1(block, hidden, text, temb, mask))
		}
		rows := f.Let("scale_shift_values", f.Add(f.Unsqueeze(f.Unsqueeze(table.T(), 0), 0), f.Unsqueeze(f.SliceWhole(embedded, 2), 2)))
		shift, scale := f.Let("shift", f.Select(rows, 2)), f.Let("scale", f.Select(rows, 2))
		hidden = f.Let("hidden_states", f.Call1(norm, hidden))
		hidden = f.Let("hidden_states", modulated(f, hidden, scale, shift))
		return one(f.Let("output", f.Call1(project, hidden)))
	}
	net := denoiser(m, func(f *graph.Frame, b Batch) *graph.Tensor {
		return f.Call1(m, b.Tensor(hiddenStates), b.Tensor(textStates), b.Tensor(timestep), b.Tensor(textMask))
	})
	net.Blocks = blocks
	net.Inputs = func(s Sizes) []Input {
		size = g.latent(s)
		text := s.text(128, g.caption)
		packed := graph.D(s.Batch, size[1]*size[2]*size[3], g.in)
		return []Input{
			{target, s.Continuous, packed},
			{timestep, graph.I64, graph.D(s.Batch)},
			{hiddenStates, s.Continuous, packed},
			text,
			{textMask, s.Continuous, graph.D(s.Batch, text.Shape.D[1])},
		}
	}
	return net, nil
}

// videoPositions is LTXVideoRotaryPosEmbed: cosines and sines in fp32 for every
// column of every token, of a latent of the size given.
func videoPositions(width int64, size *[]int64) *graph.Module {
	m := graph.NewModule("LTXVideoRotaryPosEmbed")
	grid := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // _prepare_video_coords
		frames, rows, columns := (*size)[1], (*size)[2], (*size)[3]
		f.Let("grid_h", f.Empty(graph.F32, rows))
		f.Let("grid_w", f.Empty(graph.F32, columns))
		f.Let("grid_f", f.Empty(graph.F32, frames))
		f.Let("grid", f.Empty(graph.F32, 3, frames, rows, columns))
		return one(f.Let("grid", f.Empty(graph.F32, in[0].Shape.D[0], frames*rows*columns, 3)))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		places := f.Let("grid", f.Func(grid, in[0])[0])
		batch, tokens, each := places.Shape.D[0], places.Shape.D[1], width/6
		exponents := f.Empty(graph.F32, each)
		freqs := f.Empty(graph.F32, each)
		f.Drop(f.Empty(graph.I64)) // the base, a scalar
		f.Drop(exponents)
		freqs = f.Let("freqs", freqs)
		freqs = f.Let("freqs", f.MulScalar(f.MulScalar(freqs)))
		spread := f.AddScalar(f.MulScalar(f.Unsqueeze(places, -1)))
		freqs = f.Let("freqs", f.Mul(freqs, spread))
		freqs = f.Let("freqs", f.Reshape(f.Transpose(freqs, -1, -2), batch, tokens, 3*each))
		wave := func(name string) *graph.Tensor {
			t := f.MulScalar(freqs)
			twice := f.Empty(graph.F32, batch, tokens, 6*each)
			f.Drop(t)
			return f.Let(name, twice)
		}
		cos, sin := wave("cos_freqs"), wave("sin_freqs")
		if rest := width % 6; rest != 0 {
			ones, zeros := f.Let("cos_padding", f.Empty(graph.F32, batch, tokens, rest)), f.Let("sin_padding", f.Empty(graph.F32, batch, tokens, rest))
			cos = f.Let("cos_freqs", f.Cat(-1, ones, cos))
			sin = f.Let("sin_freqs", f.Cat(-1, zeros, sin))
		}
		return []*graph.Tensor{cos, sin}
	}
	return m
}

// ltxBlock is LTXVideoTransformerBlock, on hidden states, text, the time's six
// rows and what hides tokens of the text.
func ltxBlock(g ltxConfig, positions *[2]*graph.Tensor) *graph.Module {
	m := graph.NewModule("LTXVideoTransformerBlock")
	table := m.Param("scale_shift_table", g.d, 6, g.width)
	norm1, attn1 := m.Child("norm1", diffusersPlainRMSNorm()), m.Child("attn1", ltxAttention(g, g.width, positions))
	norm2, attn2 := m.Child("norm2", diffusersPlainRMSNorm()), m.Child("attn2", ltxAttention(g, g.cross, nil))
	ff := m.Child("ff", feedForward(g.d, g.width, g.act, 0))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden, temb := in[0], in[2]
		normed := f.Let("norm_hidden_states", f.Call1(norm1, hidden))
		rows := f.Let("ada_values", f.Add(f.Unsqueeze(f.Unsqueeze(table.T(), 0), 0), f.View(temb, hidden.Shape.D[0], temb.Shape.D[1], 6, -1)))
		r := f.UnbindAt(rows, 2)
		for i, name := range adaptiveRows {
			r[i] = f.Let(name, r[i])
		}
		normed = f.Let("norm_hidden_states", modulated(f, normed, r[1], r[0]))
		output := f.Let("attn_hidden_states", f.Call1(attn1, normed, nil, nil))
		hidden = f.Let("hidden_states", f.Add(hidden, f.Mul(output, r[2])))
		output = f.Let("attn_hidden_states", f.Call1(attn2, hidden, in[1], in[3]))
		hidden = f.Let("hidden_states", f.Add(hidden, output))
		normed = f.Let("norm_hidden_states", modulated(f, f.Call1(norm2, hidden), r[4], r[3]))
		forward := f.Let("ff_output", f.Call1(ff, normed))
		return one(f.Let("hidden_states", f.Add(hidden, f.Mul(forward, r[5]))))
	}
	return m
}

// ltxAttention is LTXAttention with LTXVideoAttnProcessor: queries and keys are
// normalised across heads, and turned before they are divided into them.
func ltxAttention(g ltxConfig, cross int64, positions *[2]*graph.Tensor) *graph.Module {
	m := graph.NewModule("LTXAttention")
	normQ, normK := m.Child("norm_q", rmsNorm(g.d, g.width)), m.Child("norm_k", rmsNorm(g.d, g.width))
	toQ, toK, toV := m.Child("to_q", linear(g.d, g.width, g.width, g.bias)), m.Child("to_k", linear(g.d, cross, g.width, g.bias)), m.Child("to_v", linear(g.d, cross, g.width, g.bias))
	out := m.Child("to_out", graph.NewModule("ModuleList"))
	project, drop := out.Child("0", linear(g.d, g.width, g.width, g.outBias)), out.Child("1", dropout(0))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch := in[0].Shape.D[0]
		source := in[0]
		var mask *graph.Tensor
		if in[1] != nil {
			source = in[1]
			mask = f.Let("attention_mask", f.RepeatFirst(in[2], g.heads)) // prepare_attention_mask
			mask = f.Let("attention_mask", f.View(mask, batch, g.heads, -1, mask.Shape.At(-1)))
		}
		query, key, value := f.Let("query", f.Call1(toQ, in[0])), f.Let("key", f.Call1(toK, source)), f.Let("value", f.Call1(toV, source))
		query = f.Let("query", f.Call1(normQ, query))
		key = f.Let("key", f.Call1(normK, key))
		if positions != nil {
			query = f.Let("query", f.Func(turnNeighbours, query, positions[0], positions[1])[0])
			key = f.Let("key", f.Func(turnNeighbours, key, positions[0], positions[1])[0])
		}
		divided := func(name string, t *graph.Tensor) *graph.Tensor {
			return f.Let(name, f.View(t, batch, -1, g.heads, g.headDim))
		}
		query, key, value = divided("query", query), divided("key", key), divided("value", value)
		hidden := f.Let("hidden_states", f.Func(nativeAttention(g.backend), query, key, value, mask)[0])
		hidden = f.Let("hidden_states", f.Reshape(hidden, batch, -1, g.width))
		hidden = f.Let("hidden_states", f.To(hidden, query.DType))
		hidden = f.Let("hidden_states", f.Call1(project, hidden))
		return one(f.Let("hidden_states", f.Call1(drop, hidden)))
	}
	return m
}

// turnNeighbours is apply_rotary_emb over all columns of a token: neighbouring
// ones are turned together by cosines and sines in fp32.
func turnNeighbours(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	x, cos, sin := in[0], in[1], in[2]
	halves := f.UnbindAt(f.View(x, append(x.Shape.Slice()[:2:2], -1, 2)...), -1)
	real, imaginary := f.Let("x_real", halves[0]), f.Let("x_imag", halves[1])
	rotated := f.Let("x_rotated", f.View(f.Cat(-1, f.Unsqueeze(f.Neg(imaginary), -1), f.Unsqueeze(real, -1)), x.Shape.Slice()...))
	straight := f.Mul(f.To(x, graph.F32), cos)
	return one(f.Let("out", f.To(f.Add(straight, f.Mul(f.To(rotated, graph.F32), sin)), x.DType)))
}

// diffusersPlainRMSNorm is normalization.py's RMSNorm without a weight.
func diffusersPlainRMSNorm() *graph.Module {
	m := graph.NewModule("RMSNorm")
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		variance := f.Let("variance", f.MeanLast(f.Pow(f.To(in[0], graph.F32))))
		hidden := f.Let("hidden_states", f.Mul(in[0], f.Rsqrt(f.AddScalar(variance))))
		return one(f.Let("hidden_states", f.To(hidden, in[0].DType)))
	}
	return m
}
