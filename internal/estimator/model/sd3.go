package model

import (
	"slices"
	"strconv"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// sd3Family is the transformer of Stable Diffusion 3 and 3.5 (MMDiT): image and
// text have weights of their own and look at each other. Written from diffusers
// 0.42 and 0.32, models/transformers/transformer_sd3.py and attention.py.
var sd3Family = Family{
	Name:    "sd3",
	Classes: []string{"SD3Transformer2DModel"},
	Source:  "huggingface/diffusers:src/diffusers/models/transformers/transformer_sd3.py@v0.42.1, v0.32.2",
	New:     newSD3,
}

// sd3Config is what the program needs of a config.json.
type sd3Config struct {
	d                                                   graph.DType
	heads, headDim, width, in, out, layers, patch, grid int64
	text, pooled, size                                  int64
	dual                                                []int64 // blocks in which the image looks at itself once more
	qkNorm, backend                                     string
}

func readSD3(c *Config, b Build) sd3Config {
	g := sd3Config{
		d: b.DType, heads: c.IntOr(18, "num_attention_heads"), headDim: c.IntOr(64, "attention_head_dim"), in: c.IntOr(16, "in_channels"),
		layers: c.IntOr(18, "num_layers"), patch: c.IntOr(2, "patch_size"), grid: c.IntOr(96, "pos_embed_max_size"), text: c.IntOr(4096, "joint_attention_dim"),
		pooled: c.IntOr(2048, "pooled_projection_dim"), size: c.IntOr(128, "sample_size"), backend: b.Attention.Backend,
	}
	g.width = g.heads * g.headDim
	g.out = c.IntOr(16, "out_channels")
	if g.qkNorm = c.Text("", "qk_norm"); g.qkNorm != "" {
		c.OneOf("qk_norm", "rms_norm")
	}
	c.needsFused(b)
	g.dual = c.Indices("dual_attention_layers", g.layers)
	if n := c.IntOr(g.width, "caption_projection_dim"); n != g.width {
		c.fields.Add("model.config.caption_projection_dim", n, "as wide as the heads together: "+strconv.FormatInt(g.width, 10), strconv.FormatInt(g.width, 10))
	}
	return g
}

// sd3ContiguousSince is when the patches' embedding began to be copied into
// order before the blocks: not in 0.32, in 0.42, which is the set of torch 2.15
// (measured; the older way is assumed in between).
var sd3ContiguousSince = spec.Version{2, 15}

func newSD3(c Config, b Build) (*Network, error) {
	g := readSD3(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := graph.NewModule("SD3Transformer2DModel")
	embed := m.Child("pos_embed", patchEmbed(g.d, g.in, g.width, g.patch, g.grid, true))
	times := m.Child("time_text_embed", timeAndText(g.d, g.pooled, g.width))
	context := m.Child("context_embedder", linear(g.d, g.text, g.width, true))
	list := m.Child("transformer_blocks", graph.NewModule("ModuleList"))
	var blocks []*graph.Module
	for i := range g.layers {
		blocks = append(blocks, list.Child(strconv.FormatInt(i, 10), jointBlock(g, slices.Contains(g.dual, i), i == g.layers-1)))
	}
	norm := m.Child("norm_out", adaLayerNormContinuous(g.d, g.width))
	project := m.Child("proj_out", linear(g.d, g.width, g.patch*g.patch*g.out, true))
	contiguous := b.Versions.Torch.AtLeast(sd3ContiguousSince)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Call1(embed, in[0]))
		if contiguous {
			hidden = f.Let("hidden_states", f.Contiguous(hidden))
		}
		temb := f.Let("temb", f.Call1(times, in[3], in[2]))
		text := f.Let("encoder_hidden_states", f.Call1(context, in[1]))
		for block := range f.Layers(blocks) {
			out := f.Call(block, hidden, text, temb)
			if len(out) > 1 {
				text = f.Let("encoder_hidden_states", out[1])
			} else { // the last keeps no text
				f.Del("encoder_hidden_states")
			}
			hidden = f.Let("hidden_states", out[0])
		}
		hidden = f.Let("hidden_states", f.Call1(norm, hidden, temb))
		hidden = f.Let("hidden_states", f.Call1(project, hidden))
		return one(unpatchify(f, hidden, in[0].Shape.D[2]/g.patch, in[0].Shape.D[3]/g.patch, g.patch, g.out))
	}
	net := denoiser(m, func(f *graph.Frame, b Batch) *graph.Tensor {
		return f.Call1(m, b.Tensor(hiddenStates), b.Tensor(textStates), b.Tensor(pooledText), b.Tensor(timestep))
	})
	net.Blocks = blocks
	net.Inputs = func(s Sizes) []Input {
		l := latentOf{g.in, g.size, g.size}
		return s.denoised(l, s.latents(hiddenStates, l), s.text(154, g.text), Input{pooledText, s.Continuous, graph.D(s.Batch, g.pooled)})
	}
	return net, nil
}

// timeAndText is CombinedTimestepTextProjEmbeddings, of times and pooled text.
func timeAndText(d graph.DType, pooled, width int64) *graph.Module {
	m := graph.NewModule("CombinedTimestepTextProjEmbeddings")
	proj := m.Child("time_proj", timesteps(256, true))
	times := m.Child("timestep_embedder", timestepEmbedding(d, 256, width))
	text := m.Child("text_embedder", textProjection(d, pooled, width, silu()))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		projected := f.Let("timesteps_proj", f.Call1(proj, in[0]))
		emb := f.Let("timesteps_emb", f.Call1(times, f.To(projected, in[1].DType)))
		pooled := f.Let("pooled_projections", f.Call1(text, in[1]))
		return one(f.Let("conditioning", f.Add(emb, pooled)))
	}
	return m
}

// jointBlock is JointTransformerBlock, on hidden states, text and the time's
// embedding. It gives hidden states and, unless it is the last, the text.
func jointBlock(g sd3Config, dual, last bool) *graph.Module {
	m := graph.NewModule("JointTransformerBlock")
	rows := int64(6)
	if dual {
		rows = 9
	}
	norm1 := m.Child("norm1", adaptiveNorm(g.d, g.width, rows))
	var normText *graph.Module
	if last {
		normText = m.Child("norm1_context", adaLayerNormContinuous(g.d, g.width))
	} else {
		normText = m.Child("norm1_context", adaptiveNorm(g.d, g.width, 6))
	}
	attn := m.Child("attn", jointAttention(jointAttentionOf{d: g.d, width: g.width, heads: g.heads, headDim: g.headDim, qkNorm: g.qkNorm != "", backend: g.backend, text: true, textOut: !last}))
	var again *graph.Module
	if dual {
		again = m.Child("attn2", jointAttention(jointAttentionOf{d: g.d, width: g.width, heads: g.heads, headDim: g.headDim, qkNorm: g.qkNorm != "", backend: g.backend}))
	}
	norm2, ff := m.Child("norm2", plainNorm()), m.Child("ff", feedForward(g.d, g.width, "gelu-approximate", 0))
	var norm2Text, ffText *graph.Module
	if !last {
		norm2Text, ffText = m.Child("norm2_context", plainNorm()), m.Child("ff_context", feedForward(g.d, g.width, "gelu-approximate", 0))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden, text, temb := in[0], in[1], in[2]
		r := adaptive(f, "norm_hidden_states", "", f.Call(norm1, hidden, temb))
		var t map[string]*graph.Tensor
		var normedText *graph.Tensor
		if last {
			normedText = f.Let("norm_encoder_hidden_states", f.Call1(normText, text, temb))
		} else {
			t = adaptive(f, "norm_encoder_hidden_states", "c_", f.Call(normText, text, temb))
			normedText = t["norm"]
		}
		out := f.Call(attn, r["norm"], normedText)
		output, outputText := f.Let("attn_output", out[0]), f.Let("context_attn_output", out[1])
		output = f.Let("attn_output", f.Mul(f.Unsqueeze(r["gate_msa"], 1), output))
		hidden = f.Let("hidden_states", f.Add(hidden, output))
		if dual {
			output = f.Let("attn_output2", f.Call1(again, r["norm2"], nil))
			output = f.Let("attn_output2", f.Mul(f.Unsqueeze(r["gate_msa2"], 1), output))
			hidden = f.Let("hidden_states", f.Add(hidden, output))
		}
		normed := f.Let("norm_hidden_states", f.Call1(norm2, hidden))
		normed = f.Let("norm_hidden_states", modulated(f, normed, perToken(f, r["scale_mlp"]), perToken(f, r["shift_mlp"])))
		forward := f.Let("ff_output", f.Call1(ff, normed))
		forward = f.Let("ff_output", f.Mul(f.Unsqueeze(r["gate_mlp"], 1), forward))
		hidden = f.Let("hidden_states", f.Add(hidden, forward))
		if last {
			return one(hidden)
		}
		outputText = f.Let("context_attn_output", f.Mul(f.Unsqueeze(t["gate_msa"], 1), outputText))
		text = f.Let("encoder_hidden_states", f.Add(text, outputText))
		normedText = f.Let("norm_encoder_hidden_states", f.Call1(norm2Text, text))
		normedText = f.Let("norm_encoder_hidden_states", modulated(f, normedText, perToken(f, t["scale_mlp"]), perToken(f, t["shift_mlp"])))
		forward = f.Let("context_ff_output", f.Call1(ffText, normedText))
		return []*graph.Tensor{hidden, f.Let("encoder_hidden_states", f.Add(text, f.Mul(f.Unsqueeze(t["gate_mlp"], 1), forward)))}
	}
	return m
}

// adaptive binds what an adaptive norm gives to names: the norm to one, its rows
// to theirs with a prefix. It lists them by their names.
func adaptive(f *graph.Frame, norm, prefix string, out []*graph.Tensor) map[string]*graph.Tensor {
	byName := map[string]*graph.Tensor{"norm": f.Let(norm, out[0])}
	for i, name := range []string{"gate_msa", "shift_mlp", "scale_mlp", "gate_mlp", "norm2", "gate_msa2"}[:len(out)-1] {
		byName[name] = f.Let(prefix+name, out[i+1])
	}
	return byName
}

// adaptiveNorm is AdaLayerNormZero of an embedding that is there, with six
// rows, or SD35AdaLayerNormZeroX with nine: the norm, moved by the first two
// rows, then the rows from the third to the sixth, and the same again of the
// last three.
func adaptiveNorm(d graph.DType, width, rows int64) *graph.Module {
	m := graph.NewModule("AdaLayerNormZero")
	if rows == 9 {
		m.Class = "SD35AdaLayerNormZeroX"
	}
	act, project, norm := m.Child("silu", silu()), m.Child("linear", linear(d, width, rows*width, true)), m.Child("norm", plainNorm())
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		emb := f.Let("emb", f.Call1(project, f.Call1(act, in[1])))
		r := f.Split(emb, rows, 1)
		for i := range r {
			f.Let("row."+strconv.Itoa(i), r[i])
		}
		normed := f.Call1(norm, in[0])
		if rows == 6 {
			x := f.Let("x", modulated(f, normed, perToken(f, r[1]), perToken(f, r[0])))
			return []*graph.Tensor{x, r[2], r[3], r[4], r[5]}
		}
		f.Let("norm_hidden_states", normed)
		hidden := f.Let("hidden_states", modulated(f, normed, perToken(f, r[1]), perToken(f, r[0])))
		second := f.Let("norm_hidden_states2", modulated(f, normed, perToken(f, r[7]), perToken(f, r[6])))
		return []*graph.Tensor{hidden, r[2], r[3], r[4], r[5], second, r[8]}
	}
	return m
}

// adaLayerNormContinuous is AdaLayerNormContinuous over a plain layer norm.
func adaLayerNormContinuous(d graph.DType, width int64) *graph.Module {
	m := graph.NewModule("AdaLayerNormContinuous")
	act, project, norm := m.Child("silu", silu()), m.Child("linear", linear(d, width, 2*width, true)), m.Child("norm", plainNorm())
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		emb := f.Let("emb", f.Call1(project, f.To(f.Call1(act, in[1]), in[0].DType)))
		halves := f.Split(emb, 2, 1)
		scale, shift := f.Let("scale", halves[0]), f.Let("shift", halves[1])
		normed := f.Call1(norm, in[0])
		return one(f.Let("x", f.Add(f.Mul(normed, perRow(f, f.AddScalar(scale))), perRow(f, shift))))
	}
	return m
}

// perRow is t[:, None, :].
func perRow(f *graph.Frame, t *graph.Tensor) *graph.Tensor {
	return f.SliceWhole(f.Unsqueeze(f.SliceWhole(t, 1), 1), 1)
}
