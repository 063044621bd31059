package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// Building blocks of diffusers' UNets: models/resnet.py, downsampling.py,
// upsampling.py, unets/unet_2d_blocks.py, transformers/transformer_2d.py.

// unetConfig is what the programs need of a UNet's config.json. Lists have an
// entry a level.
type unetConfig struct {
	d                             graph.DType
	in, out, layers, groups, text int64
	channels, heads, depth        []int64
	down, up                      []string
	flip, linear                  bool
	padding                       int64 // of what halves the size
	dropout                       float64
	attention                     Attention
	addIn, addTime                int64 // SDXL's further conditions; 0 is none
	headDim                       int64 // of an image's attention without text; 0 is one head
	size                          int64 // of a latent, where a job does not say
}

// latent is what the network is trained on.
func (g unetConfig) latent() latentOf { return latentOf{g.in, g.size, g.size} }

// time is the width of the time's embedding.
func (g unetConfig) time() int64 { return 4 * g.channels[0] }

// resnetBlock2D is ResnetBlock2D: its second input is the time's embedding.
func resnetBlock2D(g unetConfig, in, out int64) *graph.Module {
	m := graph.NewModule("ResnetBlock2D")
	norm1 := m.Child("norm1", groupNorm(g.d, in, g.groups))
	conv1 := m.Child("conv1", conv2d(g.d, in, out, convShape{kernel: 3, padding: 1, bias: true}))
	project := m.Child("time_emb_proj", linear(g.d, g.time(), out, true))
	norm2 := m.Child("norm2", groupNorm(g.d, out, g.groups))
	drop := m.Child("dropout", dropout(g.dropout))
	conv2 := m.Child("conv2", conv2d(g.d, out, out, convShape{kernel: 3, padding: 1, bias: true}))
	act := m.Child("nonlinearity", silu())
	var shortcut *graph.Module
	if in != out {
		shortcut = m.Child("conv_shortcut", conv2d(g.d, in, out, convShape{kernel: 1, bias: true}))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := in[0]
		for _, l := range []*graph.Module{norm1, act, conv1} {
			hidden = f.Let("hidden_states", f.Call1(l, hidden))
		}
		temb := f.Let("temb", f.Call1(act, in[1]))
		temb = f.Let("temb", f.Unsqueeze(f.Unsqueeze(f.SliceWhole(f.Call1(project, temb), 2), 2), 3))
		hidden = f.Let("hidden_states", f.Add(hidden, temb))
		for _, l := range []*graph.Module{norm2, act, drop, conv2} {
			hidden = f.Let("hidden_states", f.Call1(l, hidden))
		}
		input := in[0]
		if shortcut != nil {
			input = f.Let("input_tensor", f.Contiguous(input))
			input = f.Let("input_tensor", f.Call1(shortcut, input))
		}
		return one(f.Let("output_tensor", f.MulScalar(f.Add(input, hidden)))) // / output_scale_factor
	}
	return m
}

// downsample2D is Downsample2D with a convolution, which halves the size.
func downsample2D(g unetConfig, channels int64) *graph.Module {
	m := graph.NewModule("Downsample2D")
	conv := m.Child("conv", conv2d(g.d, channels, channels, convShape{kernel: 3, stride: 2, padding: g.padding, bias: true}))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := in[0]
		if g.padding == 0 {
			hidden = f.Let("hidden_states", f.Pad2D(hidden, 1))
		}
		return one(f.Let("hidden_states", f.Call1(conv, hidden)))
	}
	return m
}

// upsample2D is Upsample2D with a convolution: to the size of the second input.
func upsample2D(g unetConfig, channels int64) *graph.Module {
	m := graph.NewModule("Upsample2D")
	conv := m.Child("conv", conv2d(g.d, channels, channels, convShape{kernel: 3, padding: 1, bias: true}))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Interpolate(in[0], in[1].Shape.D[2], in[1].Shape.D[3]))
		return one(f.Let("hidden_states", f.Call1(conv, hidden)))
	}
	return m
}

// imageTransformer is Transformer2DModel over the pixels of an image, which
// looks at a text.
func imageTransformer(g unetConfig, channels, heads, depth int64) *graph.Module {
	m := graph.NewModule("Transformer2DModel")
	projection := func() *graph.Module {
		if g.linear {
			return linear(g.d, channels, channels, true)
		}
		return conv2d(g.d, channels, channels, convShape{kernel: 1, bias: true})
	}
	norm := m.Child("norm", groupNorm(g.d, channels, g.groups))
	projIn := m.Child("proj_in", projection())
	list := m.Child("transformer_blocks", graph.NewModule("ModuleList"))
	for i := range depth {
		list.Child(strconv.FormatInt(i, 10), textBlock(g, channels, heads))
	}
	projOut := m.Child("proj_out", projection())
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden, shape := f.Let("residual", in[0]), in[0].Shape
		hidden = f.Let("hidden_states", f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // _operate_on_continuous_inputs
			hidden := f.Let("hidden_states", f.Call1(norm, in[0]))
			if !g.linear {
				hidden = f.Let("hidden_states", f.Call1(projIn, hidden))
			}
			hidden = f.Let("hidden_states", f.Reshape(f.Permute(hidden, 0, 2, 3, 1), shape.D[0], -1, channels))
			if g.linear {
				hidden = f.Let("hidden_states", f.Call1(projIn, hidden))
			}
			return one(hidden)
		}, hidden)[0])
		for _, block := range list.Children {
			hidden = f.Let("hidden_states", f.Call1(block, hidden, in[1]))
		}
		return one(f.Let("output", f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // _get_output_for_continuous_inputs
			hidden := in[0]
			if g.linear {
				hidden = f.Let("hidden_states", f.Call1(projOut, hidden))
			}
			hidden = f.Reshape(hidden, shape.D[0], shape.D[2], shape.D[3], channels)
			hidden = f.Let("hidden_states", f.Contiguous(f.Permute(hidden, 0, 3, 1, 2)))
			if !g.linear {
				hidden = f.Let("hidden_states", f.Call1(projOut, hidden))
			}
			return one(f.Let("output", f.Add(hidden, in[1])))
		}, hidden, in[0])[0]))
	}
	return m
}

// textBlock is BasicTransformerBlock with norm_type layer_norm: attention among
// pixels, from pixels to the text, and a gated feed-forward part.
func textBlock(g unetConfig, width, heads int64) *graph.Module {
	m := graph.NewModule("BasicTransformerBlock")
	a := attentionOf{query: width, cross: width, heads: heads, width: width / heads, outBias: true, dropout: 0, attention: g.attention}
	norm1, attn1 := m.Child("norm1", layerNorm(g.d, width)), m.Child("attn1", diffusersAttention(g.d, a))
	a.cross = g.text
	norm2, attn2 := m.Child("norm2", layerNorm(g.d, width)), m.Child("attn2", diffusersAttention(g.d, a))
	norm3, ff := m.Child("norm3", layerNorm(g.d, width)), m.Child("ff", feedForward(g.d, width, "geglu", 0))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		normed := f.Let("norm_hidden_states", f.Call1(norm1, in[0]))
		output := f.Let("attn_output", f.Call1(attn1, normed, nil, nil))
		hidden := f.Let("hidden_states", f.Add(output, in[0]))
		normed = f.Let("norm_hidden_states", f.Call1(norm2, hidden))
		output = f.Let("attn_output", f.Call1(attn2, normed, in[1], nil))
		hidden = f.Let("hidden_states", f.Add(output, hidden))
		normed = f.Let("norm_hidden_states", f.Call1(norm3, hidden))
		forward := f.Let("ff_output", f.Call1(ff, normed))
		return one(f.Let("hidden_states", f.Add(forward, hidden)))
	}
	return m
}

// unetLevel is one level of a UNet: resnets, each perhaps followed by an
// attention, and a change of size, nil for none.
type unetLevel struct {
	*graph.Module
	resnets, attentions []*graph.Module
	resize              *graph.Module
}

// newLevel makes the level's module with its lists in order: attentions first.
func newLevel(class string, resnets, attentions []*graph.Module) *unetLevel {
	l := &unetLevel{Module: graph.NewModule(class), resnets: resnets, attentions: attentions}
	for _, part := range []struct {
		name string
		list []*graph.Module
	}{{"attentions", attentions}, {"resnets", resnets}} {
		if len(part.list) == 0 {
			continue
		}
		list := l.Child(part.name, graph.NewModule("ModuleList"))
		for i, c := range part.list {
			list.Child(strconv.Itoa(i), c)
		}
	}
	return l
}

// resizes adds what changes the size at the end of the level.
func (l *unetLevel) resizes(name string, m *graph.Module) {
	l.resize = l.Child(name, graph.NewModule("ModuleList")).Child("0", m)
}

// run is the i-th resnet with what follows it, on hidden states, the time's
// embedding and the text.
func (l *unetLevel) run(f *graph.Frame, i int, hidden, temb, text *graph.Tensor) *graph.Tensor {
	hidden = f.Let("hidden_states", f.Call1(l.resnets[i], hidden, temb))
	if len(l.attentions) > 0 {
		hidden = f.Let("hidden_states", f.Call1(l.attentions[i], hidden, text, nil))
	}
	return hidden
}

// goesDown is the forward of a level on the way down: its inputs are hidden
// states, the time's embedding and the text, and its results the last hidden
// states and all those on the way.
func (l *unetLevel) goesDown() *unetLevel {
	l.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := in[0]
		var states []*graph.Tensor
		keep := func() { states = append(states, f.Let("output_states."+strconv.Itoa(len(states)), hidden)) }
		for i := range l.resnets {
			hidden = l.run(f, i, hidden, in[1], in[2])
			keep()
		}
		if l.resize != nil {
			hidden = f.Let("hidden_states", f.Call1(l.resize, hidden))
			keep()
		}
		return append([]*graph.Tensor{hidden}, states...)
	}
	return l
}

// goesUp is the forward of a level on the way up: its further inputs are a
// tensor of the size to grow to, and the states kept on the way down.
func (l *unetLevel) goesUp() *unetLevel {
	l.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden, kept := in[0], in[4:]
		for i := range l.resnets {
			skip := f.Let("res_hidden_states", kept[len(kept)-1-i])
			hidden = f.Let("hidden_states", f.Cat(1, hidden, skip))
			hidden = l.run(f, i, hidden, in[1], in[2])
		}
		if l.resize != nil {
			hidden = f.Let("hidden_states", f.Call1(l.resize, hidden, in[3]))
		}
		return one(hidden)
	}
	return l
}

// middle is the forward of the level between: a resnet, then attentions, each
// followed by a resnet.
func (l *unetLevel) middle() *unetLevel {
	l.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Call1(l.resnets[0], in[0], in[1]))
		for i, attn := range l.attentions {
			hidden = f.Let("hidden_states", f.Call1(attn, hidden, in[2], nil))
			hidden = f.Let("hidden_states", f.Call1(l.resnets[i+1], hidden, in[1]))
		}
		return one(hidden)
	}
	return l
}

// unetLevels are the levels of a UNet and what they are checkpointed by.
type unetLevels struct {
	down, up []*unetLevel
	mid      *unetLevel
}

// attends makes the attention of a level, by its index.
type attends func(level int, channels int64) *graph.Module

// newLevels builds the levels and adds them to a UNet.
func newLevels(m *graph.Module, g unetConfig, attn attends, middleAttention bool) *unetLevels {
	u := &unetLevels{}
	downs, ups := m.Child("down_blocks", graph.NewModule("ModuleList")), graph.NewModule("ModuleList")
	last := len(g.channels) - 1
	in := g.channels[0]
	for i, out := range g.channels {
		var resnets, attentions []*graph.Module
		for j := range g.layers {
			from := out
			if j == 0 {
				from = in
			}
			resnets = append(resnets, resnetBlock2D(g, from, out))
			if hasAttention(g.down[i]) {
				attentions = append(attentions, attn(i, out))
			}
		}
		l := newLevel(g.down[i], resnets, attentions).goesDown()
		if i < last {
			l.resizes("downsamplers", downsample2D(g, out))
		}
		u.down = append(u.down, l)
		downs.Child(strconv.Itoa(i), l.Module)
		in = out
	}
	m.Child("up_blocks", ups)
	u.climb(ups, g, attn)
	u.mid = u.between(g, attn, middleAttention)
	m.Child("mid_block", u.mid.Module)
	return u
}

// climb builds the levels of the way up, which have one layer more than those
// of the way down.
func (u *unetLevels) climb(ups *graph.Module, g unetConfig, attn attends) {
	last := len(g.channels) - 1
	before := g.channels[last]
	for i := range g.up {
		level := last - i
		out, skip := g.channels[level], g.channels[max(level-1, 0)]
		var resnets, attentions []*graph.Module
		for j := range g.layers + 1 {
			from, kept := out, out
			if j == 0 {
				from = before
			}
			if j == g.layers {
				kept = skip
			}
			resnets = append(resnets, resnetBlock2D(g, from+kept, out))
			if hasAttention(g.up[i]) {
				attentions = append(attentions, attn(level, out))
			}
		}
		l := newLevel(g.up[i], resnets, attentions).goesUp()
		if i < last {
			l.resizes("upsamplers", upsample2D(g, out))
		}
		u.up = append(u.up, l)
		ups.Child(strconv.Itoa(i), l.Module)
		before = out
	}
}

func (u *unetLevels) between(g unetConfig, attn attends, attention bool) *unetLevel {
	last := len(g.channels) - 1
	width := g.channels[last]
	resnets := []*graph.Module{resnetBlock2D(g, width, width), resnetBlock2D(g, width, width)}
	var attentions []*graph.Module
	if attention {
		attentions = append(attentions, attn(last, width))
	}
	return newLevel("UNetMidBlock2D", resnets, attentions).middle()
}

// checkpointed lists what enable_gradient_checkpointing recomputes: every
// resnet but the first of the middle, and the blocks of every transformer.
func (u *unetLevels) checkpointed() []*graph.Module {
	var all []*graph.Module
	add := func(resnets []*graph.Module, l *unetLevel) {
		all = append(all, resnets...)
		for _, a := range l.attentions {
			a.Walk(func(m *graph.Module) {
				if m.Class == "BasicTransformerBlock" {
					all = append(all, m)
				}
			})
		}
	}
	for _, l := range u.down {
		add(l.resnets, l)
	}
	add(u.mid.resnets[1:], u.mid)
	for _, l := range u.up {
		add(l.resnets, l)
	}
	return all
}

// run goes down, through the middle and up again. The states kept for a level
// live until those of the next are taken.
func (u *unetLevels) run(f *graph.Frame, sample, emb, text *graph.Tensor) *graph.Tensor {
	kept := []*graph.Tensor{f.Let("down_block_res_samples.0", sample)}
	for _, l := range u.down {
		out := f.Call(l.Module, sample, emb, text)
		sample = f.Let("sample", out[0])
		for _, t := range out[1:] {
			kept = append(kept, f.Let("down_block_res_samples."+strconv.Itoa(len(kept)), t))
		}
	}
	sample = f.Let("sample", f.Call1(u.mid.Module, sample, emb, text))
	for _, l := range u.up {
		rest := len(kept) - len(l.resnets)
		size := kept[max(rest-1, 0)]
		in := append([]*graph.Tensor{sample, emb, text, size}, kept[rest:]...)
		sample = f.Let("sample", f.Call1(l.Module, in...))
		if rest > 0 { // res_samples is bound again
			for i := rest; i < len(kept); i++ {
				f.Del("down_block_res_samples." + strconv.Itoa(i))
			}
		}
		kept = kept[:rest]
	}
	return sample
}
