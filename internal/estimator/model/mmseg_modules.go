package model

import "memplan/internal/estimator/graph"

// Modules of MMCV and MMSegmentation that several parts are made of
// (mmcv/cnn/bricks@v1.7.2, mmseg/ops/wrappers.py@v0.30.0).

// convModule is ConvModule: a convolution without a bias, batch norm, and an
// activation, nil for none.
func (m mm) convModule(in, out int64, s convShape, act activationFunc) *graph.Module {
	c := graph.NewModule("ConvModule")
	c.Child("conv", conv2d(m.d, in, out, s))
	c.Child("bn", batchNorm(m.d, out))
	if act != nil {
		c.Child("activate", act())
	}
	chain(c)
	return c
}

// conv1 and conv3 are ConvModules of 1×1 and 3×3 that keep the size, with an
// activation in place.
func (m mm) conv1(in, out int64) *graph.Module {
	return m.convModule(in, out, convShape{kernel: 1}, reluInPlace)
}

func (m mm) conv3(in, out int64) *graph.Module {
	return m.convModule(in, out, convShape{kernel: 3, padding: 1}, reluInPlace)
}

// separable is DepthwiseSeparableConvModule of 3×3.
func (m mm) separable(in, out, dilation int64) *graph.Module {
	s := convShape{kernel: 3, padding: dilation, dilation: dilation, groups: in}
	c := graph.NewModule("DepthwiseSeparableConvModule")
	c.Child("depthwise_conv", m.convModule(in, in, s, reluInPlace))
	c.Child("pointwise_conv", m.conv1(in, out))
	chain(c)
	return c
}

// moduleList is nn.ModuleList.
func moduleList(children ...*graph.Module) *graph.Module {
	m := graph.NewModule("ModuleList")
	for i, c := range children {
		m.Child(numbered(i), c)
	}
	return m
}

// resizeLike is resize to the height and width of another tensor.
func resizeLike(f *graph.Frame, x, like *graph.Tensor) *graph.Tensor {
	return f.Interpolate(x, like.Shape.D[2], like.Shape.D[3])
}

// upsample is Upsample by a factor.
func upsample(factor int64) *graph.Module {
	return function("Upsample", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
		return f.Interpolate(x, factor*x.Shape.D[2], factor*x.Shape.D[3])
	})
}

// pyramidPooling is PPM: means over grids of several sizes, each as wide as the
// input again.
func (m mm) pyramidPooling(in, out int64, scales []int64) *graph.Module {
	p := graph.NewModule("PPM")
	for i, s := range scales {
		p.Child(numbered(i), sequential(adaptiveAvgPool2d(s), m.conv1(in, out)))
	}
	p.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		outs := make([]*graph.Tensor, len(p.Children))
		for i, c := range p.Children {
			x := f.Let("ppm_out", f.Call1(c, in[0]))
			x = f.Let("upsampled_ppm_out", resizeLike(f, x, in[0]))
			outs[i] = f.Let("ppm_outs."+numbered(i), x)
		}
		return outs
	}
	return p
}

// pixelClassifier is conv_seg and the dropout before it.
type pixelClassifier struct {
	conv *graph.Module
	drop float64
}

// classifier reads the keys that every head has and adds its last layer.
func (m mm) classifier(head *graph.Module, c *Config, width int64) pixelClassifier {
	p := pixelClassifier{drop: max(0, c.Float(0.1, "dropout"))}
	p.conv = head.Child("conv_seg", conv2d(m.d, width, c.IntOr(19, "num_classes"), convShape{kernel: 1, bias: true}))
	if p.drop > 0 {
		head.Child("dropout", graph.NewModule("Dropout2d"))
	}
	return p
}

// classify is cls_seg.
func (p pixelClassifier) classify(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("feat", f.Dropout2d(in[0], p.drop))
		return one(f.Call1(p.conv, x))
	}, x)[0]
}

// headKeys are the keys every head may have.
func headKeys(more ...string) []string {
	return append(more, "type", "in_channels", "in_index", "channels", "num_classes", "norm", "align_corners", "dropout", "activation",
		"input_transform", "losses", "sampler")
}

// chosen picks the feature maps a head looks at (in_index): one, or several
// that are resized to the first and joined where joined is set.
type chosen struct {
	at     []int64
	widths []int64
	joined bool
}

// inputs reads in_channels, in_index and input_transform.
func (c *Config) inputs() chosen {
	in := chosen{joined: c.Text("", "input_transform") == "resize_concat"}
	if _, list := c.values["in_channels"].([]any); list {
		in.widths = c.Ints("in_channels")
	} else {
		in.widths = []int64{c.Int("in_channels")}
	}
	in.at = c.indices("in_index")
	if len(in.at) != len(in.widths) {
		c.fields.Add("model.config.in_index", c.values["in_index"], "as many places as in_channels has widths", "")
		in.at = make([]int64, len(in.widths))
	}
	return in
}

// indices reads a place, or a list of them; they count from 0.
func (c *Config) indices(key string) []int64 {
	list, ok := c.values[key].([]any)
	if !ok {
		return []int64{c.Count(0, key)}
	}
	all := make([]int64, len(list))
	for i, v := range list {
		if v != 0.0 && v != 0 {
			all[i] = c.whole(key, v)
		}
	}
	return all
}

// width is that of what the head computes with.
func (in chosen) width() int64 {
	n := int64(0)
	for _, w := range in.widths {
		n += w
	}
	return n
}

// of is _transform_inputs: the one feature map, or the joined one.
func (in chosen) of(f *graph.Frame, features []*graph.Tensor) *graph.Tensor {
	first := features[in.at[0]]
	if !in.joined {
		return f.Let("x", first)
	}
	return f.Let("x", f.Func(func(f *graph.Frame, all ...*graph.Tensor) []*graph.Tensor {
		resized := make([]*graph.Tensor, len(in.at))
		for i, at := range in.at {
			resized[i] = f.Let("upsampled_inputs."+numbered(i), resizeLike(f, all[at], all[in.at[0]]))
		}
		return one(f.Let("inputs", f.Cat(1, resized...)))
	}, features...)[0])
}
