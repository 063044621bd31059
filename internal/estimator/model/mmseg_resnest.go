package model

import "memplan/internal/estimator/graph"

// ResNeSt: residual blocks whose middle convolution splits its channels and
// weighs the parts (mmseg/models/backbones/resnest.py@v0.30.0).

// resnest is ResNeSt: the results of its stages.
func (m mm) resnest(c *Config) *graph.Module {
	c.Only("type", "depth", "num_stages", "out_indices", "dilations", "strides", "norm", "contract_dilation", "stem_channels", "radix",
		"reduction_factor", "avg_down_stride", "in_channels")
	shape := resnetDepth(c)
	n := len(shape.layers)
	strides, dilations := c.PerLevel(1, n, "strides"), c.PerLevel(1, n, "dilations")
	radix, reduction := c.IntOr(2, "radix"), c.IntOr(4, "reduction_factor")
	pooled := c.Bool(true, "avg_down_stride")
	width := c.IntOr(64, "stem_channels")
	net := graph.NewModule("ResNeSt")
	net.Child("stem", mmDeepStem(m.d, c.IntOr(3, "in_channels"), width))
	net.Child("maxpool", maxPool2d(3, 2, 1))
	for i, count := range shape.layers {
		planes, dilation := int64(64)<<i, dilations[i]
		var blocks []*graph.Module
		for k := range count {
			s, d := int64(1), dilation
			if k == 0 {
				s = strides[i]
				if c.Bool(false, "contract_dilation") && d > 1 {
					d /= 2
				}
			}
			blocks = append(blocks, m.splitBottleneck(width, planes, s, d, radix, reduction, pooled, k == 0))
			width = 4 * planes
		}
		net.Child("layer"+numbered(i+1), sequential(blocks...))
	}
	net.Forward = stages(net.Children, n, c.outIndices(n))
	return net
}

// splitBottleneck is Bottleneck with SplitAttentionConv2d.
func (m mm) splitBottleneck(in, planes, stride, dilation, radix, reduction int64, pooled, first bool) *graph.Module {
	b := graph.NewModule("Bottleneck")
	pooled = pooled && stride > 1
	inner := stride
	if pooled {
		inner = 1
	}
	relu := reluInPlace()
	path := []*graph.Module{
		b.Child("conv1", conv2d(m.d, in, planes, convShape{kernel: 1})), b.Child("bn1", batchNorm(m.d, planes)), b.Child("relu", relu),
		b.Child("conv2", m.splitAttention(planes, inner, dilation, radix, reduction)),
	}
	if pooled {
		path = append(path, b.Child("avd_layer", avgPool2d(3, stride, 1)))
	}
	path = append(path, b.Child("conv3", conv2d(m.d, planes, 4*planes, convShape{kernel: 1})), b.Child("bn3", batchNorm(m.d, 4*planes)))
	var shortcut *graph.Module
	if first && (stride != 1 || in != 4*planes) {
		p := graph.Pool{Kernel: square(stride), Stride: square(stride), Padding: square(0), Ceil: true}
		mean := function("AvgPool2d", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { return f.AvgPool(x, p) })
		shortcut = b.Child("downsample", sequential(mean, conv2d(m.d, in, 4*planes, convShape{kernel: 1}), batchNorm(m.d, 4*planes)))
	}
	b.Forward = residual(relu, shortcut, path...)
	return b
}

// splitAttention is SplitAttentionConv2d.
func (m mm) splitAttention(channels, stride, dilation, radix, reduction int64) *graph.Module {
	inner := max(channels*radix/reduction, 32)
	s := graph.NewModule("SplitAttentionConv2d")
	conv := s.Child("conv", conv2d(m.d, channels, channels*radix, convShape{kernel: 3, stride: stride, padding: dilation, dilation: dilation, groups: radix}))
	norm0 := s.Child("bn0", batchNorm(m.d, channels*radix))
	relu := s.Child("relu", reluInPlace())
	fc1 := s.Child("fc1", conv2d(m.d, channels, inner, convShape{kernel: 1, bias: true}))
	norm1 := s.Child("bn1", batchNorm(m.d, inner))
	fc2 := s.Child("fc2", conv2d(m.d, inner, channels*radix, convShape{kernel: 1, bias: true}))
	weigh := s.Child("rsoftmax", graph.NewModule("RSoftmax"))
	weigh.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		n := in[0].Shape.D[0]
		x := f.Let("x", f.Transpose(f.View(in[0], n, 1, radix, -1), 1, 2))
		x = f.Let("x", f.Softmax(x, x.DType))
		return one(f.Let("x", f.Reshape(x, n, -1)))
	}
	s.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		for _, c := range []*graph.Module{conv, norm0, relu} {
			x = f.Let("x", f.Call1(c, x))
		}
		n, h, w := x.Shape.D[0], x.Shape.D[2], x.Shape.D[3]
		splits := f.Let("splits", f.View(x, n, radix, channels, h, w))
		gap := f.Let("gap", f.SumOver(splits, 1, false))
		gap = f.Let("gap", f.AdaptiveAvgPool(gap, 1))
		for _, c := range []*graph.Module{fc1, norm1, relu} {
			gap = f.Let("gap", f.Call1(c, gap))
		}
		atten := f.Let("atten", f.Call1(fc2, gap))
		atten = f.Let("atten", f.View(f.Call1(weigh, atten), n, -1, 1, 1))
		attens := f.Let("attens", f.View(atten, n, radix, channels, 1, 1))
		return one(f.Let("out", f.SumOver(f.Mul(attens, splits), 1, false)))
	}
	return s
}
