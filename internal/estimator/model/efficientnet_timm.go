package model

import (
	"math"

	"memplan/internal/estimator/graph"
)

// timmEfficientNetFamily is EfficientNet and MobileNetV2 as timm builds them.
// Written from timm 1.0.31, models/efficientnet.py and _efficientnet_blocks.py.
var timmEfficientNetFamily = Family{
	Name:          "efficientnet_timm",
	Library:       Timm,
	Architectures: sortedKeys(timmEfficientNets),
	Source:        "huggingface/pytorch-image-models:timm/models/efficientnet.py@v1.0.31",
	New:           newTimmEfficientNet,
}

// timmEfficientNet are the multipliers of width and depth over a row of stages.
type timmEfficientNet struct {
	width, depth float64
	stages       []timmMobileStage
	act          activationFunc
	squeeze      bool
}

// timmMobileStage is a row of blocks: the first strides.
type timmMobileStage struct {
	repeats, kernel, stride, expand, out int64
}

var (
	efficientNetStages = []timmMobileStage{
		{1, 3, 1, 1, 16}, {2, 3, 2, 6, 24}, {2, 5, 2, 6, 40}, {3, 3, 2, 6, 80}, {3, 5, 1, 6, 112}, {4, 5, 2, 6, 192}, {1, 3, 1, 6, 320},
	}
	timmMobileV2Stages = []timmMobileStage{
		{1, 3, 1, 1, 16}, {2, 3, 2, 6, 24}, {3, 3, 2, 6, 32}, {4, 3, 2, 6, 64}, {3, 3, 1, 6, 96}, {3, 3, 2, 6, 160}, {1, 3, 1, 6, 320},
	}
)

var timmEfficientNets = timmEfficientNetTable()

func timmEfficientNetTable() map[string]timmEfficientNet {
	table := map[string]timmEfficientNet{}
	for i, m := range [][2]float64{{1, 1}, {1, 1.1}, {1.1, 1.2}, {1.2, 1.4}, {1.4, 1.8}, {1.6, 2.2}, {1.8, 2.6}, {2, 3.1}} {
		table["efficientnet_b"+numbered(i)] = timmEfficientNet{width: m[0], depth: m[1], stages: efficientNetStages, act: siluOver, squeeze: true}
	}
	for name, width := range map[string]float64{"mobilenetv2_035": 0.35, "mobilenetv2_050": 0.5, "mobilenetv2_075": 0.75, "mobilenetv2_100": 1, "mobilenetv2_140": 1.4} {
		table[name] = timmEfficientNet{width: width, depth: 1, stages: timmMobileV2Stages, act: relu6}
	}
	return table
}

func newTimmEfficientNet(c Config, b Build) (*Network, error) {
	s := timmEfficientNets[c.Text("", "architecture")]
	n := classes(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	d := b.DType
	channels := func(n int64) int64 { return makeDivisible(float64(n)*s.width, 8) }
	m := graph.NewModule("EfficientNet")
	in := channels(32)
	trunk := []*graph.Module{
		m.Child("conv_stem", conv2d(d, 3, in, convShape{kernel: 3, stride: 2, padding: 1})), m.Child("bn1", batchNormAct(d, in, s.act)),
	}
	var stages, blocks []*graph.Module
	for _, stage := range s.stages {
		var row []*graph.Module
		for i := range int64(math.Ceil(float64(stage.repeats) * s.depth)) {
			stride := stage.stride
			if i > 0 {
				stride = 1
			}
			row = append(row, s.block(d, stage, in, channels(stage.out), stride))
			in = channels(stage.out)
		}
		blocks = append(blocks, row...)
		stages = append(stages, sequential(row...))
	}
	trunk = append(trunk, m.Child("blocks", sequential(stages...)))
	features := max(1280, channels(1280))
	if s.squeeze {
		features = channels(1280)
	}
	trunk = append(trunk, m.Child("conv_head", conv2d(d, in, features, convShape{kernel: 1})), m.Child("bn2", batchNormAct(d, features, s.act)))
	pool, fc := m.Child("global_pool", selectAdaptivePool()), m.Child("classifier", linear(d, features, n, true))
	m.Forward = featuresThenHead(trunk, pool, fc)
	net := classifier(m)
	net.Blocks = blocks
	return net, nil
}

// batchNormAct is BatchNormAct2d: batch norm and an activation, nil for none.
func batchNormAct(d graph.DType, channels int64, act activationFunc) *graph.Module {
	m := batchNorm(d, channels)
	if act == nil {
		return m
	}
	norm, after := m.Forward, m.Child("act", act())
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", norm(f, in...)[0])
		return one(f.Let("x", f.Call1(after, x)))
	}
	return m
}

// block is DepthwiseSeparableConv, where nothing is expanded, or
// InvertedResidual.
func (s timmEfficientNet) block(d graph.DType, stage timmMobileStage, in, out, stride int64) *graph.Module {
	m := graph.NewModule("InvertedResidual")
	inner := makeDivisible(float64(in*stage.expand), 8)
	var path []*graph.Module
	add := func(name string, c *graph.Module) { path = append(path, m.Child(name, c)) }
	names := []string{"bn2", "conv_pwl", "bn3"}
	if stage.expand == 1 {
		m.Class, inner, names = "DepthwiseSeparableConv", in, []string{"bn1", "conv_pw", "bn2"}
	} else {
		add("conv_pw", conv2d(d, in, inner, convShape{kernel: 1}))
		add("bn1", batchNormAct(d, inner, s.act))
	}
	add("conv_dw", conv2d(d, inner, inner, convShape{kernel: stage.kernel, stride: stride, padding: (stage.kernel - 1) / 2, groups: inner}))
	add(names[0], batchNormAct(d, inner, s.act))
	if s.squeeze {
		add("se", timmSqueezeExcite(d, inner, half(float64(inner)*0.25/float64(stage.expand)), s.act))
	}
	add(names[1], conv2d(d, inner, out, convShape{kernel: 1}))
	add(names[2], batchNormAct(d, out, nil))
	m.Forward = func(f *graph.Frame, given ...*graph.Tensor) []*graph.Tensor {
		shortcut := f.Let("shortcut", given[0])
		x := given[0]
		for _, c := range path {
			x = f.Let("x", f.Call1(c, x))
		}
		if stride == 1 && in == out {
			x = f.Let("x", f.Add(x, shortcut))
		}
		return one(x)
	}
	return m
}

// timmSqueezeExcite is SqueezeExcite.
func timmSqueezeExcite(d graph.DType, channels, reduced int64, act activationFunc) *graph.Module {
	m := graph.NewModule("SqueezeExcite")
	path := []*graph.Module{
		m.Child("conv_reduce", conv2d(d, channels, reduced, convShape{kernel: 1, bias: true})), m.Child("act1", act()),
		m.Child("conv_expand", conv2d(d, reduced, channels, convShape{kernel: 1, bias: true})),
	}
	gate := m.Child("gate", sigmoid())
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x_se", f.Mean(in[0], true, 2, 3))
		for _, c := range path {
			x = f.Let("x_se", f.Call1(c, x))
		}
		return one(f.Mul(in[0], f.Call1(gate, x)))
	}
	return m
}
