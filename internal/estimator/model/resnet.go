package model

import "memplan/internal/estimator/graph"

// resnetFamily is ResNet, ResNeXt and Wide ResNet as torchvision builds them.
// Written from torchvision 0.29 and 0.21, models/resnet.py.
var resnetFamily = Family{
	Name:          "resnet",
	Library:       Torchvision,
	Architectures: sortedKeys(resnets),
	Source:        "pytorch/vision:torchvision/models/resnet.py@v0.29.2, v0.21.0",
	New:           newResNet,
}

// resnetShape is one of resnet.py's functions: blocks a stage, and what they
// are made of.
type resnetShape struct {
	bottleneck    bool
	layers        [4]int
	groups, width int64
	// dilate says in which of the last three stages dilation takes the place of
	// a stride (replace_stride_with_dilation).
	dilate [3]bool
}

var resnets = map[string]resnetShape{
	"resnet18":         {layers: [4]int{2, 2, 2, 2}, groups: 1, width: 64},
	"resnet34":         {layers: [4]int{3, 4, 6, 3}, groups: 1, width: 64},
	"resnet50":         {bottleneck: true, layers: [4]int{3, 4, 6, 3}, groups: 1, width: 64},
	"resnet101":        {bottleneck: true, layers: [4]int{3, 4, 23, 3}, groups: 1, width: 64},
	"resnet152":        {bottleneck: true, layers: [4]int{3, 8, 36, 3}, groups: 1, width: 64},
	"resnext50_32x4d":  {bottleneck: true, layers: [4]int{3, 4, 6, 3}, groups: 32, width: 4},
	"resnext101_32x8d": {bottleneck: true, layers: [4]int{3, 4, 23, 3}, groups: 32, width: 8},
	"resnext101_64x4d": {bottleneck: true, layers: [4]int{3, 4, 23, 3}, groups: 64, width: 4},
	"wide_resnet50_2":  {bottleneck: true, layers: [4]int{3, 4, 6, 3}, groups: 1, width: 128},
	"wide_resnet101_2": {bottleneck: true, layers: [4]int{3, 4, 23, 3}, groups: 1, width: 128},
}

func newResNet(c Config, b Build) (*Network, error) {
	shape := resnets[c.Text("", "architecture")]
	n := classes(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newResNetTrunk(shape, b.DType)
	m.Child("avgpool", adaptiveAvgPool2d(1))
	fc := m.Child("fc", linear(b.DType, m.channels, n, true))
	m.Forward = flattened(fc, m.Children[:len(m.Children)-1]...)
	return classifier(m.Module), nil
}

// resnetTrunk is the stem and the four stages, in the order they run.
type resnetTrunk struct {
	*graph.Module
	channels, dilation int64
	d                  graph.DType
}

func newResNetTrunk(s resnetShape, d graph.DType) *resnetTrunk {
	m := &resnetTrunk{Module: graph.NewModule("ResNet"), channels: 64, dilation: 1, d: d}
	m.Child("conv1", conv2d(d, 3, 64, convShape{kernel: 7, stride: 2, padding: 3}))
	m.Child("bn1", batchNorm(d, 64))
	m.Child("relu", reluInPlace())
	m.Child("maxpool", maxPool2d(3, 2, 1))
	m.Child("layer1", m.stage(s, 64, s.layers[0], 1, false))
	m.Child("layer2", m.stage(s, 128, s.layers[1], 2, s.dilate[0]))
	m.Child("layer3", m.stage(s, 256, s.layers[2], 2, s.dilate[1]))
	m.Child("layer4", m.stage(s, 512, s.layers[3], 2, s.dilate[2]))
	return m
}

// stage is _make_layer.
func (m *resnetTrunk) stage(s resnetShape, planes int64, blocks int, stride int64, dilate bool) *graph.Module {
	before := m.dilation
	if dilate {
		m.dilation *= stride
		stride = 1
	}
	out := planes
	if s.bottleneck {
		out = 4 * planes
	}
	var downsample *graph.Module
	if stride != 1 || m.channels != out {
		downsample = sequential(conv2d(m.d, m.channels, out, convShape{kernel: 1, stride: stride}), batchNorm(m.d, out))
	}
	var all []*graph.Module
	for i := range blocks {
		dilation := m.dilation
		if i == 0 {
			dilation = before
		} else {
			stride, downsample = 1, nil
		}
		if s.bottleneck {
			all = append(all, bottleneck(m.d, m.channels, planes, stride, dilation, s, downsample))
		} else {
			all = append(all, basicBlock(m.d, m.channels, planes, stride, 1, downsample))
		}
		m.channels = out
	}
	return sequential(all...)
}

// basicBlock is two convolutions of 3×3, the first of which may be dilated.
func basicBlock(d graph.DType, in, planes, stride, dilation int64, downsample *graph.Module) *graph.Module {
	m := graph.NewModule("BasicBlock")
	conv1 := m.Child("conv1", conv2d(d, in, planes, convShape{kernel: 3, stride: stride, padding: dilation, dilation: dilation}))
	bn1 := m.Child("bn1", batchNorm(d, planes))
	relu := m.Child("relu", reluInPlace())
	conv2 := m.Child("conv2", conv2d(d, planes, planes, convShape{kernel: 3, padding: 1}))
	bn2 := m.Child("bn2", batchNorm(d, planes))
	m.Forward = residual(relu, downsample, conv1, bn1, relu, conv2, bn2)
	return withDownsample(m, downsample)
}

// bottleneck is a convolution of 3×3 between two of 1×1.
func bottleneck(d graph.DType, in, planes, stride, dilation int64, s resnetShape, downsample *graph.Module) *graph.Module {
	width := planes * s.width / 64 * s.groups
	m := graph.NewModule("Bottleneck")
	conv1 := m.Child("conv1", conv2d(d, in, width, convShape{kernel: 1}))
	bn1 := m.Child("bn1", batchNorm(d, width))
	conv2 := m.Child("conv2", conv2d(d, width, width, convShape{kernel: 3, stride: stride, padding: dilation, dilation: dilation, groups: s.groups}))
	bn2 := m.Child("bn2", batchNorm(d, width))
	conv3 := m.Child("conv3", conv2d(d, width, 4*planes, convShape{kernel: 1}))
	bn3 := m.Child("bn3", batchNorm(d, 4*planes))
	relu := m.Child("relu", reluInPlace())
	m.Forward = residual(relu, downsample, conv1, bn1, relu, conv2, bn2, relu, conv3, bn3)
	return withDownsample(m, downsample)
}

func withDownsample(m, downsample *graph.Module) *graph.Module {
	if downsample != nil {
		m.Child("downsample", downsample)
	}
	return m
}

// residual is the forward of both blocks: a path, the shortcut added to it in
// place, and an activation.
func residual(relu, downsample *graph.Module, path ...*graph.Module) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		shortcut := f.Let("identity", in[0])
		out := in[0]
		for _, m := range path {
			out = f.Let("out", f.Call1(m, out))
		}
		if downsample != nil {
			shortcut = f.Let("identity", f.Call1(downsample, in[0]))
		}
		out = f.Let("out", f.AddInPlace(out, shortcut))
		return one(f.Let("out", f.Call1(relu, out)))
	}
}
