package model

import (
	"strings"

	"memplan/internal/estimator/graph"
)

// unetConditionFamily is the UNet of Stable Diffusion 1, 2 and XL. Written from
// diffusers 0.42 and 0.32, models/unets/unet_2d_condition.py.
var unetConditionFamily = Family{
	Name:    "unet-2d-condition",
	Classes: []string{"UNet2DConditionModel"},
	Source:  "huggingface/diffusers:src/diffusers/models/unets/unet_2d_condition.py@v0.42.1, v0.32.2",
	New:     newUNetCondition,
}

func hasAttention(block string) bool { return strings.Contains(block, "Attn") }

// readUNet reads what both UNets' configs have.
func readUNet(c *Config, b Build) unetConfig {
	g := unetConfig{
		d: b.DType, in: c.Int("in_channels"), out: c.Int("out_channels"), layers: c.IntOr(2, "layers_per_block"),
		groups: c.IntOr(32, "norm_num_groups"), channels: c.Ints("block_out_channels"), down: c.Words("down_block_types"),
		up: c.Words("up_block_types"), padding: c.Count(1, "downsample_padding"), dropout: c.Float(0, "dropout"), attention: b.Attention,
		size: c.IntOr(64, "sample_size"),
	}
	c.OneOf("act_fn", "silu", "swish")
	c.OneOf("time_embedding_type", "positional")
	c.OneOf("resnet_time_scale_shift", "default")
	c.Refuses("class_embed_type", "num_class_embeds", "upcast_attention", "center_input_sample")
	for _, key := range []struct {
		name string
		n    int
	}{{"down_block_types", len(g.down)}, {"up_block_types", len(g.up)}} {
		if key.n != len(g.channels) {
			c.fields.Add("model.config."+key.name, key.n, "as many as block_out_channels", "")
		}
	}
	return g
}

func readUNetCondition(c *Config, b Build) unetConfig {
	g := readUNet(c, b)
	g.text = c.IntOr(1280, "cross_attention_dim")
	g.heads = c.PerLevel(8, len(g.channels), "attention_head_dim") // a misnomer diffusers keeps
	g.depth = c.PerLevel(1, len(g.channels), "transformer_layers_per_block")
	g.flip, g.linear = c.Bool(true, "flip_sin_to_cos"), c.Bool(false, "use_linear_projection")
	if c.Text("", "addition_embed_type") != "" {
		c.OneOf("addition_embed_type", "text_time")
		g.addIn, g.addTime = c.Int("projection_class_embeddings_input_dim"), c.Int("addition_time_embed_dim")
	}
	c.OneOf("mid_block_type", "UNetMidBlock2DCrossAttn")
	c.OneOf("attention_type", "default")
	c.Refuses("dual_cross_attention", "only_cross_attention", "mid_block_only_cross_attention", "encoder_hid_dim", "encoder_hid_dim_type", "resnet_skip_time_act",
		"time_embedding_dim", "time_embedding_act_fn", "timestep_post_act", "time_cond_proj_dim", "class_embeddings_concat", "cross_attention_norm",
		"reverse_transformer_layers_per_block", "num_attention_heads")
	c.Blocks(g.down, "down_block_types", "DownBlock2D", "CrossAttnDownBlock2D")
	c.Blocks(g.up, "up_block_types", "UpBlock2D", "CrossAttnUpBlock2D")
	return g
}

// Names of SDXL's further conditions.
const (
	textEmbeds = "text_embeds"
	timeIDs    = "time_ids"
)

// sdxlPooled is the width of SDXL's pooled text, and sdxlSizes how many numbers
// tell of an image's size.
const (
	sdxlPooled = 1280
	sdxlSizes  = 6
)

func newUNetCondition(c Config, b Build) (*Network, error) {
	g := readUNetCondition(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := graph.NewModule("UNet2DConditionModel")
	convIn := m.Child("conv_in", conv2d(g.d, g.in, g.channels[0], convShape{kernel: 3, padding: 1, bias: true}))
	proj := m.Child("time_proj", timesteps(g.channels[0], g.flip))
	embed := m.Child("time_embedding", timestepEmbedding(g.d, g.channels[0], g.time()))
	var more func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor
	if g.addIn > 0 {
		more = moreConditions(m.Child("add_time_proj", timesteps(g.addTime, g.flip)), m.Child("add_embedding", timestepEmbedding(g.d, g.addIn, g.time())))
	}
	levels := newLevels(m, g, func(level int, channels int64) *graph.Module {
		return imageTransformer(g, channels, g.heads[level], g.depth[level])
	}, true)
	end := unetEnd(m, g)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		times := f.Let("t_emb", f.Func(timeEmbed(proj), in[0], in[1])[0])
		emb := f.Let("emb", f.Call1(embed, times))
		if more != nil {
			further := f.Let("aug_emb", f.Func(more, emb, in[3], in[4])[0])
			emb = f.Let("emb", f.Add(emb, further))
		}
		sample := f.Let("sample", f.Call1(convIn, in[0]))
		sample = levels.run(f, sample, emb, in[2])
		return one(end(f, sample))
	}
	net := denoiser(m, func(f *graph.Frame, b Batch) *graph.Tensor {
		return f.Call1(m, b.Tensor(sample), b.Tensor(timestep), b.Tensor(textStates), b.Tensor(textEmbeds), b.Tensor(timeIDs))
	})
	net.Blocks = levels.checkpointed()
	net.Inputs = func(s Sizes) []Input {
		in := s.denoised(g.latent(), s.latents(sample, g.latent()), s.text(77, g.text))
		if g.addIn > 0 {
			in = append(in, Input{textEmbeds, s.Continuous, graph.D(s.Batch, sdxlPooled)}, Input{timeIDs, s.Continuous, graph.D(s.Batch, sdxlSizes)})
		}
		return in
	}
	return net, nil
}

// timeEmbed is get_time_embed: of a sample and its times.
func timeEmbed(proj *graph.Module) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		times := f.Let("timesteps", f.Expand(in[1], in[1].Numel()))
		emb := f.Let("t_emb", f.Call1(proj, times))
		return one(f.Let("t_emb", f.To(emb, in[0].DType)))
	}
}

// moreConditions is get_aug_embed of text_time: pooled text and sizes.
func moreConditions(proj, embed *graph.Module) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		emb, text, sizes := in[0], in[1], in[2]
		times := f.Let("time_embeds", f.Call1(proj, f.View(sizes, -1)))
		times = f.Let("time_embeds", f.Reshape(times, text.Shape.D[0], -1))
		add := f.Let("add_embeds", f.Cat(-1, text, times))
		add = f.Let("add_embeds", f.To(add, emb.DType))
		return one(f.Let("aug_emb", f.Call1(embed, add)))
	}
}

// unetEnd adds the output layers and returns what runs them.
func unetEnd(m *graph.Module, g unetConfig) func(f *graph.Frame, sample *graph.Tensor) *graph.Tensor {
	layers := []*graph.Module{
		m.Child("conv_norm_out", groupNorm(g.d, g.channels[0], g.groups)), m.Child("conv_act", silu()),
		m.Child("conv_out", conv2d(g.d, g.channels[0], g.out, convShape{kernel: 3, padding: 1, bias: true})),
	}
	return func(f *graph.Frame, sample *graph.Tensor) *graph.Tensor {
		for _, l := range layers {
			sample = f.Let("sample", f.Call1(l, sample))
		}
		return sample
	}
}
