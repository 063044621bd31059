package model

import (
	"memplan/internal/estimator/graph"
)

// Networks of diffusers that take noise away from latents, and the loss a plain
// loop puts on them.

// diffusionFamilies lists the architectures that are trained on latents.
func diffusionFamilies() []Family {
	return []Family{ditFamily, pixartFamily, sd3Family, cogVideoXFamily, fluxFamily, ltxFamily, wanFamily, unetConditionFamily, unetFamily}
}

// Diffusers is the implementation diffusion models run in.
const Diffusers = "diffusers"

// Names of the tensors of a batch of latents.
const (
	target       = "target"
	timestep     = "timestep"
	sample       = "sample"
	hiddenStates = "hidden_states"
	textStates   = "encoder_hidden_states"
	pooledText   = "pooled_projections"
)

// vaeScale is by how much an image's sides are longer than its latent's
// (diffusers' AutoencoderKL with four levels).
const vaeScale = 8

// latentOf is what a network is told of the latents it works on: how many
// channels they have, and their size where a job says nothing of it.
type latentOf struct{ channels, rows, columns int64 }

// shape is that of one latent image.
func (l latentOf) shape(s Sizes) []int64 {
	switch {
	case len(s.Latent) > 0:
		return s.Latent
	case s.Height > 0 && s.ImageIsLatent:
		return []int64{l.channels, s.Height, s.Width}
	case s.Height > 0:
		return []int64{l.channels, s.Height / vaeScale, s.Width / vaeScale}
	}
	return []int64{l.channels, l.rows, l.columns}
}

// latents are the noised images, or what they should become.
func (s Sizes) latents(name string, l latentOf) Input {
	return Input{name, s.Continuous, graph.D(append([]int64{s.Batch}, l.shape(s)...)...)}
}

// text is what a text encoder made of the prompts.
func (s Sizes) text(fallback, width int64) Input {
	tokens := s.TextTokens
	if tokens == 0 {
		tokens = fallback
	}
	return Input{textStates, s.Continuous, graph.D(s.Batch, tokens, width)}
}

// denoised begins every batch of latents: what the result is compared with, and
// a time for each sample.
func (s Sizes) denoised(l latentOf, more ...Input) []Input {
	return append([]Input{s.latents(target, l), {timestep, graph.I64, graph.D(s.Batch)}}, more...)
}

// denoiser is a network that a plain loop trains with an fp32 mean squared
// error. Where the result also has a variance, only the mean is compared.
func denoiser(root *graph.Module, run func(f *graph.Frame, b Batch) *graph.Tensor) *Network {
	root.Named("")
	return &Network{Root: root, LossApart: true, Forward: func(f *graph.Frame, b Batch) Outputs {
		out := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			out := f.Let("out", run(f, b))
			if out.Shape.D[1] == 2*in[0].Shape.D[1] {
				halves := f.Split(out, 2, 1)
				out = f.Let("out", halves[0])
				f.Drop(halves[1])
			}
			return []*graph.Tensor{f.MSELoss(f.To(out, graph.F32), f.To(in[0], graph.F32)), out}
		}, b.Tensor(target))
		return Outputs{Loss: f.Own(out[0]), Logits: f.Own(out[1])}
	}}
}

// timesteps is get_timestep_embedding: sines and cosines of the times, in fp32.
func timesteps(channels int64, flip bool) *graph.Module {
	m := graph.NewModule("Timesteps")
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		half := channels / 2
		exponent := f.Let("exponent", f.MulScalar(f.Empty(graph.F32, half)))
		exponent = f.Let("exponent", f.MulScalar(exponent))
		emb := f.Let("emb", f.Exp(exponent))
		times := f.To(f.Unsqueeze(f.SliceWhole(in[0], 1), 1), graph.F32)
		emb = f.Let("emb", f.Mul(times, f.SliceWhole(f.Unsqueeze(emb, 0), 1)))
		emb = f.Let("emb", f.MulScalar(emb))
		emb = f.Let("emb", f.Cat(-1, f.Sin(emb), f.Cos(emb)))
		if flip {
			cosine, sine := f.Slice(emb, 1, half, 2*half), f.Slice(emb, 1, 0, half)
			emb = f.Let("emb", f.Cat(-1, cosine, sine))
		}
		return one(emb)
	}
	return m
}

// timestepEmbedding is TimestepEmbedding: two linear layers.
func timestepEmbedding(d graph.DType, in, width int64) *graph.Module {
	m := graph.NewModule("TimestepEmbedding")
	first := m.Child("linear_1", linear(d, in, width, true))
	act := m.Child("act", silu())
	second := m.Child("linear_2", linear(d, width, width, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		sample := f.Let("sample", f.Call1(first, in[0]))
		sample = f.Let("sample", f.Call1(act, sample))
		return one(f.Let("sample", f.Call1(second, sample)))
	}
	return m
}

// patchEmbed is PatchEmbed: a convolution over patches, and positions. A model
// with more positions than it needs cuts out the middle.
func patchEmbed(d graph.DType, channels, width, patch, grid int64, crop bool) *graph.Module {
	m := graph.NewModule("PatchEmbed")
	proj := m.Child("proj", conv2d(d, channels, width, convShape{kernel: patch, stride: patch, bias: true}))
	places := m.Buffer("pos_embed", d, 1, grid*grid, width)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		rows, columns := in[0].Shape.D[2]/patch, in[0].Shape.D[3]/patch
		latent := f.Let("latent", f.Call1(proj, in[0]))
		latent = f.Let("latent", f.Transpose(f.Reshape(latent, latent.Shape.D[0], width, -1), 1, 2))
		positions := places.T()
		if crop {
			positions = f.Let("pos_embed", f.Func(croppedPositions(places, grid, rows, columns))[0])
		}
		return one(f.To(f.Add(latent, positions), latent.DType))
	}
	return m
}

// croppedPositions is cropped_pos_embed.
func croppedPositions(places *graph.Param, grid, rows, columns int64) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		spatial := f.Let("spatial_pos_embed", f.Reshape(places.T(), 1, grid, grid, -1))
		top, left := (grid-rows)/2, (grid-columns)/2
		spatial = f.Let("spatial_pos_embed", f.Slice(f.Slice(spatial, 1, top, top+rows), 2, left, left+columns))
		return one(f.Let("spatial_pos_embed", f.Reshape(spatial, 1, -1, spatial.Shape.At(-1))))
	}
}

// needsFused reports an error where eager attention is asked of a network that
// has none.
func (c *Config) needsFused(b Build) {
	if b.Attention.Kernel == "eager" {
		c.fields.Add("training.attention", "eager", "sdpa: this network has no eager attention", "sdpa")
	}
}

// plainNorm is nn.LayerNorm without parameters.
func plainNorm() *graph.Module {
	return function("LayerNorm", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { return f.LayerNorm(x, nil, nil) })
}

// modulated is x * (1 + scale) + shift, with scale and shift of one row a
// sample.
func modulated(f *graph.Frame, x, scale, shift *graph.Tensor) *graph.Tensor {
	return f.Add(f.Mul(x, f.AddScalar(scale)), shift)
}

// perToken is t[:, None].
func perToken(f *graph.Frame, t *graph.Tensor) *graph.Tensor {
	return f.Unsqueeze(f.SliceWhole(t, 1), 1)
}

// unpatchify puts the patches of a transformer's result together again.
func unpatchify(f *graph.Frame, hidden *graph.Tensor, rows, columns, patch, channels int64) *graph.Tensor {
	hidden = f.Let("hidden_states", f.Reshape(hidden, -1, rows, columns, patch, patch, channels))
	hidden = f.Let("hidden_states", f.Permute(hidden, 0, 5, 1, 3, 2, 4))
	return f.Let("output", f.Reshape(hidden, -1, channels, rows*patch, columns*patch))
}
