package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// mobilenetV3Family is MobileNet V3 as torchvision builds it. Written from
// torchvision 0.29 and 0.21, models/mobilenetv3.py.
var mobilenetV3Family = Family{
	Name:          "mobilenet_v3",
	Library:       Torchvision,
	Architectures: sortedKeys(mobilenetV3s),
	Source:        "pytorch/vision:torchvision/models/mobilenetv3.py@v0.29.2, v0.21.0",
	New:           newMobileNetV3,
}

// mobileBlock is a row of the paper's tables: InvertedResidualConfig.
type mobileBlock struct {
	in, kernel, expanded, out int64
	squeeze, hard             bool // squeeze-and-excitation; hardswish for ReLU
	stride, dilation          int64
}

type mobileShape struct {
	blocks []mobileBlock
	last   int64
}

var mobilenetV3s = map[string]mobileShape{
	"mobilenet_v3_large": mobilenetV3Large(1),
	"mobilenet_v3_small": {last: 1024, blocks: []mobileBlock{
		{16, 3, 16, 16, true, false, 2, 1},
		{16, 3, 72, 24, false, false, 2, 1},
		{24, 3, 88, 24, false, false, 1, 1},
		{24, 5, 96, 40, true, true, 2, 1},
		{40, 5, 240, 40, true, true, 1, 1},
		{40, 5, 240, 40, true, true, 1, 1},
		{40, 5, 120, 48, true, true, 1, 1},
		{48, 5, 144, 48, true, true, 1, 1},
		{48, 5, 288, 96, true, true, 2, 1},
		{96, 5, 576, 96, true, true, 1, 1},
		{96, 5, 576, 96, true, true, 1, 1},
	}},
}

// mobilenetV3Large is the large table, with a dilation in its last stage where
// it is the backbone of a segmentor.
func mobilenetV3Large(dilation int64) mobileShape {
	return mobileShape{last: 1280, blocks: []mobileBlock{
		{16, 3, 16, 16, false, false, 1, 1},
		{16, 3, 64, 24, false, false, 2, 1},
		{24, 3, 72, 24, false, false, 1, 1},
		{24, 5, 72, 40, true, false, 2, 1},
		{40, 5, 120, 40, true, false, 1, 1},
		{40, 5, 120, 40, true, false, 1, 1},
		{40, 3, 240, 80, false, true, 2, 1},
		{80, 3, 200, 80, false, true, 1, 1},
		{80, 3, 184, 80, false, true, 1, 1},
		{80, 3, 184, 80, false, true, 1, 1},
		{80, 3, 480, 112, true, true, 1, 1},
		{112, 3, 672, 112, true, true, 1, 1},
		{112, 5, 672, 160, true, true, 2, dilation},
		{160, 5, 960, 160, true, true, 1, dilation},
		{160, 5, 960, 160, true, true, 1, dilation},
	}}
}

func newMobileNetV3(c Config, b Build) (*Network, error) {
	shape := mobilenetV3s[c.Text("", "architecture")]
	n := classes(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := graph.NewModule("MobileNetV3")
	features := m.Child("features", mobileFeatures(b.DType, shape))
	pool := m.Child("avgpool", adaptiveAvgPool2d(1))
	head := m.Child("classifier", sequential(
		linear(b.DType, shape.width(), shape.last, true), hardOver(), dropoutInPlace(0.2), linear(b.DType, shape.last, n, true)))
	m.Forward = flattened(head, features, pool)
	return classifier(m), nil
}

// width is the channels of the features.
func (s mobileShape) width() int64 { return 6 * s.blocks[len(s.blocks)-1].out }

// mobileFeatures is MobileNetV3.features.
func mobileFeatures(d graph.DType, s mobileShape) *graph.Module {
	layers := []*graph.Module{convNormAct(d, 3, s.blocks[0].in, convShape{kernel: 3, stride: 2}, hardOver)}
	for _, b := range s.blocks {
		layers = append(layers, mobileResidual(d, b))
	}
	out := s.blocks[len(s.blocks)-1].out
	return sequential(append(layers, convNormAct(d, out, s.width(), convShape{kernel: 1}, hardOver))...)
}

// mobileResidual is InvertedResidual.
func mobileResidual(d graph.DType, b mobileBlock) *graph.Module {
	act := activationFunc(reluInPlace)
	if b.hard {
		act = hardOver
	}
	var layers []*graph.Module
	if b.expanded != b.in {
		layers = append(layers, convNormAct(d, b.in, b.expanded, convShape{kernel: 1}, act))
	}
	stride := b.stride
	if b.dilation > 1 {
		stride = 1
	}
	layers = append(layers, convNormAct(d, b.expanded, b.expanded, convShape{kernel: b.kernel, stride: stride, dilation: b.dilation, groups: b.expanded}, act))
	if b.squeeze {
		layers = append(layers, squeezeExcitation(d, b.expanded, makeDivisible(float64(b.expanded/4), 8), relu, hardSig))
	}
	layers = append(layers, convNormAct(d, b.expanded, b.out, convShape{kernel: 1}, nil))

	m := graph.NewModule("InvertedResidual")
	block := m.Child("block", sequential(layers...))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		result := f.Let("result", f.Call1(block, in[0]))
		if b.stride == 1 && b.in == b.out {
			result = f.Let("result", f.AddInPlace(result, in[0]))
		}
		return one(result)
	}
	return m
}

// strided lists the positions among the features whose output is taken before
// the image shrinks, the first and the last included.
func (s mobileShape) strided() []int {
	at := []int{0}
	for i, b := range s.blocks {
		if b.stride > 1 {
			at = append(at, i+1)
		}
	}
	return append(at, len(s.blocks)+1)
}

// channelsAt is the width of the features at a position.
func (s mobileShape) channelsAt(i int) int64 {
	if i > len(s.blocks) {
		return s.width()
	}
	return s.blocks[i-1].out
}

// numbered is the name of a child of nn.Sequential.
func numbered(i int) string { return strconv.Itoa(i) }
