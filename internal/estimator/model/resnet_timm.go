package model

import "memplan/internal/estimator/graph"

// timmResNetFamily is ResNet and its relatives as timm builds them. Written
// from timm 1.0.31, models/resnet.py.
var timmResNetFamily = Family{
	Name:          "resnet",
	Library:       Timm,
	Architectures: sortedKeys(timmResNets),
	Source:        "huggingface/pytorch-image-models:timm/models/resnet.py@v1.0.31",
	New:           newTimmResNet,
}

// timmResNet is one of resnet.py's functions: torchvision's numbers, and the
// variants of the "D" networks and of squeeze-and-excitation.
type timmResNet struct {
	resnetShape
	deep    bool // a stem of three convolutions, and means before shortcuts
	squeeze bool
}

var timmResNets = timmResNetTable()

func timmResNetTable() map[string]timmResNet {
	table := map[string]timmResNet{
		"resnext101_32x4d": {resnetShape: resnetShape{bottleneck: true, layers: [4]int{3, 4, 23, 3}, groups: 32, width: 4}},
	}
	for _, name := range []string{"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"} {
		table[name] = timmResNet{resnetShape: resnets[name]}
		table[name+"d"] = timmResNet{resnetShape: resnets[name], deep: true}
		table["se"+name] = timmResNet{resnetShape: resnets[name], squeeze: true}
	}
	for _, name := range []string{"resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d", "wide_resnet50_2", "wide_resnet101_2"} {
		table[name] = timmResNet{resnetShape: resnets[name]}
	}
	return table
}

func newTimmResNet(c Config, b Build) (*Network, error) {
	s := timmResNets[c.Text("", "architecture")]
	n := classes(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	d := b.DType
	m := graph.NewModule("ResNet")
	m.Child("conv1", timmStem(d, s.deep))
	m.Child("bn1", batchNorm(d, 64))
	m.Child("act1", reluInPlace())
	m.Child("maxpool", maxPool2d(3, 2, 1))
	width := int64(64)
	var blocks []*graph.Module
	for i, count := range s.layers {
		planes := int64(64) << i
		var stage []*graph.Module
		for j := range count {
			stride := int64(1)
			if i > 0 && j == 0 {
				stride = 2
			}
			stage = append(stage, timmBlock(d, s, width, planes, stride, j == 0))
			width = s.outPlanes(planes)
		}
		blocks = append(blocks, stage...)
		m.Child("layer"+numbered(i+1), sequential(stage...))
	}
	trunk := m.Children
	pool := m.Child("global_pool", selectAdaptivePool())
	fc := m.Child("fc", linear(d, width, n, true))
	m.Forward = featuresThenHead(trunk, pool, fc)
	net := classifier(m)
	net.Blocks = blocks
	return net, nil
}

// outPlanes is the width a block returns.
func (s resnetShape) outPlanes(planes int64) int64 {
	if s.bottleneck {
		return 4 * planes
	}
	return planes
}

// timmStem is the first convolution, or three of 3×3.
func timmStem(d graph.DType, deep bool) *graph.Module {
	if !deep {
		return conv2d(d, 3, 64, convShape{kernel: 7, stride: 2, padding: 3})
	}
	return sequential(
		conv2d(d, 3, 32, convShape{kernel: 3, stride: 2, padding: 1}), batchNorm(d, 32), reluInPlace(),
		conv2d(d, 32, 32, convShape{kernel: 3, padding: 1}), batchNorm(d, 32), reluInPlace(),
		conv2d(d, 32, 64, convShape{kernel: 3, padding: 1}))
}

// timmBlock is BasicBlock or Bottleneck; the first of a stage may have a
// shortcut of its own.
func timmBlock(d graph.DType, s timmResNet, in, planes, stride int64, first bool) *graph.Module {
	m := graph.NewModule("BasicBlock")
	out := s.outPlanes(planes)
	var path []*graph.Module
	add := func(name string, c *graph.Module) { path = append(path, m.Child(name, c)) }
	if s.bottleneck {
		m.Class = "Bottleneck"
		width := planes * s.width / 64 * s.groups
		add("conv1", conv2d(d, in, width, convShape{kernel: 1}))
		add("bn1", batchNorm(d, width))
		add("act1", reluInPlace())
		add("conv2", conv2d(d, width, width, convShape{kernel: 3, stride: stride, padding: 1, groups: s.groups}))
		add("bn2", batchNorm(d, width))
		add("act2", reluInPlace())
		add("conv3", conv2d(d, width, out, convShape{kernel: 1}))
		add("bn3", batchNorm(d, out))
	} else {
		add("conv1", conv2d(d, in, planes, convShape{kernel: 3, stride: stride, padding: 1}))
		add("bn1", batchNorm(d, planes))
		add("act1", reluInPlace())
		add("conv2", conv2d(d, planes, planes, convShape{kernel: 3, padding: 1}))
		add("bn2", batchNorm(d, planes))
	}
	if s.squeeze {
		add("se", seModule(d, out, makeDivisible(float64(out)/16, 8)))
	}
	act := m.Child(map[bool]string{true: "act3", false: "act2"}[s.bottleneck], reluInPlace())
	var downsample *graph.Module
	if first && (stride != 1 || in != out) {
		downsample = m.Child("downsample", timmShortcut(d, in, out, stride, s.deep))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		shortcut := f.Let("shortcut", in[0])
		x := in[0]
		for _, c := range path {
			x = f.Let("x", f.Call1(c, x))
		}
		if downsample != nil {
			shortcut = f.Let("shortcut", f.Call1(downsample, shortcut))
		}
		x = f.Let("x", f.AddInPlace(x, shortcut))
		return one(f.Let("x", f.Call1(act, x)))
	}
	return m
}

// timmShortcut is downsample_conv, or downsample_avg.
func timmShortcut(d graph.DType, in, out, stride int64, average bool) *graph.Module {
	if !average {
		return sequential(conv2d(d, in, out, convShape{kernel: 1, stride: stride}), batchNorm(d, out))
	}
	pool := identity()
	if stride > 1 {
		p := graph.Pool{Kernel: square(2), Stride: square(stride), Padding: square(0), Ceil: true}
		pool = function("AvgPool2d", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { return f.AvgPool(x, p) })
	}
	return sequential(pool, conv2d(d, in, out, convShape{kernel: 1}), batchNorm(d, out))
}
