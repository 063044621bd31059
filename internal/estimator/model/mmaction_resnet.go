package model

import "memplan/internal/estimator/graph"

// ResNet and MobileNetV2 of MMAction2, with what looks at several frames
// (models/backbones/resnet.py, resnet_tsm.py, tanet.py, mobilenet_v2.py,
// mobilenet_v2_tsm.py, common/tam.py@v1.2.0).

// resnet is ResNet, ResNetTSM or TANet: the last stage's result.
func (m mma) resnet(c *Config) *graph.Module {
	c.Only("type", "depth", "in_channels", "norm", "shift_div", "num_segments", "tam_cfg")
	shape := resnetDepth(c)
	if m.temporal == "tam" && !shape.bottleneck {
		c.fields.Add("model.config.depth", c.values["depth"], "50 or more: temporal adaptive modules stand in bottlenecks", "50")
	}
	if tam := c.Part("tam_cfg"); tam != nil {
		tam.Only()
	}
	net := graph.NewModule("ResNet")
	net.Child("conv1", m.convModule(c.IntOr(3, "in_channels"), 64, convShape{kernel: 7, stride: 2, padding: 3}, reluInPlace))
	net.Child("maxpool", maxPool2d(3, 2, 1))
	every := 1
	if shape.layers[2] >= 23 {
		every = 2
	}
	width := int64(64)
	for i, n := range shape.layers {
		planes := int64(64) << i
		var blocks []*graph.Module
		for k := range n {
			stride := int64(1)
			if k == 0 && i > 0 {
				stride = 2
			}
			blocks = append(blocks, m.residualBlock(shape, width, planes, stride, m.temporal == "shift" && k%every == 0))
			width = shape.outPlanes(planes)
		}
		net.Child("layer"+numbered(i+1), sequential(blocks...))
	}
	net.Forward = stages(net.Children, 1, []bool{true})
	return net
}

// residualBlock is BasicBlock, Bottleneck or TABlock.
func (m mma) residualBlock(shape resnetShape, in, planes, stride int64, shifted bool) *graph.Module {
	block, out := graph.NewModule("BasicBlock"), shape.outPlanes(planes)
	first := convShape{kernel: 3, stride: stride, padding: 1}
	if shape.bottleneck {
		block.Class, first = "Bottleneck", convShape{kernel: 1}
	}
	conv1 := m.convModule(in, planes, first, reluInPlace)
	if shifted {
		conv1.Children[0] = m.temporalShift(conv1.Children[0])
		conv1.Children[0].Name = "conv"
	}
	path := []*graph.Module{block.Child("conv1", conv1)}
	if m.temporal == "tam" {
		path = append(path, block.Child("tam", m.temporalAdaptive(planes)))
	}
	if shape.bottleneck {
		path = append(path, block.Child("conv2", m.convModule(planes, planes, convShape{kernel: 3, stride: stride, padding: 1}, reluInPlace)))
		path = append(path, block.Child("conv3", m.convModule(planes, out, convShape{kernel: 1}, nil)))
	} else {
		path = append(path, block.Child("conv2", m.convModule(planes, out, convShape{kernel: 3, padding: 1}, nil)))
	}
	relu := block.Child("relu", reluInPlace())
	var downsample *graph.Module
	if stride != 1 || in != out {
		downsample = block.Child("downsample", m.convModule(in, out, convShape{kernel: 1, stride: stride}, nil))
	}
	block.Forward = outOfPlace(relu, downsample, path...)
	return block
}

// outOfPlace is the forward of MMAction2's residual blocks, where the shortcut
// is added to a fresh tensor.
func outOfPlace(act, downsample *graph.Module, path ...*graph.Module) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	inner := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		shortcut := f.Let("identity", in[0])
		out := in[0]
		for _, m := range path {
			out = f.Let("out", f.Call1(m, out))
		}
		if downsample != nil {
			shortcut = f.Let("identity", f.Call1(downsample, in[0]))
		}
		return one(f.Let("out", f.Add(out, shortcut)))
	}
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		out := f.Let("out", f.Func(inner, in[0])[0])
		return one(f.Let("out", f.Call1(act, out)))
	}
}

// temporalShift is TemporalShift: before a module runs, some channels move to
// the next frame and as many to the one before.
func (m mma) temporalShift(net *graph.Module) *graph.Module {
	shift := graph.NewModule("TemporalShift")
	shift.Child("net", net)
	shift.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Func(m.shift, in[0])[0])
		return one(f.Call1(net, x))
	}
	return shift
}

func (m mma) shift(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	n, channels, h, w := in[0].Shape.D[0], in[0].Shape.D[1], in[0].Shape.D[2], in[0].Shape.D[3]
	x := f.Let("x", f.View(in[0], -1, m.frames, channels, h*w))
	fold := channels / m.share
	part := func(t *graph.Tensor, dim int, from, to int64) *graph.Tensor { // t[…, from:to, …] with a ":" for every other dimension
		return f.SliceWhole(f.Slice(f.SliceWhole(t, dim), dim, from, to), 3-dim)
	}
	left := f.Let("left_split", part(x, 2, 0, fold))
	mid := f.Let("mid_split", part(x, 2, fold, 2*fold))
	right := f.Let("right_split", part(x, 2, 2*fold, channels))
	zeros := f.Let("zeros", f.Sub(left, left))
	blank := f.Let("blank", part(zeros, 1, 0, 1))
	left = f.Let("left_split", part(left, 1, 1, m.frames))
	left = f.Let("left_split", f.Cat(1, left, blank))
	zeros = f.Let("zeros", f.Sub(mid, mid))
	blank = f.Let("blank", part(zeros, 1, 0, 1))
	mid = f.Let("mid_split", part(mid, 1, 0, m.frames-1))
	mid = f.Let("mid_split", f.Cat(1, blank, mid))
	out := f.Let("out", f.Cat(2, left, mid, right))
	return one(f.View(out, n, channels, h, w))
}

// temporalAdaptive is TAM: a convolution over time whose kernel is made for each
// channel of each video, and a gate for each frame.
func (m mma) temporalAdaptive(channels int64) *graph.Module {
	const alpha, beta, kernel = 2, 4, 3
	frames, d := m.frames, m.d
	conv1d := func(in, out, kernel int64) *graph.Module {
		return convN(d, in, out, graph.D(kernel), convShape{padding: kernel / 2})
	}
	tam := graph.NewModule("TAM")
	softmax := function("Softmax", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { return f.Softmax(x, x.DType) })
	global := tam.Child("G", sequential(linear(d, frames, alpha*frames, false), batchNorm(d, alpha*frames), reluInPlace(),
		linear(d, alpha*frames, kernel, false), softmax))
	local := tam.Child("L", sequential(conv1d(channels, channels/beta, 3), batchNorm(d, channels/beta), reluInPlace(),
		conv1d(channels/beta, channels, 1), sigmoid()))
	tam.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		n, h, w := in[0].Shape.D[0], in[0].Shape.D[2], in[0].Shape.D[3]
		videos := n / frames
		x := f.Let("x", f.View(in[0], videos, frames, channels, h, w))
		x = f.Let("x", f.Contiguous(f.Permute(x, 0, 2, 1, 3, 4)))
		theta := f.Let("theta_out", f.AdaptiveAvgPool(f.View(x, -1, frames, h, w), 1))
		weight := f.Let("conv_kernel", f.View(f.Call1(global, f.View(theta, -1, frames)), videos*channels, 1, -1, 1))
		gate := f.Let("local_activation", f.View(f.Call1(local, f.View(theta, -1, channels, frames)), videos, channels, frames, 1, 1))
		gated := f.Let("new_x", f.Mul(x, gate))
		over := graph.Conv{
			Stride: graph.D(1, 1), Padding: graph.D(1, 0), Dilation: graph.D(1, 1), OutputPadding: graph.D(0, 0), Groups: videos * channels,
		}
		y := f.Let("y", f.Convolution(f.View(gated, 1, videos*channels, frames, h*w), weight, nil, over))
		y = f.Let("y", f.View(y, videos, channels, frames, h, w))
		return one(f.Let("y", f.View(f.Contiguous(f.Permute(y, 0, 2, 1, 3, 4)), n, channels, h, w)))
	}
	return tam
}

// mobilenetV2 is MobileNetV2 or MobileNetV2TSM: the last layer's result.
func (m mma) mobilenetV2(c *Config) *graph.Module {
	c.Only("type", "widen_factor", "norm", "shift_div", "num_segments")
	if m.temporal == "tam" {
		c.fields.Add("model.config.type", "mobilenet_v2", "resnet: temporal adaptive modules stand in bottlenecks", "resnet")
	}
	factor := c.Float(1, "widen_factor")
	strides := []int64{1, 2, 2, 2, 1, 2, 1}
	net := graph.NewModule("MobileNetV2")
	in := makeDivisible(32*factor, 8)
	net.Child("conv1", m.convModule(3, in, convShape{kernel: 3, stride: 2, padding: 1}, relu6))
	for i, s := range mobilenetV2Stages {
		out := makeDivisible(float64(s[1])*factor, 8)
		var blocks []*graph.Module
		for k := range s[2] {
			stride := int64(1)
			if k == 0 {
				stride = strides[i]
			}
			block := m.invertedResidual(in, out, stride, s[0], 1)
			if layers := block.Children[0].Children; m.temporal == "shift" && len(layers) == 3 && stride == 1 && in == out {
				layers[0] = m.temporalShift(layers[0])
				layers[0].Name = "0"
			}
			blocks = append(blocks, block)
			in = out
		}
		net.Child("layer"+numbered(i+1), sequential(blocks...))
	}
	net.Child("conv2", m.convModule(in, int64(1280*max(1, factor)), convShape{kernel: 1}, relu6))
	net.Forward = stages(net.Children, 1, []bool{true})
	return net
}
