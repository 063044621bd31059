package model

import "memplan/internal/estimator/graph"

// Backbones of segmentors for real time
// (mmseg/models/backbones/bisenetv1.py, erfnet.py@v0.30.0).

// bisenetV1 is BiSeNetV1: a deep path that sees context and a shallow one that
// keeps details.
func (m mm) bisenetV1(c *Config) *graph.Module {
	c.Only("type", "context_backbone", "in_channels", "context_channels", "spatial_channels", "out_indices", "out_channels", "norm", "align_corners")
	net := graph.NewModule("BiSeNetV1")
	context, spatial, out := c.PerLevel(128, 3, "context_channels"), c.PerLevel(64, 4, "spatial_channels"), c.IntOr(256, "out_channels")
	deep := c.Part("context_backbone")
	if deep == nil {
		c.fields.Add("model.config.context_backbone", "nothing", "a backbone", "")
		return net
	}
	contextPath := net.Child("context_path", m.contextPath(m.part(deep, mmParts{"resnet": mm.resnet}), context))
	var layers []*graph.Module
	in := c.IntOr(3, "in_channels")
	for i, width := range spatial {
		s := convShape{kernel: 3, stride: 2, padding: 1}
		switch i {
		case 0:
			s = convShape{kernel: 7, stride: 2, padding: 3}
		case len(spatial) - 1:
			s = convShape{kernel: 1}
		}
		layers = append(layers, m.convModule(in, width, s, reluInPlace))
		in = width
	}
	spatialPath := net.Child("spatial_path", sequential(layers...))
	fuse := net.Child("ffm", m.featureFusion(context[1], out))
	wanted := c.outIndices(3)
	net.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		both := letAll(f, "x_context", f.Call(contextPath, in[0]))
		details := f.Let("x_spatial", f.Call1(spatialPath, in[0]))
		all := []*graph.Tensor{f.Let("x_fuse", f.Call1(fuse, details, both[0])), both[0], both[1]}
		var outs []*graph.Tensor
		for i, want := range wanted {
			if want {
				outs = append(outs, all[i])
			}
		}
		return outs
	}
	return net
}

// contextPath is ContextPath.
func (m mm) contextPath(backbone *graph.Module, widths []int64) *graph.Module {
	p := graph.NewModule("ContextPath")
	p.Child("backbone", backbone)
	width := widths[0]
	refine16, refine32 := p.Child("arm16", m.attentionRefinement(widths[1], width)), p.Child("arm32", m.attentionRefinement(widths[2], width))
	head32, head16 := p.Child("conv_head32", m.conv3(width, width)), p.Child("conv_head16", m.conv3(width, width))
	mean := p.Child("gap_conv", sequential(adaptiveAvgPool2d(1), m.conv1(widths[2], width)))
	p.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := letAll(f, "x", f.Call(backbone, in[0]))
		x8, x16, x32 := x[1], x[2], x[3]
		gap := f.Let("x_gap", f.Call1(mean, x32))
		arm := f.Let("x_32_arm", f.Call1(refine32, x32))
		sum := f.Let("x_32_sum", f.Add(arm, gap))
		up32 := f.Let("x_32_up", resizeLike(f, sum, x16))
		up32 = f.Let("x_32_up", f.Call1(head32, up32))
		arm = f.Let("x_16_arm", f.Call1(refine16, x16))
		sum = f.Let("x_16_sum", f.Add(arm, up32))
		up16 := f.Let("x_16_up", resizeLike(f, sum, x8))
		up16 = f.Let("x_16_up", f.Call1(head16, up16))
		return []*graph.Tensor{up16, up32}
	}
	return p
}

// attentionRefinement is AttentionRefinementModule.
func (m mm) attentionRefinement(in, out int64) *graph.Module {
	a := graph.NewModule("AttentionRefinementModule")
	conv := a.Child("conv_layer", m.conv3(in, out))
	attention := a.Child("atten_conv_layer", sequential(adaptiveAvgPool2d(1), m.convModule(out, out, convShape{kernel: 1}, nil), sigmoid()))
	a.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(conv, in[0]))
		weights := f.Let("x_atten", f.Call1(attention, x))
		return one(f.Let("x_out", f.Mul(x, weights)))
	}
	return a
}

// featureFusion is FeatureFusionModule.
func (m mm) featureFusion(in, out int64) *graph.Module {
	a := graph.NewModule("FeatureFusionModule")
	conv, gap := a.Child("conv1", m.conv1(in, out)), a.Child("gap", adaptiveAvgPool2d(1))
	attention := a.Child("conv_atten", sequential(m.conv1(out, out), sigmoid()))
	a.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		joined := f.Let("x_concat", f.Cat(1, in[0], in[1]))
		x := f.Let("x_fuse", f.Call1(conv, joined))
		weights := f.Let("x_atten", f.Call1(gap, x))
		weights = f.Let("x_atten", f.Call1(attention, weights))
		weights = f.Let("x_atten", f.Mul(x, weights))
		return one(f.Let("x_out", f.Add(weights, x)))
	}
	return a
}

// erfnet is ERFNet: convolutions of 3×1 and 1×3 between steps that halve and
// double the size.
func (m mm) erfnet(c *Config) *graph.Module {
	c.Only("type", "in_channels", "enc_downsample_channels", "enc_stage_non_bottlenecks", "enc_non_bottleneck_dilations", "enc_non_bottleneck_channels",
		"dec_upsample_channels", "dec_stages_non_bottleneck", "dec_non_bottleneck_channels", "dropout_ratio", "norm")
	down, dilations := c.Ints("enc_downsample_channels"), c.Ints("enc_non_bottleneck_dilations")
	counts, up := c.PerLevel(1, len(down)-1, "enc_stage_non_bottlenecks"), c.Ints("dec_upsample_channels")
	after, widths := c.PerLevel(1, len(up), "dec_stages_non_bottleneck"), c.PerLevel(1, len(up), "dec_non_bottleneck_channels")
	drop := c.Float(0.1, "dropout_ratio")
	net := graph.NewModule("ERFNet")
	encoder := []*graph.Module{m.erfDown(c.IntOr(3, "in_channels"), down[0])}
	for i := range len(down) - 1 {
		width := down[i+1]
		encoder = append(encoder, m.erfDown(down[i], width))
		for k := range counts[i] {
			dilation := int64(1)
			if i == len(down)-2 {
				dilation = dilations[k%int64(len(dilations))]
			}
			encoder = append(encoder, m.nonBottleneck1d(width, dilation, drop))
		}
	}
	in := down[len(down)-1]
	var decoder []*graph.Module
	for i, width := range widths {
		decoder = append(decoder, m.erfUp(in, width))
		for range after[i] {
			decoder = append(decoder, m.nonBottleneck1d(width, 1, 0))
		}
		in = width
	}
	net.Child("encoder", moduleList(encoder...))
	net.Child("decoder", moduleList(decoder...))
	all := append(encoder, decoder...)
	net.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		for _, part := range all {
			x = f.Let("x", f.Call1(part, x))
		}
		return one(x)
	}
	return net
}

// erfDown is DownsamplerBlock.
func (m mm) erfDown(in, out int64) *graph.Module {
	b := graph.NewModule("DownsamplerBlock")
	conv := b.Child("conv", conv2d(m.d, in, out-in, convShape{kernel: 3, stride: 2, padding: 1, bias: true}))
	pool, norm, act := b.Child("pool", maxPool2d(2, 2, 0)), b.Child("bn", batchNorm(m.d, out)), b.Child("act", relu())
	b.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		convolved := f.Let("conv_out", f.Call1(conv, in[0]))
		pooled := f.Let("pool_out", f.Call1(pool, in[0]))
		pooled = f.Let("pool_out", resizeLike(f, pooled, convolved))
		x := f.Let("output", f.Cat(1, convolved, pooled))
		x = f.Let("output", f.Call1(norm, x))
		return one(f.Let("output", f.Call1(act, x)))
	}
	return b
}

// erfUp is UpsamplerBlock.
func (m mm) erfUp(in, out int64) *graph.Module {
	conv := graph.Conv{Stride: square(2), Padding: square(1), Dilation: square(1), OutputPadding: square(1), Groups: 1, Transposed: true}
	return sequential(convolution(m.d, in, out, square(3), conv, true), batchNorm(m.d, out), relu())
}

// nonBottleneck1d is NonBottleneck1d.
func (m mm) nonBottleneck1d(width, dilation int64, drop float64) *graph.Module {
	b := graph.NewModule("NonBottleneck1d")
	act := b.Child("act", relu())
	var layers []*graph.Module
	for i, d := range []int64{1, dilation} {
		thin := func(kernel, padding, dilation graph.Dims) *graph.Module {
			return convolution(m.d, width, width, kernel, graph.Conv{Stride: square(1), Padding: padding, Dilation: dilation, OutputPadding: square(0), Groups: 1}, true)
		}
		last := act
		if i == 1 {
			last = dropout(drop)
		}
		layers = append(layers, thin(graph.D(3, 1), graph.D(d, 0), graph.D(d, 1)), act, thin(graph.D(1, 3), graph.D(0, d), graph.D(1, d)),
			batchNorm(m.d, width), last)
	}
	b.Child("convs_layers", moduleList(layers...))
	b.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("output", in[0])
		for _, l := range layers {
			x = f.Let("output", f.Call1(l, x))
		}
		return one(f.Let("output", f.Call1(act, f.Add(x, in[0]))))
	}
	return b
}
