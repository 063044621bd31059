package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// cogVideoXFamily is the transformer of CogVideoX. Written from diffusers 0.42,
// models/transformers/cogvideox_transformer_3d.py.
var cogVideoXFamily = Family{
	Name:    "cogvideox",
	Classes: []string{"CogVideoXTransformer3DModel"},
	Source:  "huggingface/diffusers:src/diffusers/models/transformers/cogvideox_transformer_3d.py@v0.42.1",
	New:     newCogVideoX,
}

// cogVideoXConfig is what the program needs of a config.json.
type cogVideoXConfig struct {
	d                                                         graph.DType
	heads, headDim, width, in, out, layers, patch, time, text int64
	rows, columns, frames, squeeze, textTokens                int64 // of the videos it was made for, frames before the VAE squeezes them
	bias, flip, rotary                                        bool
	act, backend                                              string
	dropout                                                   float64
}

func readCogVideoX(c *Config, b Build) cogVideoXConfig {
	g := cogVideoXConfig{
		d: b.DType, heads: c.IntOr(30, "num_attention_heads"), headDim: c.IntOr(64, "attention_head_dim"), in: c.IntOr(16, "in_channels"),
		layers: c.IntOr(30, "num_layers"), patch: c.IntOr(2, "patch_size"), time: c.IntOr(512, "time_embed_dim"), text: c.IntOr(4096, "text_embed_dim"),
		rows: c.IntOr(60, "sample_height"), columns: c.IntOr(90, "sample_width"), frames: c.IntOr(49, "sample_frames"),
		squeeze: c.IntOr(4, "temporal_compression_ratio"), textTokens: c.IntOr(226, "max_text_seq_length"),
		bias: c.Bool(true, "attention_bias"), flip: c.Bool(true, "flip_sin_to_cos"), rotary: c.Bool(false, "use_rotary_positional_embeddings"),
		dropout: c.Float(0, "dropout"), backend: b.Attention.Backend,
	}
	g.width = g.heads * g.headDim
	g.out = c.IntOr(g.in, "out_channels")
	g.act = c.OneOf("activation_fn", "gelu-approximate", "gelu", "geglu")
	c.needsFused(b)
	c.OneOf("timestep_activation_fn", "silu")
	if !c.Bool(true, "norm_elementwise_affine") {
		c.fields.Add("model.config.norm_elementwise_affine", false, "true: norms without weights are not modelled", "true")
	}
	c.Refuses("ofs_embed_dim", "patch_size_t", "use_learned_positional_embeddings")
	return g
}

// latentFrames is how many frames the VAE makes of so many.
func (g cogVideoXConfig) latentFrames(frames int64) int64 { return (frames-1)/g.squeeze + 1 }

// latent is the shape of a latent video in the order of the network: frames
// before channels.
func (g cogVideoXConfig) latent(s Sizes) []int64 {
	switch {
	case len(s.Latent) == 4:
		return []int64{s.Latent[1], s.Latent[0], s.Latent[2], s.Latent[3]}
	case s.Height > 0 && s.Frames > 0:
		return []int64{g.latentFrames(s.Frames), g.in, s.Height / vaeScale, s.Width / vaeScale}
	}
	return []int64{g.latentFrames(g.frames), g.in, g.rows, g.columns}
}

// Names of the positions that the script computes for rotary embeddings.
const (
	rotaryCosines = "image_rotary_emb.0"
	rotarySines   = "image_rotary_emb.1"
)

func newCogVideoX(c Config, b Build) (*Network, error) {
	g := readCogVideoX(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := graph.NewModule("CogVideoXTransformer3DModel")
	embed := m.Child("patch_embed", videoPatchEmbed(g))
	drop := m.Child("embedding_dropout", dropout(g.dropout))
	proj := m.Child("time_proj", timesteps(g.width, g.flip))
	times := m.Child("time_embedding", timestepEmbedding(g.d, g.width, g.time))
	list := m.Child("transformer_blocks", graph.NewModule("ModuleList"))
	var positions [2]*graph.Tensor
	var blocks []*graph.Module
	for i := range g.layers {
		blocks = append(blocks, list.Child(strconv.FormatInt(i, 10), cogVideoXBlock(g, &positions)))
	}
	norm := m.Child("norm_final", layerNorm(g.d, g.width))
	normOut := m.Child("norm_out", adaLayerNorm(g.d, g.time, g.width))
	project := m.Child("proj_out", linear(g.d, g.width, g.patch*g.patch*g.out, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		positions = [2]*graph.Tensor{in[3], in[4]}
		temb := f.Let("t_emb", f.Call1(proj, in[2]))
		temb = f.Let("t_emb", f.To(temb, in[0].DType))
		emb := f.Let("emb", f.Call1(times, temb))
		hidden := f.Let("hidden_states", f.Call1(embed, in[1], in[0]))
		hidden = f.Let("hidden_states", f.Call1(drop, hidden))
		tokens := in[1].Shape.D[1]
		text := f.Let("encoder_hidden_states", f.Slice(hidden, 1, 0, tokens))
		hidden = f.Let("hidden_states", f.Slice(hidden, 1, tokens, hidden.Shape.D[1]))
		for block := range f.Layers(blocks) {
			out := f.Call(block, hidden, text, emb)
			hidden, text = f.Let("hidden_states", out[0]), f.Let("encoder_hidden_states", out[1])
		}
		hidden = f.Let("hidden_states", f.Call1(norm, hidden))
		hidden = f.Let("hidden_states", f.Call1(normOut, hidden, emb))
		hidden = f.Let("hidden_states", f.Call1(project, hidden))
		d := in[0].Shape.D
		// Samples and frames stay next to each other, so they are one dimension here.
		output := f.Let("output", f.Reshape(hidden, d[0]*d[1], d[3]/g.patch, d[4]/g.patch, -1, g.patch, g.patch))
		output = f.Permute(output, 0, 3, 1, 4, 2, 5)
		output = f.Let("output", f.Reshape(output, d[0], d[1], g.out, d[3], d[4]))
		f.DiscardBeside(text, output) // the text of the last block goes nowhere
		return one(output)
	}
	net := denoiser(m, func(f *graph.Frame, b Batch) *graph.Tensor {
		return f.Call1(m, b.Tensor(hiddenStates), b.Tensor(textStates), b.Tensor(timestep), b.Tensor(rotaryCosines), b.Tensor(rotarySines))
	})
	net.Blocks = blocks
	net.Inputs = func(s Sizes) []Input {
		latent := g.latent(s)
		shape := graph.D(append([]int64{s.Batch}, latent...)...)
		in := []Input{{target, s.Continuous, shape}, {timestep, graph.I64, graph.D(s.Batch)}, {hiddenStates, s.Continuous, shape}, s.text(g.textTokens, g.text)}
		if g.rotary {
			patches := latent[0] * (latent[2] / g.patch) * (latent[3] / g.patch)
			in = append(in, Input{rotaryCosines, graph.F32, graph.D(patches, g.headDim)}, Input{rotarySines, graph.F32, graph.D(patches, g.headDim)})
		}
		return in
	}
	return net, nil
}

// videoPatchEmbed is CogVideoXPatchEmbed, of text and frames: one sequence, the
// text first, with positions unless they are rotary.
func videoPatchEmbed(g cogVideoXConfig) *graph.Module {
	m := graph.NewModule("CogVideoXPatchEmbed")
	proj := m.Child("proj", conv2d(g.d, g.in, g.width, convShape{kernel: g.patch, stride: g.patch, bias: true}))
	textProj := m.Child("text_proj", linear(g.d, g.text, g.width, true))
	var places *graph.Param
	tokens := func(frames, rows, columns int64) int64 { return g.textTokens + frames*(rows/g.patch)*(columns/g.patch) }
	if !g.rotary {
		places = m.Buffer("pos_embedding", g.d, 1, tokens(g.latentFrames(g.frames), g.rows, g.columns), g.width)
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		text := f.Let("text_embeds", f.Call1(textProj, in[0]))
		d := in[1].Shape.D
		image := f.Let("image_embeds", f.Reshape(in[1], -1, d[2], d[3], d[4]))
		image = f.Let("image_embeds", f.Call1(proj, image))
		image = f.Let("image_embeds", f.View(image, d[0], d[1], g.width, d[3]/g.patch, d[4]/g.patch))
		image = f.Let("image_embeds", f.Transpose(f.View(image, d[0], d[1], g.width, -1), 2, 3))
		image = f.Let("image_embeds", f.Reshape(image, d[0], -1, g.width))
		embeds := f.Let("embeds", f.Contiguous(f.Cat(1, text, image)))
		if places == nil {
			return one(embeds)
		}
		positions := places.T()
		if d[1] != g.latentFrames(g.frames) || d[3] != g.rows || d[4] != g.columns { // made anew for this size
			positions = f.Let("pos_embedding", f.Empty(graph.F32, 1, tokens(d[1], d[3], d[4]), g.width))
		}
		positions = f.Let("pos_embedding", f.To(positions, embeds.DType))
		return one(f.Let("embeds", f.Add(embeds, positions)))
	}
	return m
}

// cogVideoXBlock is CogVideoXBlock, on hidden states, text and the time's
// embedding. Cosines and sines of the positions are there during a forward
// where they are rotary.
func cogVideoXBlock(g cogVideoXConfig, positions *[2]*graph.Tensor) *graph.Module {
	m := graph.NewModule("CogVideoXBlock")
	norm1 := m.Child("norm1", cogVideoXNormZero(g))
	attn := m.Child("attn1", cogVideoXAttention(g, positions))
	norm2 := m.Child("norm2", cogVideoXNormZero(g))
	ff := m.Child("ff", feedForwardEnding(g.d, g.width, g.act, g.dropout))
	if g.rotary {
		m.Beside = func() (args, bound []*graph.Tensor) { return nil, positions[:] }
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden, text, tokens := in[0], in[1], in[1].Shape.D[1]
		normalise := func(norm *graph.Module, gate string) (x, t, gateX, gateT *graph.Tensor) {
			n := f.Call(norm, hidden, text, in[2])
			return f.Let("norm_hidden_states", n[0]), f.Let("norm_encoder_hidden_states", n[1]), f.Let("gate_"+gate, n[2]), f.Let("enc_gate_"+gate, n[3])
		}
		x, t, gateX, gateT := normalise(norm1, "msa")
		out := f.Call(attn, x, t)
		attended, attendedText := f.Let("attn_hidden_states", out[0]), f.Let("attn_encoder_hidden_states", out[1])
		hidden = f.Let("hidden_states", f.Add(hidden, f.Mul(gateX, attended)))
		text = f.Let("encoder_hidden_states", f.Add(text, f.Mul(gateT, attendedText)))
		x, t, gateX, gateT = normalise(norm2, "ff")
		x = f.Let("norm_hidden_states", f.Cat(1, t, x))
		forward := f.Let("ff_output", f.Call1(ff, x))
		hidden = f.Let("hidden_states", f.Add(hidden, f.Mul(gateX, f.Slice(forward, 1, tokens, forward.Shape.D[1]))))
		text = f.Let("encoder_hidden_states", f.Add(text, f.Mul(gateT, f.Slice(forward, 1, 0, tokens))))
		return []*graph.Tensor{hidden, text}
	}
	return m
}

// cogVideoXNormZero is CogVideoXLayerNormZero: hidden states and text
// normalised by one norm, each moved by rows of its own, and a gate for each.
func cogVideoXNormZero(g cogVideoXConfig) *graph.Module {
	m := graph.NewModule("CogVideoXLayerNormZero")
	act, project, norm := m.Child("silu", silu()), m.Child("linear", linear(g.d, g.time, 6*g.width, true)), m.Child("norm", layerNorm(g.d, g.width))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		r := f.Split(f.Call1(project, f.Call1(act, in[2])), 6, 1)
		for i, name := range []string{"shift", "scale", "gate", "enc_shift", "enc_scale", "enc_gate"} {
			r[i] = f.Let(name, r[i])
		}
		moved := func(name string, x, shift, scale *graph.Tensor) *graph.Tensor {
			normed := f.Call1(norm, x)
			return f.Let(name, f.Add(f.Mul(normed, perRow(f, f.AddScalar(scale))), perRow(f, shift)))
		}
		hidden := moved("hidden_states", in[0], r[0], r[1])
		text := moved("encoder_hidden_states", in[1], r[3], r[4])
		return []*graph.Tensor{hidden, text, perRow(f, r[2]), perRow(f, r[5])}
	}
	return m
}

// cogVideoXAttention is Attention with CogVideoXAttnProcessor2_0: text and
// frames in one sequence, of which the frames are turned by their positions.
func cogVideoXAttention(g cogVideoXConfig, positions *[2]*graph.Tensor) *graph.Module {
	m := graph.NewModule("Attention")
	normQ, normK := m.Child("norm_q", layerNorm(g.d, g.headDim)), m.Child("norm_k", layerNorm(g.d, g.headDim))
	toQ, toK, toV := m.Child("to_q", linear(g.d, g.width, g.width, g.bias)), m.Child("to_k", linear(g.d, g.width, g.width, g.bias)), m.Child("to_v", linear(g.d, g.width, g.width, g.bias))
	out := m.Child("to_out", graph.NewModule("ModuleList"))
	project, drop := out.Child("0", linear(g.d, g.width, g.width, true)), out.Child("1", dropout(0))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[1].Shape.D[1]
		hidden := f.Let("hidden_states", f.Cat(1, in[1], in[0]))
		total := hidden.Shape.D[1]
		query, key, value := f.Let("query", f.Call1(toQ, hidden)), f.Let("key", f.Call1(toK, hidden)), f.Let("value", f.Call1(toV, hidden))
		heads := func(t *graph.Tensor) *graph.Tensor {
			return f.Transpose(f.View(t, batch, -1, g.heads, g.headDim), 1, 2)
		}
		query, key, value = f.Let("query", heads(query)), f.Let("key", heads(key)), f.Let("value", heads(value))
		query = f.Let("query", f.Call1(normQ, query))
		key = f.Let("key", f.Call1(normK, key))
		if g.rotary {
			turn := func(x *graph.Tensor) *graph.Tensor {
				turned := f.Func(turnPairs(2), f.Slice(x, 2, tokens, total), positions[0], positions[1])[0]
				return f.CopyInto(x, turned)
			}
			query = f.Let("query", turn(query))
			key = f.Let("key", turn(key))
		}
		hidden = f.Let("hidden_states", f.ScaledDotProductAttention(query, key, value, nil, graph.Attention{Backend: g.backend}))
		hidden = f.Let("hidden_states", f.Reshape(f.Transpose(hidden, 1, 2), batch, -1, g.width))
		hidden = f.Let("hidden_states", f.Call1(project, hidden))
		hidden = f.Let("hidden_states", f.Call1(drop, hidden))
		parts := f.SplitSizes(hidden, 1, tokens, total-tokens)
		return []*graph.Tensor{parts[1], parts[0]}
	}
	return m
}

// turnPairs is apply_rotary_emb: neighbouring columns are turned together by
// cosines and sines in fp32. sequence is the dimension tokens are counted in.
func turnPairs(sequence int) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		spread := func(t *graph.Tensor) *graph.Tensor {
			if sequence == 1 {
				return f.SliceWhole(f.Unsqueeze(f.SliceWhole(f.Unsqueeze(t, 0), 1), 2), 1)
			}
			return f.SliceWhole(f.Unsqueeze(f.Unsqueeze(t, 0), 0), 2)
		}
		x := in[0]
		cos, sin := f.Let("cos", spread(in[1])), f.Let("sin", spread(in[2]))
		shape := append(x.Shape.Slice()[:3:3], -1, 2)
		halves := f.UnbindAt(f.Reshape(x, shape...), -1)
		real, imaginary := f.Let("x_real", halves[0]), f.Let("x_imag", halves[1])
		rotated := f.Let("x_rotated", f.View(f.Cat(-1, f.Unsqueeze(f.Neg(imaginary), -1), f.Unsqueeze(real, -1)), x.Shape.Slice()...))
		straight := f.Mul(f.To(x, graph.F32), cos)
		across := f.Mul(f.To(rotated, graph.F32), sin)
		return one(f.Let("out", f.To(f.Add(straight, across), x.DType)))
	}
}

// feedForwardEnding is feedForward with final_dropout.
func feedForwardEnding(d graph.DType, width int64, act string, p float64) *graph.Module {
	m := feedForward(d, width, act, p)
	forward := m.Forward
	last := m.Children[0].Child("3", dropout(p))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.Let("hidden_states", f.Call1(last, forward(f, in...)[0])))
	}
	return m
}

// adaLayerNorm is AdaLayerNorm of an embedding, cut along its columns.
func adaLayerNorm(d graph.DType, in, width int64) *graph.Module {
	m := graph.NewModule("AdaLayerNorm")
	act, project, norm := m.Child("silu", silu()), m.Child("linear", linear(d, in, 2*width, true)), m.Child("norm", layerNorm(d, width))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		temb := f.Let("temb", f.Call1(project, f.Call1(act, in[1])))
		halves := f.Split(temb, 2, 1)
		shift, scale := f.Let("shift", halves[0]), f.Let("scale", halves[1])
		shift, scale = f.Let("shift", perRow(f, shift)), f.Let("scale", perRow(f, scale))
		normed := f.Call1(norm, in[0])
		return one(f.Let("x", f.Add(f.Mul(normed, f.AddScalar(scale)), shift)))
	}
	return m
}
