package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// densenetFamily is DenseNet as torchvision builds it. Written from torchvision
// 0.29 and 0.21, models/densenet.py.
var densenetFamily = Family{
	Name:          "densenet",
	Library:       Torchvision,
	Architectures: sortedKeys(densenets),
	Source:        "pytorch/vision:torchvision/models/densenet.py@v0.29.2, v0.21.0",
	New:           newDenseNet,
}

type densenetShape struct {
	growth int64
	layers [4]int
	first  int64
}

var densenets = map[string]densenetShape{
	"densenet121": {32, [4]int{6, 12, 24, 16}, 64},
	"densenet161": {48, [4]int{6, 12, 36, 24}, 96},
	"densenet169": {32, [4]int{6, 12, 32, 32}, 64},
	"densenet201": {32, [4]int{6, 12, 48, 32}, 64},
}

func newDenseNet(c Config, b Build) (*Network, error) {
	shape := densenets[c.Text("", "architecture")]
	n := classes(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := graph.NewModule("DenseNet")
	features, width := denseFeatures(b.DType, shape)
	m.Child("features", features)
	head := m.Child("classifier", linear(b.DType, width, n, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		features := f.Let("features", f.Call1(features, in[0]))
		out := f.Let("out", f.ReluInPlace(features))
		out = f.Let("out", f.AdaptiveAvgPool(out, 1))
		out = f.Let("out", flatten(f, out))
		return one(f.Let("out", f.Call1(head, out)))
	}
	return classifier(m), nil
}

// denseFeatures is DenseNet.features, and its last width.
func denseFeatures(d graph.DType, s densenetShape) (*graph.Module, int64) {
	m := graph.NewModule("Sequential")
	m.Child("conv0", conv2d(d, 3, s.first, convShape{kernel: 7, stride: 2, padding: 3}))
	m.Child("norm0", batchNorm(d, s.first))
	m.Child("relu0", reluInPlace())
	m.Child("pool0", maxPool2d(3, 2, 1))
	width := s.first
	for i, layers := range s.layers {
		m.Child("denseblock"+strconv.Itoa(i+1), denseBlock(d, layers, width, s.growth))
		width += int64(layers) * s.growth
		if i < len(s.layers)-1 {
			m.Child("transition"+strconv.Itoa(i+1), denseTransition(d, width, width/2))
			width /= 2
		}
	}
	m.Child("norm5", batchNorm(d, width))
	chain(m)
	return m, width
}

// denseBlock is _DenseBlock: every layer sees the results of all before it.
func denseBlock(d graph.DType, layers int, width, growth int64) *graph.Module {
	m := graph.NewModule("_DenseBlock")
	for i := range layers {
		m.Child("denselayer"+strconv.Itoa(i+1), denseLayer(d, width+int64(i)*growth, growth))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		features := []*graph.Tensor{in[0]}
		for _, layer := range m.Children {
			features = append(features, f.Let(layer.Name, f.Call1(layer, features...)))
		}
		return one(f.Cat(1, features...))
	}
	return m
}

// denseLayer is _DenseLayer, whose bottleneck is four times the growth.
func denseLayer(d graph.DType, in, growth int64) *graph.Module {
	m := graph.NewModule("_DenseLayer")
	norm1, relu1 := m.Child("norm1", batchNorm(d, in)), m.Child("relu1", reluInPlace())
	conv1 := m.Child("conv1", conv2d(d, in, 4*growth, convShape{kernel: 1}))
	norm2, relu2 := m.Child("norm2", batchNorm(d, 4*growth)), m.Child("relu2", reluInPlace())
	conv2 := m.Child("conv2", conv2d(d, 4*growth, growth, convShape{kernel: 3, padding: 1}))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		bottleneck := f.Let("bottleneck_output", f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // bn_function
			joined := f.Let("concated_features", f.Cat(1, in...))
			return one(f.Let("bottleneck_output", f.Call1(conv1, f.Call1(relu1, f.Call1(norm1, joined)))))
		}, in...)[0])
		return one(f.Let("new_features", f.Call1(conv2, f.Call1(relu2, f.Call1(norm2, bottleneck)))))
	}
	return m
}

// denseTransition is _Transition: half as many channels and pixels.
func denseTransition(d graph.DType, in, out int64) *graph.Module {
	m := graph.NewModule("_Transition")
	m.Child("norm", batchNorm(d, in))
	m.Child("relu", reluInPlace())
	m.Child("conv", conv2d(d, in, out, convShape{kernel: 1}))
	m.Child("pool", avgPool2d(2, 2, 0))
	chain(m)
	return m
}
