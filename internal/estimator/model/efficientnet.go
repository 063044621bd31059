package model

import (
	"math"

	"memplan/internal/estimator/graph"
)

// efficientnetFamily is EfficientNet 1 and 2 as torchvision builds them.
// Written from torchvision 0.29 and 0.21, models/efficientnet.py.
var efficientnetFamily = Family{
	Name:          "efficientnet",
	Library:       Torchvision,
	Architectures: sortedKeys(efficientnets),
	Source:        "pytorch/vision:torchvision/models/efficientnet.py@v0.29.2, v0.21.0",
	New:           newEfficientNet,
}

// mbStage is a row of the paper's table: MBConvConfig or FusedMBConvConfig.
type mbStage struct {
	fused                                   bool
	expand, kernel, stride, in, out, layers int64
}

type efficientnetShape struct {
	stages  []mbStage
	last    int64 // channels before the head; 0 is four times the last stage's
	dropout float64
}

var efficientnets = map[string]efficientnetShape{
	"efficientnet_b0": efficientnetB(1.0, 1.0, 0.2), "efficientnet_b1": efficientnetB(1.0, 1.1, 0.2),
	"efficientnet_b2": efficientnetB(1.1, 1.2, 0.3), "efficientnet_b3": efficientnetB(1.2, 1.4, 0.3),
	"efficientnet_b4": efficientnetB(1.4, 1.8, 0.4), "efficientnet_b5": efficientnetB(1.6, 2.2, 0.4),
	"efficientnet_b6": efficientnetB(1.8, 2.6, 0.5), "efficientnet_b7": efficientnetB(2.0, 3.1, 0.5),
	"efficientnet_v2_s": {last: 1280, dropout: 0.2, stages: []mbStage{
		{true, 1, 3, 1, 24, 24, 2},
		{true, 4, 3, 2, 24, 48, 4},
		{true, 4, 3, 2, 48, 64, 4},
		{false, 4, 3, 2, 64, 128, 6},
		{false, 6, 3, 1, 128, 160, 9},
		{false, 6, 3, 2, 160, 256, 15},
	}},
	"efficientnet_v2_m": {last: 1280, dropout: 0.3, stages: []mbStage{
		{true, 1, 3, 1, 24, 24, 3},
		{true, 4, 3, 2, 24, 48, 5},
		{true, 4, 3, 2, 48, 80, 5},
		{false, 4, 3, 2, 80, 160, 7},
		{false, 6, 3, 1, 160, 176, 14},
		{false, 6, 3, 2, 176, 304, 18},
		{false, 6, 3, 1, 304, 512, 5},
	}},
	"efficientnet_v2_l": {last: 1280, dropout: 0.4, stages: []mbStage{
		{true, 1, 3, 1, 32, 32, 4},
		{true, 4, 3, 2, 32, 64, 7},
		{true, 4, 3, 2, 64, 96, 7},
		{false, 4, 3, 2, 96, 192, 10},
		{false, 6, 3, 1, 192, 224, 19},
		{false, 6, 3, 2, 224, 384, 25},
		{false, 6, 3, 1, 384, 640, 7},
	}},
}

// efficientnetB scales the table of B0 in width and depth.
func efficientnetB(width, depth, dropout float64) efficientnetShape {
	stages := []mbStage{
		{false, 1, 3, 1, 32, 16, 1},
		{false, 6, 3, 2, 16, 24, 2},
		{false, 6, 5, 2, 24, 40, 2},
		{false, 6, 3, 2, 40, 80, 3},
		{false, 6, 5, 1, 80, 112, 3},
		{false, 6, 5, 2, 112, 192, 4},
		{false, 6, 3, 1, 192, 320, 1},
	}
	for i := range stages {
		s := &stages[i]
		s.in, s.out = makeDivisible(float64(s.in)*width, 8), makeDivisible(float64(s.out)*width, 8)
		s.layers = int64(math.Ceil(float64(s.layers) * depth))
	}
	return efficientnetShape{stages: stages, dropout: dropout}
}

// depthDrop is the stochastic depth of the last block; the first has none.
const depthDrop = 0.2

func newEfficientNet(c Config, b Build) (*Network, error) {
	shape := efficientnets[c.Text("", "architecture")]
	n := classes(&c, b)
	drop := c.Float(depthDrop, "stochastic_depth_prob")
	if err := c.Err(); err != nil {
		return nil, err
	}
	d := b.DType
	blocks := int64(0)
	for _, s := range shape.stages {
		blocks += s.layers
	}
	layers := []*graph.Module{convNormAct(d, 3, shape.stages[0].in, convShape{kernel: 3, stride: 2}, siluOver)}
	at := int64(0)
	for _, s := range shape.stages {
		var stage []*graph.Module
		for i := range s.layers {
			if i > 0 {
				s.in, s.stride = s.out, 1
			}
			stage = append(stage, mbConv(d, s, drop*float64(at)/float64(blocks)))
			at++
		}
		layers = append(layers, sequential(stage...))
	}
	in := shape.stages[len(shape.stages)-1].out
	if shape.last == 0 {
		shape.last = 4 * in
	}
	m := graph.NewModule("EfficientNet")
	features := m.Child("features", sequential(append(layers, convNormAct(d, in, shape.last, convShape{kernel: 1}, siluOver))...))
	pool := m.Child("avgpool", adaptiveAvgPool2d(1))
	head := m.Child("classifier", sequential(dropoutInPlace(shape.dropout), linear(d, shape.last, n, true)))
	m.Forward = flattened(head, features, pool)
	return classifier(m), nil
}

// mbConv is MBConv, or FusedMBConv.
func mbConv(d graph.DType, s mbStage, drop float64) *graph.Module {
	m := graph.NewModule("MBConv")
	layers := mbLayers(d, s)
	if s.fused {
		m.Class = "FusedMBConv"
		layers = fusedLayers(d, s)
	}
	block := m.Child("block", sequential(layers...))
	depth := m.Child("stochastic_depth", stochasticDepth(drop))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		result := f.Let("result", f.Call1(block, in[0]))
		if s.stride == 1 && s.in == s.out {
			result = f.Let("result", f.Call1(depth, result))
			result = f.Let("result", f.AddInPlace(result, in[0]))
		}
		return one(result)
	}
	return m
}

func mbLayers(d graph.DType, s mbStage) []*graph.Module {
	expanded := makeDivisible(float64(s.in*s.expand), 8)
	var layers []*graph.Module
	if expanded != s.in {
		layers = append(layers, convNormAct(d, s.in, expanded, convShape{kernel: 1}, siluOver))
	}
	return append(layers,
		convNormAct(d, expanded, expanded, convShape{kernel: s.kernel, stride: s.stride, groups: expanded}, siluOver),
		squeezeExcitation(d, expanded, max(1, s.in/4), siluOver, sigmoid),
		convNormAct(d, expanded, s.out, convShape{kernel: 1}, nil))
}

func fusedLayers(d graph.DType, s mbStage) []*graph.Module {
	expanded := makeDivisible(float64(s.in*s.expand), 8)
	if expanded == s.in {
		return []*graph.Module{convNormAct(d, s.in, s.out, convShape{kernel: s.kernel, stride: s.stride}, siluOver)}
	}
	return []*graph.Module{
		convNormAct(d, s.in, expanded, convShape{kernel: s.kernel, stride: s.stride}, siluOver),
		convNormAct(d, expanded, s.out, convShape{kernel: 1}, nil),
	}
}
