package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// fluxFamily is FLUX.1: blocks with two streams, then blocks with one. Written
// from diffusers 0.42, models/transformers/transformer_flux.py.
var fluxFamily = Family{
	Name:    "flux",
	Classes: []string{"FluxTransformer2DModel"},
	Source:  "huggingface/diffusers:src/diffusers/models/transformers/transformer_flux.py@v0.42.1",
	New:     newFlux,
}

// fluxConfig is what the program needs of a config.json.
type fluxConfig struct {
	d                                                    graph.DType
	heads, headDim, width, in, out, double, single, text int64
	pooled                                               int64
	axes                                                 []int64 // columns of a head turned by each of a position's numbers
	guidance                                             bool
	backend                                              string
}

func readFlux(c *Config, b Build) fluxConfig {
	g := fluxConfig{
		d: b.DType, heads: c.IntOr(24, "num_attention_heads"), headDim: c.IntOr(128, "attention_head_dim"), in: c.IntOr(64, "in_channels"),
		double: c.IntOr(19, "num_layers"), single: c.IntOr(38, "num_single_layers"), text: c.IntOr(4096, "joint_attention_dim"),
		pooled: c.IntOr(768, "pooled_projection_dim"), guidance: c.Bool(false, "guidance_embeds"), axes: []int64{16, 56, 56}, backend: b.Attention.Backend,
	}
	g.width = g.heads * g.headDim
	g.out = g.in
	if !c.Null("out_channels") {
		g.out = c.IntOr(g.in, "out_channels")
	}
	if _, set := c.values["axes_dims_rope"]; set {
		g.axes = c.Ints("axes_dims_rope")
	}
	c.needsFused(b)
	if n := c.IntOr(1, "patch_size"); n != 1 {
		c.fields.Add("model.config.patch_size", n, "1: latents come packed", "1")
	}
	return g
}

// Names of what FLUX takes beside latents and text.
const (
	imageIDs = "img_ids"
	textIDs  = "txt_ids"
	guidance = "guidance"
)

func newFlux(c Config, b Build) (*Network, error) {
	g := readFlux(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := graph.NewModule("FluxTransformer2DModel")
	places := m.Child("pos_embed", axesPositions(g.axes))
	times := m.Child("time_text_embed", timeGuidanceAndText(g))
	context := m.Child("context_embedder", linear(g.d, g.text, g.width, true))
	embed := m.Child("x_embedder", linear(g.d, g.in, g.width, true))
	var positions [2]*graph.Tensor
	blocks := func(name string, n int64, build func(g fluxConfig, positions *[2]*graph.Tensor) *graph.Module) []*graph.Module {
		list := m.Child(name, graph.NewModule("ModuleList"))
		var all []*graph.Module
		for i := range n {
			block := list.Child(strconv.FormatInt(i, 10), build(g, &positions))
			block.Beside = func() (args, bound []*graph.Tensor) { return nil, positions[:] }
			all = append(all, block)
		}
		return all
	}
	double, single := blocks("transformer_blocks", g.double, fluxBlock), blocks("single_transformer_blocks", g.single, fluxSingleBlock)
	norm := m.Child("norm_out", adaLayerNormContinuous(g.d, g.width))
	project := m.Child("proj_out", linear(g.d, g.width, g.out, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Call1(embed, in[0]))
		scaled := func(name string, t *graph.Tensor) *graph.Tensor {
			return f.Let(name, f.MulScalar(f.To(t, hidden.DType)))
		}
		time := []*graph.Tensor{scaled(timestep, in[3]), in[2]}
		if g.guidance {
			time = append(time, scaled(guidance, in[6]))
		}
		temb := f.Let("temb", f.Call1(times, time...))
		text := f.Let("encoder_hidden_states", f.Call1(context, in[1]))
		ids := f.Let("ids", f.Cat(0, in[5], in[4]))
		table := f.Call(places, ids)
		positions = [2]*graph.Tensor{f.Let("image_rotary_emb.0", table[0]), f.Let("image_rotary_emb.1", table[1])}
		for _, list := range [][]*graph.Module{double, single} {
			for block := range f.Layers(list) {
				out := f.Call(block, hidden, text, temb)
				text, hidden = f.Let("encoder_hidden_states", out[0]), f.Let("hidden_states", out[1])
			}
		}
		hidden = f.Let("hidden_states", f.Call1(norm, hidden, temb))
		return one(f.Let("output", f.Call1(project, hidden)))
	}
	net := denoiser(m, func(f *graph.Frame, b Batch) *graph.Tensor {
		return f.Call1(m, b.Tensor(hiddenStates), b.Tensor(textStates), b.Tensor(pooledText), b.Tensor(timestep), b.Tensor(imageIDs), b.Tensor(textIDs), b.Tensor(guidance))
	})
	net.Blocks = append(append(net.Blocks, double...), single...)
	net.Inputs = func(s Sizes) []Input { return g.inputs(s) }
	return net, nil
}

// fluxPatch is how many latent pixels a side of a token has, and fluxLatent a
// side of the latents where a job does not say.
const (
	fluxPatch  = 2
	fluxLatent = 128
)

// inputs are packed latents, embeddings of the text, and where tokens stand.
func (g fluxConfig) inputs(s Sizes) []Input {
	tokens := s.LatentTokens
	if tokens == 0 {
		latent := latentOf{g.in / (fluxPatch * fluxPatch), fluxLatent, fluxLatent}.shape(s)
		tokens = latent[1] * latent[2] / (fluxPatch * fluxPatch)
	}
	text := s.text(512, g.text)
	packed := graph.D(s.Batch, tokens, g.in)
	in := []Input{
		{target, s.Continuous, packed},
		{timestep, s.Continuous, graph.D(s.Batch)},
		{hiddenStates, s.Continuous, packed},
		text,
		{pooledText, s.Continuous, graph.D(s.Batch, g.pooled)},
		{imageIDs, s.Continuous, graph.D(tokens, 3)},
		{textIDs, s.Continuous, graph.D(text.Shape.D[1], 3)},
	}
	if g.guidance {
		in = append(in, Input{guidance, s.Continuous, graph.D(s.Batch)})
	}
	return in
}

// timeGuidanceAndText is CombinedTimestepGuidanceTextProjEmbeddings, of times,
// pooled text and, where it is embedded, the strength of guidance.
func timeGuidanceAndText(g fluxConfig) *graph.Module {
	if !g.guidance {
		return timeAndText(g.d, g.pooled, g.width)
	}
	m := graph.NewModule("CombinedTimestepGuidanceTextProjEmbeddings")
	proj := m.Child("time_proj", timesteps(256, true))
	times := m.Child("timestep_embedder", timestepEmbedding(g.d, 256, g.width))
	strength := m.Child("guidance_embedder", timestepEmbedding(g.d, 256, g.width))
	text := m.Child("text_embedder", textProjection(g.d, g.pooled, g.width, silu()))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		projected := f.Let("timesteps_proj", f.Call1(proj, in[0]))
		emb := f.Let("timesteps_emb", f.Call1(times, f.To(projected, in[1].DType)))
		projected = f.Let("guidance_proj", f.Call1(proj, in[2]))
		emb = f.Let("time_guidance_emb", f.Add(emb, f.Let("guidance_emb", f.Call1(strength, f.To(projected, in[1].DType)))))
		pooled := f.Let("pooled_projections", f.Call1(text, in[1]))
		return one(f.Let("conditioning", f.Add(emb, pooled)))
	}
	return m
}

// axesPositions is FluxPosEmbed: cosines and sines in fp32, of frequencies in
// fp64, for each of the numbers that say where a token is. Of fp64 the engine
// knows the size alone, which is that of int64.
func axesPositions(axes []int64) *graph.Module {
	m := graph.NewModule("FluxPosEmbed")
	const fp64 = graph.I64
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		tokens := in[0].Shape.D[0]
		f.Let("pos", f.To(in[0], graph.F32))
		var cosines, sines []*graph.Tensor
		for i, width := range axes {
			table := f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor { // get_1d_rotary_pos_embed
				next := func(t *graph.Tensor) *graph.Tensor {
					out := f.Empty(fp64, width/2)
					f.Drop(t)
					return out
				}
				exponents := next(f.Empty(fp64, width/2))
				powers := f.Empty(fp64, width/2)
				f.Drop(f.Empty(fp64))
				f.Drop(exponents)
				reciprocals := f.Empty(fp64, width/2)
				freqs := next(reciprocals)
				f.Drop(powers)
				freqs = f.Let("freqs", next(freqs))
				freqs = f.Let("freqs", f.Empty(fp64, tokens, width/2))
				spread := func(name string) *graph.Tensor {
					wave := f.Empty(fp64, tokens, width/2)
					twice := f.Empty(fp64, tokens, width)
					f.Drop(wave)
					t := f.Let(name, f.Empty(graph.F32, tokens, width))
					f.Drop(twice)
					return t
				}
				return []*graph.Tensor{spread("freqs_cos"), spread("freqs_sin")}
			})
			cosines = append(cosines, f.Let("cos_out."+strconv.Itoa(i), table[0]))
			sines = append(sines, f.Let("sin_out."+strconv.Itoa(i), table[1]))
		}
		return []*graph.Tensor{f.Let("freqs_cos", f.Cat(-1, cosines...)), f.Let("freqs_sin", f.Cat(-1, sines...))}
	}
	return m
}

// fluxBlock is FluxTransformerBlock, on hidden states, text and the time's
// embedding. It gives the text and hidden states.
func fluxBlock(g fluxConfig, positions *[2]*graph.Tensor) *graph.Module {
	m := graph.NewModule("FluxTransformerBlock")
	norm1, normText := m.Child("norm1", adaptiveNorm(g.d, g.width, 6)), m.Child("norm1_context", adaptiveNorm(g.d, g.width, 6))
	attn := m.Child("attn", fluxAttention(g, positions, true))
	norm2, ff := m.Child("norm2", plainNorm()), m.Child("ff", feedForward(g.d, g.width, "gelu-approximate", 0))
	norm2Text, ffText := m.Child("norm2_context", plainNorm()), m.Child("ff_context", feedForward(g.d, g.width, "gelu-approximate", 0))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden, text, temb := in[0], in[1], in[2]
		r := adaptive(f, "norm_hidden_states", "", f.Call(norm1, hidden, temb))
		t := adaptive(f, "norm_encoder_hidden_states", "c_", f.Call(normText, text, temb))
		out := f.Call(attn, r["norm"], t["norm"])
		f.Let("attention_outputs.0", out[0])
		f.Let("attention_outputs.1", out[1])
		output, outputText := f.Let("attn_output", out[0]), f.Let("context_attn_output", out[1])
		output = f.Let("attn_output", f.Mul(f.Unsqueeze(r["gate_msa"], 1), output))
		hidden = f.Let("hidden_states", f.Add(hidden, output))
		normed := f.Let("norm_hidden_states", f.Call1(norm2, hidden))
		normed = f.Let("norm_hidden_states", modulated(f, normed, perToken(f, r["scale_mlp"]), perToken(f, r["shift_mlp"])))
		forward := f.Let("ff_output", f.Call1(ff, normed))
		forward = f.Let("ff_output", f.Mul(f.Unsqueeze(r["gate_mlp"], 1), forward))
		hidden = f.Let("hidden_states", f.Add(hidden, forward))
		outputText = f.Let("context_attn_output", f.Mul(f.Unsqueeze(t["gate_msa"], 1), outputText))
		text = f.Let("encoder_hidden_states", f.Add(text, outputText))
		normed = f.Let("norm_encoder_hidden_states", f.Call1(norm2Text, text))
		normed = f.Let("norm_encoder_hidden_states", modulated(f, normed, perToken(f, t["scale_mlp"]), perToken(f, t["shift_mlp"])))
		forward = f.Let("context_ff_output", f.Call1(ffText, normed))
		text = f.Let("encoder_hidden_states", f.Add(text, f.Mul(f.Unsqueeze(t["gate_mlp"], 1), forward)))
		if text.DType == graph.F16 {
			text = f.Let("encoder_hidden_states", f.ClampBetween(text))
		}
		return []*graph.Tensor{text, hidden}
	}
	return m
}

// fluxSingleBlock is FluxSingleTransformerBlock: text and image are one
// sequence, and attention and the feed-forward part run beside each other.
func fluxSingleBlock(g fluxConfig, positions *[2]*graph.Tensor) *graph.Module {
	m := graph.NewModule("FluxSingleTransformerBlock")
	norm := m.Child("norm", adaptiveNormSingle(g.d, g.width))
	inner := 4 * g.width
	projMLP, act := m.Child("proj_mlp", linear(g.d, g.width, inner, true)), m.Child("act_mlp", gelu())
	project := m.Child("proj_out", linear(g.d, g.width+inner, g.width, true))
	attn := m.Child("attn", fluxAttention(g, positions, false))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		tokens := in[1].Shape.D[1]
		hidden := f.Let("hidden_states", f.Cat(1, in[1], in[0]))
		residual := f.Let("residual", hidden)
		n := f.Call(norm, hidden, in[2])
		normed, gate := f.Let("norm_hidden_states", n[0]), f.Let("gate", n[1])
		forward := f.Let("mlp_hidden_states", f.Call1(act, f.Call1(projMLP, normed)))
		output := f.Let("attn_output", f.Call1(attn, normed, nil))
		hidden = f.Let("hidden_states", f.Cat(2, output, forward))
		gate = f.Let("gate", f.Unsqueeze(gate, 1))
		hidden = f.Let("hidden_states", f.Mul(gate, f.Call1(project, hidden)))
		hidden = f.Let("hidden_states", f.Add(residual, hidden))
		if hidden.DType == graph.F16 {
			hidden = f.Let("hidden_states", f.ClampBetween(hidden))
		}
		text := f.Slice(hidden, 1, 0, tokens)
		image := f.Slice(hidden, 1, tokens, hidden.Shape.D[1])
		return []*graph.Tensor{f.Let("encoder_hidden_states", text), f.Let("hidden_states", image)}
	}
	return m
}

// adaptiveNormSingle is AdaLayerNormZeroSingle: the norm, moved by two rows, and
// a gate.
func adaptiveNormSingle(d graph.DType, width int64) *graph.Module {
	m := graph.NewModule("AdaLayerNormZeroSingle")
	act, project, norm := m.Child("silu", silu()), m.Child("linear", linear(d, width, 3*width, true)), m.Child("norm", plainNorm())
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		emb := f.Let("emb", f.Call1(project, f.Call1(act, in[1])))
		r := f.Split(emb, 3, 1)
		for i, name := range adaptiveRows[:3] {
			r[i] = f.Let(name, r[i])
		}
		normed := f.Call1(norm, in[0])
		return []*graph.Tensor{f.Let("x", modulated(f, normed, perToken(f, r[1]), perToken(f, r[0]))), r[2]}
	}
	return m
}

// fluxAttention is FluxAttention with FluxAttnProcessor. Without a text of its
// own the sequence has it already, and nothing is projected in the end.
func fluxAttention(g fluxConfig, positions *[2]*graph.Tensor, text bool) *graph.Module {
	m := graph.NewModule("FluxAttention")
	norm := func(name string) *graph.Module { return m.Child(name, rmsNorm(g.d, g.headDim)) }
	project := func(name string) *graph.Module { return m.Child(name, linear(g.d, g.width, g.width, true)) }
	normQ, normK := norm("norm_q"), norm("norm_k")
	own := []*graph.Module{project("to_q"), project("to_k"), project("to_v")}
	var out, drop, normTextQ, normTextK, outText *graph.Module
	var added []*graph.Module
	if text {
		list := m.Child("to_out", graph.NewModule("ModuleList"))
		out, drop = list.Child("0", linear(g.d, g.width, g.width, true)), list.Child("1", dropout(0))
		normTextQ, normTextK = norm("norm_added_q"), norm("norm_added_k")
		added = []*graph.Module{project("add_q_proj"), project("add_k_proj"), project("add_v_proj")}
		outText = project("to_add_out")
	}
	names := [...]string{"query", "key", "value"}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch := in[0].Shape.D[0]
		projected := func(prefix string, by []*graph.Module, x *graph.Tensor) (t [3]*graph.Tensor) {
			for i := range by {
				t[i] = f.Let(prefix+names[i], f.Call1(by[i], x))
			}
			return t
		}
		divided := func(prefix string, t *[3]*graph.Tensor, q, k *graph.Module) {
			for i := range t {
				t[i] = f.Let(prefix+names[i], f.View(t[i], batch, -1, g.heads, g.headDim))
			}
			t[0] = f.Let(prefix+names[0], f.Call1(q, t[0]))
			t[1] = f.Let(prefix+names[1], f.Call1(k, t[1]))
		}
		t := projected("", own, in[0])
		var e [3]*graph.Tensor
		if text {
			e = projected("encoder_", added, in[1])
		}
		divided("", &t, normQ, normK)
		if text {
			divided("encoder_", &e, normTextQ, normTextK)
			for i := range t {
				t[i] = f.Let(names[i], f.Cat(1, e[i], t[i]))
			}
		}
		for i := range 2 {
			t[i] = f.Let(names[i], f.Func(turnPairs(1), t[i], positions[0], positions[1])[0])
		}
		hidden := f.Let("hidden_states", f.Func(nativeAttention(g.backend), t[:]...)[0])
		hidden = f.Let("hidden_states", f.Reshape(hidden, batch, -1, g.width))
		hidden = f.Let("hidden_states", f.To(hidden, t[0].DType))
		if !text {
			return one(hidden)
		}
		tokens := in[1].Shape.D[1]
		parts := f.SplitSizes(hidden, 1, tokens, hidden.Shape.D[1]-tokens)
		words, image := f.Let("encoder_hidden_states", parts[0]), f.Let("hidden_states", parts[1])
		image = f.Let("hidden_states", f.Call1(out, f.Contiguous(image)))
		image = f.Let("hidden_states", f.Call1(drop, image))
		return []*graph.Tensor{image, f.Let("encoder_hidden_states", f.Call1(outText, f.Contiguous(words)))}
	}
	return m
}

// nativeAttention is _native_attention of attention_dispatch.py, on queries,
// keys and values of shape [batch, tokens, heads, width].
func nativeAttention(backend string) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		query, key, value := f.Let("query", f.Permute(in[0], 0, 2, 1, 3)), f.Let("key", f.Permute(in[1], 0, 2, 1, 3)), f.Let("value", f.Permute(in[2], 0, 2, 1, 3))
		var mask *graph.Tensor
		if len(in) > 3 {
			mask = in[3]
		}
		out := f.Let("out", f.ScaledDotProductAttention(query, key, value, mask, graph.Attention{Backend: backend}))
		return one(f.Let("out", f.Permute(out, 0, 2, 1, 3)))
	}
}

// rmsNorm is torch.nn.RMSNorm.
func rmsNorm(d graph.DType, width int64) *graph.Module {
	m := graph.NewModule("RMSNorm")
	weight := m.Param("weight", d, width)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { return one(f.RMSNorm(in[0], weight.T())) }
	return m
}
