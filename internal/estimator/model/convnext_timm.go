package model

import "memplan/internal/estimator/graph"

// timmConvNeXtFamily is ConvNeXt as timm builds it. Written from timm 1.0.31,
// models/convnext.py.
var timmConvNeXtFamily = Family{
	Name:          "convnext_timm",
	Library:       Timm,
	Architectures: sortedKeys(timmConvNeXts),
	Source:        "huggingface/pytorch-image-models:timm/models/convnext.py@v1.0.31",
	New:           newTimmConvNeXt,
}

// convnextShape is the blocks and the width of each stage.
type convnextShape struct {
	depths, widths [4]int64
}

var timmConvNeXts = map[string]convnextShape{
	"convnext_tiny":   {[4]int64{3, 3, 9, 3}, [4]int64{96, 192, 384, 768}},
	"convnext_small":  {[4]int64{3, 3, 27, 3}, [4]int64{96, 192, 384, 768}},
	"convnext_base":   {[4]int64{3, 3, 27, 3}, [4]int64{128, 256, 512, 1024}},
	"convnext_large":  {[4]int64{3, 3, 27, 3}, [4]int64{192, 384, 768, 1536}},
	"convnext_xlarge": {[4]int64{3, 3, 27, 3}, [4]int64{256, 512, 1024, 2048}},
}

func newTimmConvNeXt(c Config, b Build) (*Network, error) {
	s := timmConvNeXts[c.Text("", "architecture")]
	n := classes(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	d := b.DType
	m := graph.NewModule("ConvNeXt")
	in := s.widths[0]
	stem := m.Child("stem", sequential(conv2d(d, 3, in, convShape{kernel: 4, stride: 4, bias: true}), timmLayerNorm2d(d, in)))
	var stages, blocks []*graph.Module
	for i, width := range s.widths {
		stage := graph.NewModule("ConvNeXtStage")
		if i > 0 {
			stage.Child("downsample", sequential(timmLayerNorm2d(d, in), conv2d(d, in, width, convShape{kernel: 2, stride: 2, bias: true})))
		} else {
			stage.Child("downsample", identity())
		}
		var row []*graph.Module
		for range s.depths[i] {
			row = append(row, timmConvNeXtBlock(d, width))
		}
		blocks = append(blocks, row...)
		stage.Child("blocks", sequential(row...))
		chainNamed(stage, "x")
		stages = append(stages, stage)
		in = width
	}
	body := m.Child("stages", sequential(stages...))
	head := m.Child("head", graph.NewModule("NormMlpClassifierHead"))
	pool := head.Child("global_pool", adaptiveAvgPool2d(1))
	norm := head.Child("norm", timmLayerNorm2d(d, in))
	fc := head.Child("fc", linear(d, in, n, true))
	head.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(pool, in[0]))
		x = f.Let("x", f.Call1(norm, x))
		x = f.Let("x", flatten(f, x))
		return one(f.Let("x", f.Call1(fc, x)))
	}
	m.Forward = featuresThenHead([]*graph.Module{stem, body}, head)
	net := classifier(m)
	net.Blocks = blocks
	return net, nil
}

// chainNamed is chain with the local of hand-written forwards.
func chainNamed(m *graph.Module, name string) {
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		for _, c := range m.Children {
			x = f.Let(name, f.Call1(c, x))
		}
		return one(x)
	}
}

// timmLayerNorm2d is LayerNorm2d, over the channels of an image.
func timmLayerNorm2d(d graph.DType, width int64) *graph.Module {
	m := graph.NewModule("LayerNorm2d")
	w, b := m.Param("weight", d, width), m.Param("bias", d, width)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Permute(in[0], 0, 2, 3, 1))
		x = f.Let("x", f.LayerNorm(x, w.T(), b.T()))
		return one(f.Let("x", f.Permute(x, 0, 3, 1, 2)))
	}
	return m
}

// timmConvNeXtBlock is ConvNeXtBlock.
func timmConvNeXtBlock(d graph.DType, width int64) *graph.Module {
	m := graph.NewModule("ConvNeXtBlock")
	gamma := m.Param("gamma", d, width)
	conv := m.Child("conv_dw", conv2d(d, width, width, convShape{kernel: 7, padding: 3, groups: width, bias: true}))
	norm, mlp := m.Child("norm", layerNorm(d, width)), m.Child("mlp", timmMLP(d, width, 4*width))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(conv, in[0]))
		x = f.Let("x", f.Permute(x, 0, 2, 3, 1))
		x = f.Let("x", f.Call1(norm, x))
		x = f.Let("x", f.Call1(mlp, x))
		x = f.Let("x", f.Permute(x, 0, 3, 1, 2))
		x = f.Let("x", f.Mul(x, f.Reshape(gamma.T(), 1, -1, 1, 1)))
		return one(f.Let("x", f.Add(x, in[0])))
	}
	return m
}
