package model

import (
	"fmt"
	"math"

	"memplan/internal/estimator/graph"
)

// regnetFamily is RegNet X and Y as torchvision builds them. Written from
// torchvision 0.29 and 0.21, models/regnet.py.
var regnetFamily = Family{
	Name:          "regnet",
	Library:       Torchvision,
	Architectures: sortedKeys(regnets),
	Source:        "pytorch/vision:torchvision/models/regnet.py@v0.29.2, v0.21.0",
	New:           newRegNet,
}

// regnetShape is the numbers a RegNet's stages are computed from; squeeze is
// the ratio of squeeze-and-excitation, 0 for none.
type regnetShape struct {
	depth       int
	first       int64
	slope, step float64
	group       int64
	squeeze     float64
}

var regnets = map[string]regnetShape{
	"regnet_y_400mf": {16, 48, 27.89, 2.09, 8, 0.25}, "regnet_y_800mf": {14, 56, 38.84, 2.4, 16, 0.25},
	"regnet_y_1_6gf": {27, 48, 20.71, 2.65, 24, 0.25}, "regnet_y_3_2gf": {21, 80, 42.63, 2.66, 24, 0.25},
	"regnet_y_8gf": {17, 192, 76.82, 2.19, 56, 0.25}, "regnet_y_16gf": {18, 200, 106.23, 2.48, 112, 0.25},
	"regnet_y_32gf": {20, 232, 115.89, 2.53, 232, 0.25}, "regnet_y_128gf": {27, 456, 160.83, 2.52, 264, 0.25},
	"regnet_x_400mf": {22, 24, 24.48, 2.54, 16, 0}, "regnet_x_800mf": {16, 56, 35.73, 2.28, 16, 0},
	"regnet_x_1_6gf": {18, 80, 34.01, 2.25, 24, 0}, "regnet_x_3_2gf": {25, 88, 26.31, 2.25, 48, 0},
	"regnet_x_8gf": {23, 80, 49.56, 2.88, 120, 0}, "regnet_x_16gf": {22, 216, 55.59, 2.1, 128, 0},
	"regnet_x_32gf": {23, 320, 69.86, 2.0, 168, 0},
}

// regnetStage is a stage of equal blocks.
type regnetStage struct {
	depth        int
	width, group int64
}

// stages quantises the widths of the blocks and groups equal ones
// (BlockParams.from_init_params).
func (s regnetShape) stages() []regnetStage {
	const quantum = 8
	var all []regnetStage
	for i := range s.depth {
		ideal := float64(i)*s.slope + float64(s.first)
		power := math.RoundToEven(math.Log(ideal/float64(s.first)) / math.Log(s.step))
		width := half(float64(s.first)*math.Pow(s.step, power)/quantum) * quantum
		if n := len(all); n > 0 && all[n-1].width == width {
			all[n-1].depth++
		} else {
			all = append(all, regnetStage{depth: 1, width: width})
		}
	}
	for i := range all {
		all[i].group = min(s.group, all[i].width)
		all[i].width = makeDivisible(float64(all[i].width), all[i].group)
	}
	return all
}

func newRegNet(c Config, b Build) (*Network, error) {
	shape := regnets[c.Text("", "architecture")]
	n := classes(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	d := b.DType
	const stem = 32
	m := graph.NewModule("RegNet")
	first := m.Child("stem", convNormAct(d, 3, stem, convShape{kernel: 3, stride: 2}, reluInPlace))
	trunk := m.Child("trunk_output", graph.NewModule("Sequential"))
	width := int64(stem)
	for i, s := range shape.stages() {
		stage := trunk.Child(fmt.Sprintf("block%d", i+1), graph.NewModule("AnyStage"))
		for j := range s.depth {
			stride := int64(1)
			if j == 0 {
				stride = 2
			}
			stage.Child(fmt.Sprintf("block%d-%d", i+1, j), regnetBlock(d, width, s.width, stride, s.group, shape.squeeze))
			width = s.width
		}
		chain(stage)
	}
	chain(trunk)
	pool := m.Child("avgpool", adaptiveAvgPool2d(1))
	fc := m.Child("fc", linear(d, width, n, true))
	m.Forward = flattened(fc, first, trunk, pool)
	return classifier(m), nil
}

// regnetBlock is ResBottleneckBlock.
func regnetBlock(d graph.DType, in, out, stride, group int64, squeeze float64) *graph.Module {
	m := graph.NewModule("ResBottleneckBlock")
	var proj *graph.Module
	if in != out || stride != 1 {
		proj = m.Child("proj", convNormAct(d, in, out, convShape{kernel: 1, stride: stride}, nil))
	}
	path := m.Child("f", graph.NewModule("BottleneckTransform"))
	path.Child("a", convNormAct(d, in, out, convShape{kernel: 1}, reluInPlace))
	path.Child("b", convNormAct(d, out, out, convShape{kernel: 3, stride: stride, groups: out / group}, reluInPlace))
	if squeeze > 0 {
		path.Child("se", squeezeExcitation(d, out, half(squeeze*float64(in)), relu, sigmoid))
	}
	path.Child("c", convNormAct(d, out, out, convShape{kernel: 1}, nil))
	chain(path)
	activation := m.Child("activation", reluInPlace())
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		if proj != nil {
			x = f.Call1(proj, x)
		}
		x = f.Let("x", f.Add(x, f.Call1(path, in[0])))
		return one(f.Call1(activation, x))
	}
	return m
}
