package model

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// MobileNets as MMSegmentation builds them
// (mmseg/models/backbones/mobilenet_v2.py, mobilenet_v3.py,
// utils/inverted_residual.py@v0.30.0).

// mobilenetV2Stages are expansion, width and blocks of each stage.
var mobilenetV2Stages = [7][3]int64{{1, 16, 1}, {6, 24, 2}, {6, 32, 3}, {6, 64, 4}, {6, 96, 3}, {6, 160, 3}, {6, 320, 1}}

// relu6 is nn.ReLU6 in place.
func relu6() *graph.Module { return function("ReLU6", (*graph.Frame).Relu6InPlace) }

// mobilenetV2 is MobileNetV2: the results of its stages.
func (m mm) mobilenetV2(c *Config) *graph.Module {
	c.Only("type", "widen_factor", "strides", "dilations", "out_indices", "norm")
	factor, n := c.Float(1, "widen_factor"), len(mobilenetV2Stages)
	strides, dilations := c.PerLevel(1, n, "strides"), c.PerLevel(1, n, "dilations")
	net := graph.NewModule("MobileNetV2")
	in := makeDivisible(32*factor, 8)
	net.Child("conv1", m.convModule(3, in, convShape{kernel: 3, stride: 2, padding: 1}, relu6))
	for i, s := range mobilenetV2Stages {
		out := makeDivisible(float64(s[1])*factor, 8)
		var blocks []*graph.Module
		for k := range s[2] {
			stride, dilation := int64(1), int64(1)
			if k == 0 {
				stride, dilation = strides[i], dilations[i]
			}
			blocks = append(blocks, m.invertedResidual(in, out, stride, s[0], dilation))
			in = out
		}
		net.Child("layer"+numbered(i+1), sequential(blocks...))
	}
	net.Forward = stages(net.Children, n, c.outIndices(n))
	return net
}

// invertedResidual is InvertedResidual of MobileNetV2.
func (m mm) invertedResidual(in, out, stride, expand, dilation int64) *graph.Module {
	hidden := in * expand
	block := graph.NewModule("InvertedResidual")
	var layers []*graph.Module
	if expand != 1 {
		layers = append(layers, m.convModule(in, hidden, convShape{kernel: 1}, relu6))
	}
	layers = append(layers,
		m.convModule(hidden, hidden, convShape{kernel: 3, stride: stride, padding: dilation, dilation: dilation, groups: hidden}, relu6),
		m.convModule(hidden, out, convShape{kernel: 1}, nil))
	conv := block.Child("conv", sequential(layers...))
	added := stride == 1 && in == out
	block.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		if !added {
			return one(f.Call1(conv, in[0]))
		}
		return one(f.Let("out", f.Add(in[0], f.Call1(conv, in[0]))))
	}
	return block
}

// mmMobileV3 is a block of MobileNetV3: kernel, inner and outer width, stride.
type mmMobileV3 struct {
	kernel, hidden, out, stride int64
	squeeze, hard               bool
}

var mmMobileV3s = map[string][]mmMobileV3{
	"small": {
		{3, 16, 16, 2, true, false},
		{3, 72, 24, 2, false, false},
		{3, 88, 24, 1, false, false},
		{5, 96, 40, 2, true, true},
		{5, 240, 40, 1, true, true},
		{5, 240, 40, 1, true, true},
		{5, 120, 48, 1, true, true},
		{5, 144, 48, 1, true, true},
		{5, 288, 96, 2, true, true},
		{5, 576, 96, 1, true, true},
		{5, 576, 96, 1, true, true},
	},
	"large": {
		{3, 16, 16, 1, false, false},
		{3, 64, 24, 2, false, false},
		{3, 72, 24, 1, false, false},
		{5, 72, 40, 2, true, false},
		{5, 120, 40, 1, true, false},
		{5, 120, 40, 1, true, false},
		{3, 240, 80, 2, false, true},
		{3, 200, 80, 1, false, true},
		{3, 184, 80, 1, false, true},
		{3, 184, 80, 1, false, true},
		{3, 480, 112, 1, true, true},
		{3, 672, 112, 1, true, true},
		{5, 672, 160, 2, true, true},
		{5, 960, 160, 1, true, true},
		{5, 960, 160, 1, true, true},
	},
}

// mobilenetV3 is MobileNetV3 turned to segmentation: from one layer on dilation
// takes the place of strides, and again from another.
func (m mm) mobilenetV3(c *Config) *graph.Module {
	c.Only("type", "arch", "out_indices", "norm")
	arch := c.OneOf("arch", "small", "large")
	blocks := mmMobileV3s[arch]
	twice, four, last := 4, 9, int64(576)
	if arch == "large" {
		twice, four, last = 7, 13, 960
	}
	net := graph.NewModule("MobileNetV3")
	in := int64(16)
	net.Child("layer0", m.padded(m.convModule(3, in, convShape{kernel: 3, stride: 2}, m.hardSwish), 3, 2))
	for i, b := range blocks {
		stride, dilation := b.stride, int64(1)
		switch at := i + 1; {
		case at >= four:
			dilation = 4
		case at >= twice:
			dilation = 2
		}
		adaptive := b.stride == 2
		if i+1 == twice || i+1 == four {
			stride = 1
		}
		net.Child("layer"+numbered(i+1), m.invertedResidualV3(b, in, stride, dilation, adaptive))
		in = b.out
	}
	net.Child("layer"+numbered(len(blocks)+1), m.convModule(in, last, convShape{kernel: 1}, m.hardSwish))
	n := len(net.Children)
	net.Forward = stages(net.Children, n, c.outIndices(n))
	return net
}

// padded is Conv2dAdaptivePadding: an input is padded as a kernel and a stride
// need it, which here pads it on both sides alike or by one more at the end.
func (m mm) padded(conv *graph.Module, kernel, stride int64) *graph.Module {
	forward := conv.Forward
	conv.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		short := func(size int64) int64 {
			out := (size + stride - 1) / stride
			return max((out-1)*stride+kernel-size, 0)
		}
		by := short(in[0].Shape.D[2])
		if by == 0 {
			return forward(f, in...)
		}
		x := f.Let("x", f.Pad2D(in[0], by))
		return forward(f, x)
	}
	return conv
}

// invertedResidualV3 is InvertedResidualV3.
func (m mm) invertedResidualV3(b mmMobileV3, in, stride, dilation int64, adaptive bool) *graph.Module {
	act := activationFunc(reluInPlace)
	if b.hard {
		act = m.hardSwish
	}
	block := graph.NewModule("InvertedResidual")
	var layers []*graph.Module
	if in != b.hidden {
		layers = append(layers, block.Child("expand_conv", m.convModule(in, b.hidden, convShape{kernel: 1}, act)))
	}
	s := convShape{kernel: b.kernel, stride: stride, dilation: dilation, groups: b.hidden}
	if !adaptive {
		s.padding = (b.kernel - 1) / 2 * dilation
	}
	depthwise := m.convModule(b.hidden, b.hidden, s, act)
	if adaptive {
		depthwise = m.padded(depthwise, (b.kernel-1)*dilation+1, stride)
	}
	layers = append(layers, block.Child("depthwise_conv", depthwise))
	if b.squeeze {
		layers = append(layers, block.Child("se", m.seLayer(b.hidden, 4)))
	}
	layers = append(layers, block.Child("linear_conv", m.convModule(b.hidden, b.out, convShape{kernel: 1}, nil)))
	added := b.stride == 1 && in == b.out
	block.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		out := f.Let("out", in[0])
		for _, l := range layers {
			out = f.Let("out", f.Call1(l, out))
		}
		if added {
			return one(f.Let("out", f.Add(in[0], out)))
		}
		return one(out)
	}
	return block
}

// seLayer is SELayer.
func (m mm) seLayer(channels, ratio int64) *graph.Module {
	squeezed := makeDivisible(float64(channels/ratio), 8)
	se := graph.NewModule("SELayer")
	layers := []*graph.Module{
		se.Child("global_avgpool", adaptiveAvgPool2d(1)),
		se.Child("conv1", sequential(conv2d(m.d, channels, squeezed, convShape{kernel: 1, bias: true}), reluInPlace())),
		se.Child("conv2", sequential(conv2d(m.d, squeezed, channels, convShape{kernel: 1, bias: true}), hardSig())),
	}
	se.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		out := in[0]
		for _, l := range layers {
			out = f.Let("out", f.Call1(l, out))
		}
		return one(f.Mul(in[0], out))
	}
	return se
}

// hardswishSince is when MMCV began to take torch's own Hardswish
// (mmcv/cnn/bricks/hswish.py).
var hardswishSince = spec.Version{1, 7}

// hardSwish is HSwish: torch's in place, or before it x · relu6(x + 3) / 6.
func (m mm) hardSwish() *graph.Module {
	if m.b.Versions.Torch.AtLeast(hardswishSince) {
		return hardOver()
	}
	return function("HSwish", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
		return f.MulScalar(f.Mul(x, f.Relu6InPlace(f.AddScalar(x))))
	})
}
