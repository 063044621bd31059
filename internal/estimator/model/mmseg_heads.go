package model

import "memplan/internal/estimator/graph"

// Heads of segmentors made of convolutions (mmseg/models/decode_heads@v0.30.0).

// mmHeads are the heads by their type.
func mmHeads() mmParts {
	return mmParts{
		"fcn": mm.fcnHead, "psp": mm.pspHead, "aspp": mm.asppHead, "sep_aspp": mm.separableASPPHead, "uper": mm.uperHead, "fpn": mm.fpnHead,
		"segformer": mm.segformerHead, "lraspp": mm.lrasppHead,
		"non_local": mm.nonLocalHead, "gc": mm.contextHead, "dual_attention": mm.dualAttentionHead,
		"interlaced_sparse_attention": mm.interlacedHead, "ocr": mm.objectHead,
		"setr_up": mm.setrUpHead, "setr_mla": mm.setrMLAHead, "segmenter_mask": mm.segmenterHead,
	}
}

// fcnHead is FCNHead.
func (m mm) fcnHead(c *Config) *graph.Module {
	c.Only(headKeys("num_convs", "kernel_size", "concat_input", "dilation")...)
	in, width := c.inputs(), c.Int("channels")
	kernel, dilation := c.IntOr(3, "kernel_size"), c.IntOr(1, "dilation")
	head := graph.NewModule("FCNHead")
	classifier := m.classifier(head, c, width)
	var convs []*graph.Module
	for i := range c.Count(2, "num_convs") {
		from := width
		if i == 0 {
			from = in.width()
		}
		s := convShape{kernel: kernel, padding: kernel / 2 * dilation, dilation: dilation}
		convs = append(convs, m.convModule(from, width, s, reluInPlace))
	}
	layers := head.Child("convs", sequential(convs...))
	var joined *graph.Module
	if c.Bool(true, "concat_input") {
		joined = head.Child("conv_cat", m.convModule(in.width()+width, width, convShape{kernel: kernel, padding: kernel / 2}, reluInPlace))
	}
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		x := in.of(f, features)
		feats := f.Let("feats", f.Call1(layers, x))
		if joined != nil {
			feats = f.Let("feats", f.Call1(joined, f.Cat(1, x, feats)))
		}
		f.Del("x")
		return one(classifier.classify(f, feats))
	}
	return head
}

// pspHead is PSPHead.
func (m mm) pspHead(c *Config) *graph.Module {
	c.Only(headKeys("pool_scales")...)
	in, width, scales := c.inputs(), c.Int("channels"), c.Ints("pool_scales")
	head := graph.NewModule("PSPHead")
	classifier := m.classifier(head, c, width)
	pool := head.Child("psp_modules", m.pyramidPooling(in.width(), width, scales))
	bottleneck := head.Child("bottleneck", m.conv3(in.width()+int64(len(scales))*width, width))
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		output := f.Let("output", pooledPyramid(f, pool, bottleneck, in.of(f, features)))
		f.Del("x")
		return one(f.Let("output", classifier.classify(f, output)))
	}
	return head
}

// pooledPyramid joins a feature map with its pooled ones and a convolution over
// them.
func pooledPyramid(f *graph.Frame, pool, bottleneck *graph.Module, x *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		outs := append([]*graph.Tensor{in[0]}, letAll(f, "psp_outs", f.Call(pool, in[0]))...)
		joined := f.Let("psp_outs", f.Cat(1, outs...))
		for i := range outs[1:] {
			f.Del("psp_outs." + numbered(i))
		}
		return one(f.Let("output", f.Call1(bottleneck, joined)))
	}, x)[0]
}

// atrous is the pyramid of an ASPP head: the image's mean, and convolutions of
// several dilations.
type atrous struct {
	pool, bottleneck *graph.Module
	convs            []*graph.Module
}

func (m mm) atrousPyramid(head *graph.Module, c *Config, in, width int64, separable bool) atrous {
	dilations := c.Ints("dilations")
	a := atrous{pool: head.Child("image_pool", sequential(adaptiveAvgPool2d(1), m.conv1(in, width)))}
	for _, d := range dilations {
		switch {
		case d == 1:
			a.convs = append(a.convs, m.conv1(in, width))
		case separable:
			a.convs = append(a.convs, m.separable(in, width, d))
		default:
			a.convs = append(a.convs, m.convModule(in, width, convShape{kernel: 3, padding: d, dilation: d}, reluInPlace))
		}
	}
	head.Child("aspp_modules", moduleList(a.convs...))
	a.bottleneck = head.Child("bottleneck", m.conv3(int64(len(dilations)+1)*width, width))
	return a
}

func (a atrous) of(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		outs := []*graph.Tensor{f.Let("aspp_outs.0", resizeLike(f, f.Call1(a.pool, in[0]), in[0]))}
		for i, c := range a.convs {
			outs = append(outs, f.Let("aspp_outs."+numbered(i+1), f.Call1(c, in[0])))
		}
		joined := f.Let("aspp_outs", f.Cat(1, outs...))
		for i := range outs {
			f.Del("aspp_outs." + numbered(i))
		}
		return one(f.Call1(a.bottleneck, joined))
	}, x)[0]
}

// asppHead is ASPPHead, of DeepLabV3.
func (m mm) asppHead(c *Config) *graph.Module {
	c.Only(headKeys("dilations")...)
	in, width := c.inputs(), c.Int("channels")
	head := graph.NewModule("ASPPHead")
	classifier := m.classifier(head, c, width)
	pyramid := m.atrousPyramid(head, c, in.width(), width, false)
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		output := f.Let("output", pyramid.of(f, in.of(f, features)))
		f.Del("x")
		return one(f.Let("output", classifier.classify(f, output)))
	}
	return head
}

// separableASPPHead is DepthwiseSeparableASPPHead, of DeepLabV3+: what the
// pyramid gives is joined with the backbone's first feature map.
func (m mm) separableASPPHead(c *Config) *graph.Module {
	c.Only(headKeys("dilations", "c1_in_channels", "c1_channels")...)
	in, width := c.inputs(), c.Int("channels")
	lowIn, low := c.Count(0, "c1_in_channels"), c.Count(0, "c1_channels")
	head := graph.NewModule("DepthwiseSeparableASPPHead")
	classifier := m.classifier(head, c, width)
	pyramid := m.atrousPyramid(head, c, in.width(), width, true)
	var lowConv *graph.Module
	if lowIn > 0 {
		lowConv = head.Child("c1_bottleneck", m.conv1(lowIn, low))
	}
	fuse := head.Child("sep_bottleneck", sequential(m.separable(width+low, width, 1), m.separable(width, width, 1)))
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		output := f.Let("output", pyramid.of(f, in.of(f, features)))
		if lowConv != nil {
			c1 := f.Let("c1_output", f.Call1(lowConv, features[0]))
			output = f.Let("output", resizeLike(f, output, c1))
			output = f.Let("output", f.Cat(1, output, c1))
		}
		output = f.Let("output", f.Call1(fuse, output))
		return one(f.Let("output", classifier.classify(f, output)))
	}
	return head
}

// uperHead is UPerHead, of UPerNet: a pyramid of feature maps added from the
// last to the first, and the last pooled.
func (m mm) uperHead(c *Config) *graph.Module {
	c.Only(headKeys("pool_scales")...)
	in, width, scales := c.inputs(), c.Int("channels"), c.Ints("pool_scales")
	levels := len(in.widths)
	top := in.widths[levels-1]
	head := graph.NewModule("UPerHead")
	classifier := m.classifier(head, c, width)
	pool := head.Child("psp_modules", m.pyramidPooling(top, width, scales))
	bottleneck := head.Child("bottleneck", m.conv3(top+int64(len(scales))*width, width))
	var laterals, convs []*graph.Module
	for _, w := range in.widths[:levels-1] {
		laterals = append(laterals, m.convModule(w, width, convShape{kernel: 1}, relu))
		convs = append(convs, m.convModule(width, width, convShape{kernel: 3, padding: 1}, relu))
	}
	head.Child("lateral_convs", moduleList(laterals...))
	head.Child("fpn_convs", moduleList(convs...))
	fuse := head.Child("fpn_bottleneck", m.conv3(int64(levels)*width, width))
	feature := func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		x := make([]*graph.Tensor, levels) // laterals
		for i, l := range laterals {
			x[i] = f.Let("laterals."+numbered(i), f.Call1(l, features[in.at[i]]))
		}
		x[levels-1] = f.Let("laterals."+numbered(levels-1), pooledPyramid(f, pool, bottleneck, features[in.at[levels-1]]))
		for i := levels - 1; i > 0; i-- {
			x[i-1] = f.Let("laterals."+numbered(i-1), f.Add(x[i-1], resizeLike(f, x[i], x[i-1])))
		}
		outs := make([]*graph.Tensor, levels)
		for i, c := range convs {
			outs[i] = f.Let("fpn_outs."+numbered(i), f.Call1(c, x[i]))
		}
		outs[levels-1] = f.Let("fpn_outs."+numbered(levels-1), x[levels-1])
		for i := levels - 1; i > 0; i-- {
			outs[i] = f.Let("fpn_outs."+numbered(i), resizeLike(f, outs[i], outs[0]))
		}
		joined := f.Let("fpn_outs", f.Cat(1, outs...))
		for i := range outs {
			f.Del("fpn_outs." + numbered(i))
		}
		return one(f.Let("feats", f.Call1(fuse, joined)))
	}
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		output := f.Let("output", f.Func(feature, features...)[0])
		return one(f.Let("output", classifier.classify(f, output)))
	}
	return head
}

// fpnHead is FPNHead: each feature map resized step by step to the first, and
// their sum.
func (m mm) fpnHead(c *Config) *graph.Module {
	c.Only(headKeys("feature_strides")...)
	in, width, strides := c.inputs(), c.Int("channels"), c.Ints("feature_strides")
	head := graph.NewModule("FPNHead")
	classifier := m.classifier(head, c, width)
	var scales []*graph.Module
	for i, from := range in.widths {
		var steps []*graph.Module
		for stride := strides[min(i, len(strides)-1)]; stride > strides[0]; stride /= 2 {
			steps = append(steps, m.conv3(from, width), upsample(2))
			from = width
		}
		if len(steps) == 0 {
			steps = append(steps, m.conv3(from, width))
		}
		scales = append(scales, sequential(steps...))
	}
	head.Child("scale_heads", moduleList(scales...))
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		output := f.Let("output", f.Call1(scales[0], features[in.at[0]]))
		for i, s := range scales[1:] {
			output = f.Let("output", f.Add(output, resizeLike(f, f.Call1(s, features[in.at[i+1]]), output)))
		}
		return one(f.Let("output", classifier.classify(f, output)))
	}
	return head
}

// segformerHead is SegformerHead.
func (m mm) segformerHead(c *Config) *graph.Module {
	c.Only(headKeys()...)
	in, width := c.inputs(), c.Int("channels")
	head := graph.NewModule("SegformerHead")
	classifier := m.classifier(head, c, width)
	var convs []*graph.Module
	for _, w := range in.widths {
		convs = append(convs, m.conv1(w, width))
	}
	head.Child("convs", moduleList(convs...))
	fuse := head.Child("fusion_conv", m.conv1(int64(len(convs))*width, width))
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		outs := make([]*graph.Tensor, len(convs))
		for i, c := range convs {
			outs[i] = f.Let("outs."+numbered(i), resizeLike(f, f.Call1(c, features[in.at[i]]), features[in.at[0]]))
		}
		out := f.Let("out", f.Call1(fuse, f.Cat(1, outs...)))
		return one(f.Let("out", classifier.classify(f, out)))
	}
	return head
}

// lrasppHead is LRASPPHead: the last feature map scaled by what its mean says,
// joined step by step with the earlier ones.
func (m mm) lrasppHead(c *Config) *graph.Module {
	c.Only(headKeys()...)
	in, width := c.inputs(), c.Int("channels")
	widths := []int64{32, 64}
	levels := len(in.widths) - 1
	if levels != len(widths) {
		c.fields.Add("model.config.in_channels", levels+1, "three widths", "")
		return graph.NewModule("")
	}
	head := graph.NewModule("LRASPPHead")
	classifier := m.classifier(head, c, width)
	convs, ups := make([]*graph.Module, levels), make([]*graph.Module, levels)
	for i, w := range widths {
		convs[i] = head.Child("conv"+numbered(i), conv2d(m.d, in.widths[i], w, convShape{kernel: 1}))
		ups[i] = head.Child("conv_up"+numbered(i), m.conv1(width+w, width))
	}
	up := head.Child("conv_up_input", conv2d(m.d, width, width, convShape{kernel: 1, bias: true}))
	last := head.Child("aspp_conv", m.conv1(in.widths[levels], width))
	pool := graph.Pool{Kernel: square(49), Stride: graph.D(16, 20), Padding: square(0)}
	mean := function("AvgPool2d", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { return f.AvgPool(x, pool) })
	scale := head.Child("image_pool", sequential(mean, conv2d(m.d, in.widths[levels], width, convShape{kernel: 1}), sigmoid()))
	if h, w := m.b.Image[0]/8, m.b.Image[1]/8; h > 0 && (h < 49 || w < 49) {
		c.fields.Add("training.image_size", m.b.Image, "at least 392 pixels a side, for the head pools windows of 49 at an eighth", "")
	}
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", features[in.at[levels]])
		x = f.Let("x", f.Mul(f.Call1(last, x), resizeLike(f, f.Call1(scale, x), x)))
		x = f.Let("x", f.Call1(up, x))
		for i := levels - 1; i >= 0; i-- {
			like := features[in.at[i]]
			x = f.Let("x", resizeLike(f, x, like))
			x = f.Let("x", f.Cat(1, x, f.Call1(convs[i], like)))
			x = f.Let("x", f.Call1(ups[i], x))
		}
		return one(classifier.classify(f, x))
	}
	return head
}
