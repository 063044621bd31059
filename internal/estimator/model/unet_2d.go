package model

import "memplan/internal/estimator/graph"

// unetFamily is the UNet of DDPM, which sees no text. Written from diffusers
// 0.42, models/unets/unet_2d.py.
var unetFamily = Family{
	Name:    "unet-2d",
	Classes: []string{"UNet2DModel"},
	Source:  "huggingface/diffusers:src/diffusers/models/unets/unet_2d.py@v0.42.1",
	New:     newUNet2D,
}

func readUNet2D(c *Config, b Build) unetConfig {
	g := readUNet(c, b)
	g.flip = c.Bool(true, "flip_sin_to_cos")
	if !c.Null("attention_head_dim") { // else one head of all channels
		g.headDim = c.IntOr(8, "attention_head_dim")
	}
	c.OneOf("mid_block_type", "UNetMidBlock2D")
	c.OneOf("downsample_type", "conv")
	c.OneOf("upsample_type", "conv")
	c.Refuses("time_embedding_dim", "attn_norm_num_groups")
	c.Blocks(g.down, "down_block_types", "DownBlock2D", "AttnDownBlock2D")
	c.Blocks(g.up, "up_block_types", "UpBlock2D", "AttnUpBlock2D")
	return g
}

func newUNet2D(c Config, b Build) (*Network, error) {
	g := readUNet2D(&c, b)
	attention := c.Bool(true, "add_attention")
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := graph.NewModule("UNet2DModel")
	convIn := m.Child("conv_in", conv2d(g.d, g.in, g.channels[0], convShape{kernel: 3, padding: 1, bias: true}))
	proj := m.Child("time_proj", timesteps(g.channels[0], g.flip))
	embed := m.Child("time_embedding", timestepEmbedding(g.d, g.channels[0], g.time()))
	levels := newLevels(m, g, func(_ int, channels int64) *graph.Module { return pixelAttention(g, channels) }, attention)
	end := unetEnd(m, g)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		times := f.Let("timesteps", f.Mul(in[1], f.Empty(graph.I64, in[1].Numel())))
		emb := f.Let("t_emb", f.Call1(proj, times))
		emb = f.Let("t_emb", f.To(emb, g.d))
		emb = f.Let("emb", f.Call1(embed, emb))
		f.Let("skip_sample", in[0])
		sample := f.Let("sample", f.Call1(convIn, in[0]))
		f.Let("skip_sample", nil)
		return one(end(f, levels.run(f, sample, emb, nil)))
	}
	net := denoiser(m, func(f *graph.Frame, b Batch) *graph.Tensor { return f.Call1(m, b.Tensor(sample), b.Tensor(timestep)) })
	net.Blocks = levels.checkpointed()
	net.Inputs = func(s Sizes) []Input { return s.denoised(g.latent(), s.latents(sample, g.latent())) }
	return net, nil
}

// pixelAttention is the Attention of a level that sees no text.
func pixelAttention(g unetConfig, channels int64) *graph.Module {
	width := g.headDim
	if width == 0 {
		width = channels
	}
	return diffusersAttention(g.d, attentionOf{
		query: channels, cross: channels, heads: channels / width, width: width, bias: true, outBias: true,
		attention: g.attention, residual: true, norm: true, groups: g.groups,
	})
}
