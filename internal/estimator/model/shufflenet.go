package model

import "memplan/internal/estimator/graph"

// shufflenetFamily is ShuffleNet V2 as torchvision builds it. Written from
// torchvision 0.29 and 0.21, models/shufflenetv2.py.
var shufflenetFamily = Family{
	Name:          "shufflenet_v2",
	Library:       Torchvision,
	Architectures: sortedKeys(shufflenets),
	Source:        "pytorch/vision:torchvision/models/shufflenetv2.py@v0.29.2, v0.21.0",
	New:           newShuffleNet,
}

// shufflenets are the widths: stem, three stages, and the last convolution.
var shufflenets = map[string][5]int64{
	"shufflenet_v2_x0_5": {24, 48, 96, 192, 1024},
	"shufflenet_v2_x1_0": {24, 116, 232, 464, 1024},
	"shufflenet_v2_x1_5": {24, 176, 352, 704, 1024},
	"shufflenet_v2_x2_0": {24, 244, 488, 976, 2048},
}

func newShuffleNet(c Config, b Build) (*Network, error) {
	widths := shufflenets[c.Text("", "architecture")]
	n := classes(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	d := b.DType
	m := graph.NewModule("ShuffleNetV2")
	m.Child("conv1", sequential(conv2d(d, 3, widths[0], convShape{kernel: 3, stride: 2, padding: 1}), batchNorm(d, widths[0]), reluInPlace()))
	m.Child("maxpool", maxPool2d(3, 2, 1))
	for i, repeats := range []int{4, 8, 4} {
		in, out := widths[i], widths[i+1]
		units := []*graph.Module{shuffleUnit(d, in, out, 2)}
		for range repeats - 1 {
			units = append(units, shuffleUnit(d, out, out, 1))
		}
		m.Child("stage"+numbered(i+2), sequential(units...))
	}
	m.Child("conv5", sequential(conv2d(d, widths[3], widths[4], convShape{kernel: 1}), batchNorm(d, widths[4]), reluInPlace()))
	trunk := m.Children
	fc := m.Child("fc", linear(d, widths[4], n, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		for _, child := range trunk {
			x = f.Let("x", f.Call1(child, x))
		}
		x = f.Let("x", f.Mean(x, false, 2, 3))
		return one(f.Let("x", f.Call1(fc, x)))
	}
	return classifier(m), nil
}

// shuffleUnit is InvertedResidual: half the channels pass by, or both halves
// come from branches where the image shrinks.
func shuffleUnit(d graph.DType, in, out, stride int64) *graph.Module {
	half := out / 2
	depthwise := func(width int64) *graph.Module {
		return conv2d(d, width, width, convShape{kernel: 3, stride: stride, padding: 1, groups: width})
	}
	m := graph.NewModule("InvertedResidual")
	branch1, width := sequential(), half
	if stride > 1 {
		branch1 = sequential(depthwise(in), batchNorm(d, in), conv2d(d, in, half, convShape{kernel: 1}), batchNorm(d, half), reluInPlace())
		width = in
	}
	m.Child("branch1", branch1)
	branch2 := m.Child("branch2", sequential(
		conv2d(d, width, half, convShape{kernel: 1}), batchNorm(d, half), reluInPlace(),
		depthwise(half), batchNorm(d, half), conv2d(d, half, half, convShape{kernel: 1}), batchNorm(d, half), reluInPlace()))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		var out *graph.Tensor
		if stride == 1 {
			x := f.Split(in[0], 2, 1)
			x1, x2 := f.Let("x1", x[0]), f.Let("x2", x[1])
			out = f.Cat(1, x1, f.Call1(branch2, x2))
		} else {
			out = f.Cat(1, f.Call1(branch1, in[0]), f.Call1(branch2, in[0]))
		}
		out = f.Let("out", out)
		return one(f.Let("out", channelShuffle(f, out, 2)))
	}
	return m
}

// channelShuffle is channel_shuffle.
func channelShuffle(f *graph.Frame, x *graph.Tensor, groups int64) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		s := in[0].Shape.D
		x := f.Let("x", f.View(in[0], s[0], groups, s[1]/groups, s[2], s[3]))
		x = f.Let("x", f.Contiguous(f.Transpose(x, 1, 2)))
		return one(f.Let("x", f.View(x, s[0], s[1], s[2], s[3])))
	}, x)[0]
}
