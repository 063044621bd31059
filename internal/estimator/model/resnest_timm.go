package model

import "memplan/internal/estimator/graph"

// timmResNeStFamily is ResNeSt as timm builds it: residual blocks whose middle
// convolution splits its channels and weighs the parts. Written from timm
// 1.0.31, models/resnest.py and layers/split_attn.py.
var timmResNeStFamily = Family{
	Name:          "resnest_timm",
	Library:       Timm,
	Architectures: sortedKeys(timmResNeSts),
	Source:        "huggingface/pytorch-image-models:timm/models/resnest.py@v1.0.31",
	New:           newTimmResNeSt,
}

// timmResNeSt is one of resnest.py's functions.
type timmResNeSt struct {
	layers [4]int
	stem   int64 // width of its three convolutions, twice that at the end
}

var timmResNeSts = map[string]timmResNeSt{
	"resnest14d": {[4]int{1, 1, 1, 1}, 32}, "resnest26d": {[4]int{2, 2, 2, 2}, 32}, "resnest50d": {[4]int{3, 4, 6, 3}, 32},
	"resnest101e": {[4]int{3, 4, 23, 3}, 64}, "resnest200e": {[4]int{3, 24, 36, 3}, 64}, "resnest269e": {[4]int{3, 30, 48, 8}, 64},
}

func newTimmResNeSt(c Config, b Build) (*Network, error) {
	s := timmResNeSts[c.Text("", "architecture")]
	n := classes(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	d := b.DType
	m := graph.NewModule("ResNet")
	m.Child("conv1", sequential(
		conv2d(d, 3, s.stem, convShape{kernel: 3, stride: 2, padding: 1}), batchNorm(d, s.stem), reluInPlace(),
		conv2d(d, s.stem, s.stem, convShape{kernel: 3, padding: 1}), batchNorm(d, s.stem), reluInPlace(),
		conv2d(d, s.stem, 2*s.stem, convShape{kernel: 3, padding: 1})))
	width := 2 * s.stem
	m.Child("bn1", batchNorm(d, width))
	m.Child("act1", reluInPlace())
	m.Child("maxpool", maxPool2d(3, 2, 1))
	var blocks []*graph.Module
	for i, count := range s.layers {
		planes := int64(64) << i
		var stage []*graph.Module
		for j := range count {
			stride := int64(1)
			if i > 0 && j == 0 {
				stride = 2
			}
			stage = append(stage, timmSplitBlock(d, width, planes, stride, j == 0))
			width = 4 * planes
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

// timmSplitBlock is ResNestBottleneck, which strides in a mean after its split
// attention.
func timmSplitBlock(d graph.DType, in, planes, stride int64, first bool) *graph.Module {
	m := graph.NewModule("ResNestBottleneck")
	out := 4 * planes
	path := []*graph.Module{
		m.Child("conv1", conv2d(d, in, planes, convShape{kernel: 1})), m.Child("bn1", batchNorm(d, planes)), m.Child("act1", reluInPlace()),
		m.Child("conv2", timmSplitAttn(d, planes)),
		m.Child("bn2", identity()), m.Child("drop_block", identity()), m.Child("act2", identity()),
	}
	if stride > 1 {
		path = append(path, m.Child("avd_last", avgPool2d(3, stride, 1)))
	}
	path = append(path, m.Child("conv3", conv2d(d, planes, out, convShape{kernel: 1})), m.Child("bn3", batchNorm(d, out)))
	act := m.Child("act3", reluInPlace())
	var downsample *graph.Module
	if first && (stride != 1 || in != out) {
		downsample = m.Child("downsample", timmShortcut(d, in, out, stride, true))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		shortcut := f.Let("shortcut", in[0])
		out := in[0]
		for _, c := range path {
			out = f.Let("out", f.Call1(c, out))
		}
		if downsample != nil {
			shortcut = f.Let("shortcut", f.Call1(downsample, in[0]))
		}
		out = f.Let("out", f.AddInPlace(out, shortcut))
		return one(f.Let("out", f.Call1(act, out)))
	}
	return m
}

// timmSplitAttn is SplitAttn of radix 2.
func timmSplitAttn(d graph.DType, channels int64) *graph.Module {
	const radix = 2
	inner := max(32, makeDivisible(float64(channels*radix)*0.25, 8))
	m := graph.NewModule("SplitAttn")
	conv := []*graph.Module{
		m.Child("conv", conv2d(d, channels, radix*channels, convShape{kernel: 3, padding: 1, groups: radix})),
		m.Child("bn0", batchNorm(d, radix*channels)), m.Child("drop", identity()), m.Child("act0", reluInPlace()),
	}
	squeeze := []*graph.Module{
		m.Child("fc1", conv2d(d, channels, inner, convShape{kernel: 1, bias: true})), m.Child("bn1", batchNorm(d, inner)), m.Child("act1", reluInPlace()),
	}
	fc2 := m.Child("fc2", conv2d(d, inner, radix*channels, convShape{kernel: 1, bias: true}))
	weigh := m.Child("rsoftmax", graph.NewModule("RadixSoftmax"))
	weigh.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch := in[0].Shape.D[0]
		x := f.Let("x", f.Transpose(f.View(in[0], batch, 1, radix, -1), 1, 2))
		x = f.Let("x", f.Softmax(x, x.DType))
		return one(f.Let("x", f.Reshape(x, batch, -1)))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		for _, c := range conv {
			x = f.Let("x", f.Call1(c, x))
		}
		n, h, w := x.Shape.D[0], x.Shape.D[2], x.Shape.D[3]
		x = f.Let("x", f.Reshape(x, n, radix, channels, h, w))
		gap := f.Let("x_gap", f.SumOver(x, 1, false))
		gap = f.Let("x_gap", f.Mean(gap, true, 2, 3))
		for _, c := range squeeze {
			gap = f.Let("x_gap", f.Call1(c, gap))
		}
		attn := f.Let("x_attn", f.Call1(fc2, gap))
		attn = f.Let("x_attn", f.View(f.Call1(weigh, attn), n, -1, 1, 1))
		out := f.Let("out", f.SumOver(f.Mul(x, f.Reshape(attn, n, radix, channels, 1, 1)), 1, false))
		return one(f.Contiguous(out))
	}
	return m
}
