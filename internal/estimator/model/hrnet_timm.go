package model

import "memplan/internal/estimator/graph"

// timmHRNetFamily is HRNet with its classification head as timm builds it:
// branches of several resolutions, fused after every module. Written from timm
// 1.0.31, models/hrnet.py.
var timmHRNetFamily = Family{
	Name:          "hrnet_timm",
	Library:       Timm,
	Architectures: sortedKeys(timmHRNets),
	Source:        "huggingface/pytorch-image-models:timm/models/hrnet.py@v1.0.31",
	New:           newTimmHRNet,
}

// timmHRNets are the widths of the finest branch.
var timmHRNets = map[string]int64{"hrnet_w18": 18, "hrnet_w30": 30, "hrnet_w32": 32, "hrnet_w40": 40, "hrnet_w44": 44, "hrnet_w48": 48, "hrnet_w64": 64}

func newTimmHRNet(c Config, b Build) (*Network, error) {
	width := timmHRNets[c.Text("", "architecture")]
	n := classes(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	t := timmHRNet{d: b.DType}
	m := graph.NewModule("HighResolutionNet")
	stem := []*graph.Module{
		m.Child("conv1", conv2d(b.DType, 3, 64, convShape{kernel: 3, stride: 2, padding: 1})), m.Child("bn1", batchNorm(b.DType, 64)), m.Child("act1", reluInPlace()),
		m.Child("conv2", conv2d(b.DType, 64, 64, convShape{kernel: 3, stride: 2, padding: 1})), m.Child("bn2", batchNorm(b.DType, 64)), m.Child("act2", reluInPlace()),
	}
	var first []*graph.Module
	in := int64(64)
	for range 4 {
		first = append(first, t.bottleneck(in, 64))
		in = 256
	}
	layer1 := m.Child("layer1", sequential(first...))
	before := []int64{256}
	var levels []timmHRLevel
	for i, modules := range []int{1, 4, 3} {
		after := make([]int64, i+2)
		for k := range after {
			after[k] = width << k
		}
		l := timmHRLevel{transition: t.transition(before, after)}
		list := m.Child("transition"+numbered(i+1), graph.NewModule("ModuleList"))
		for k, part := range l.transition {
			list.Child(numbered(k), part)
		}
		for range modules {
			l.modules = append(l.modules, t.module(after))
		}
		m.Child("stage"+numbered(i+2), sequential(l.modules...))
		levels, before = append(levels, l), after
	}
	head := t.head(m, before)
	classify := inOrder([]*graph.Module{m.Child("global_pool", selectAdaptivePool()), m.Child("classifier", linear(b.DType, 2048, n, true))})
	stages := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return runTimmHRLevels(f, layer1, levels, in[0])
	}
	features := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		for _, part := range stem {
			x = f.Let("x", f.Call1(part, x))
		}
		yl := f.Func(stages, x)
		for i, y := range yl {
			yl[i] = f.Let("yl."+numbered(i), y)
		}
		return one(head(f, yl))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		y := f.Let("y", f.Func(features, in[0])[0])
		return one(f.Let("x", f.Func(classify, y)[0]))
	}
	net := classifier(m)
	for _, l := range levels {
		net.Blocks = append(net.Blocks, l.modules...)
	}
	return net, nil
}

// timmHRLevel is what leads to a stage, and its modules.
type timmHRLevel struct{ transition, modules []*graph.Module }

// runTimmHRLevels is HighResolutionNet.stages.
func runTimmHRLevels(f *graph.Frame, layer1 *graph.Module, levels []timmHRLevel, x *graph.Tensor) []*graph.Tensor {
	x = f.Let("x", f.Call1(layer1, x))
	var yl []*graph.Tensor
	for i, l := range levels {
		xl := make([]*graph.Tensor, len(l.transition))
		for k, part := range l.transition {
			from := x
			switch {
			case i > 0 && part.Class == "Identity":
				xl[k] = f.Let("xl."+numbered(k), yl[k])
				continue
			case i > 0:
				from = yl[len(yl)-1]
			}
			xl[k] = f.Let("xl."+numbered(k), f.Call1(part, from))
		}
		for _, part := range l.modules {
			out := f.Call(part, xl...)
			for k, y := range out {
				out[k] = f.Let("yl."+numbered(k), y)
			}
			for k := range xl { // autograd keeps what the lists of Python would
				f.Del("xl." + numbered(k))
			}
			xl, yl = out, out
		}
	}
	return yl
}

// timmHRNet makes the parts of HRNet in one type.
type timmHRNet struct{ d graph.DType }

func (t timmHRNet) bottleneck(in, planes int64) *graph.Module {
	return timmBlock(t.d, timmResNet{resnetShape: resnets["resnet50"]}, in, planes, 1, true)
}

// step is a convolution of 3×3 that halves where stride is 2, batch norm, and
// what comes after.
func (t timmHRNet) step(in, out, stride int64, after ...*graph.Module) *graph.Module {
	return sequential(append([]*graph.Module{conv2d(t.d, in, out, convShape{kernel: 3, stride: stride, padding: 1}), batchNorm(t.d, out)}, after...)...)
}

// transition is _make_transition_layer.
func (t timmHRNet) transition(before, after []int64) []*graph.Module {
	all := make([]*graph.Module, len(after))
	for i, out := range after {
		if i < len(before) {
			if all[i] = identity(); before[i] != out {
				all[i] = t.step(before[i], out, 1, reluInPlace())
			}
			continue
		}
		last := before[len(before)-1]
		var steps []*graph.Module
		for range i - len(before) {
			steps = append(steps, t.step(last, last, 2, reluInPlace()))
		}
		all[i] = sequential(append(steps, t.step(last, out, 2, reluInPlace()))...)
	}
	return all
}

// module is HighResolutionModule: each branch's blocks, then every branch's sum
// of all.
func (t timmHRNet) module(widths []int64) *graph.Module {
	mod := graph.NewModule("HighResolutionModule")
	branches := mod.Child("branches", graph.NewModule("ModuleList"))
	for i, w := range widths {
		var blocks []*graph.Module
		for range 4 {
			blocks = append(blocks, timmBlock(t.d, timmResNet{}, w, w, 1, true))
		}
		branches.Child(numbered(i), sequential(blocks...))
	}
	list := mod.Child("fuse_layers", graph.NewModule("ModuleList"))
	fuse := make([][]*graph.Module, len(widths))
	for i := range widths {
		row := list.Child(numbered(i), graph.NewModule("ModuleList"))
		for j := range widths {
			fuse[i] = append(fuse[i], row.Child(numbered(j), t.fuse(widths, i, j)))
		}
	}
	act := mod.Child("fuse_act", relu())
	mod.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := make([]*graph.Tensor, len(in))
		for i, b := range branches.Children {
			x[i] = f.Let("x."+numbered(i), f.Call1(b, in[i]))
		}
		outs := make([]*graph.Tensor, len(in))
		for i := range fuse {
			f.Del("y") // y = None
			y := f.Let("y", f.Call1(fuse[i][0], x[0]))
			for j := 1; j < len(x); j++ {
				y = f.Let("y", f.Add(y, f.Call1(fuse[i][j], x[j])))
			}
			outs[i] = f.Let("x_fuse."+numbered(i), f.Call1(act, y))
		}
		return outs
	}
	return mod
}

// fuse leads from branch j to branch i.
func (t timmHRNet) fuse(widths []int64, i, j int) *graph.Module {
	switch {
	case j == i:
		return identity()
	case j > i:
		return sequential(conv2d(t.d, widths[j], widths[i], convShape{kernel: 1}), batchNorm(t.d, widths[i]), upsample(1<<(j-i)))
	}
	var steps []*graph.Module
	for range i - j - 1 {
		steps = append(steps, t.step(widths[j], widths[j], 2, relu()))
	}
	return sequential(append(steps, t.step(widths[j], widths[i], 2))...)
}

// head is _make_head: it widens every branch and adds them up from the finest.
func (t timmHRNet) head(m *graph.Module, widths []int64) func(f *graph.Frame, yl []*graph.Tensor) *graph.Tensor {
	wider := m.Child("incre_modules", graph.NewModule("ModuleList"))
	for i, w := range widths {
		wider.Child(numbered(i), sequential(t.bottleneck(w, 32<<i)))
	}
	down := m.Child("downsamp_modules", graph.NewModule("ModuleList"))
	for i := range len(widths) - 1 {
		in := int64(128) << i
		down.Child(numbered(i), sequential(conv2d(t.d, in, 2*in, convShape{kernel: 3, stride: 2, padding: 1, bias: true}), batchNorm(t.d, 2*in), reluInPlace()))
	}
	final := m.Child("final_layer", sequential(conv2d(t.d, 1024, 2048, convShape{kernel: 1, bias: true}), batchNorm(t.d, 2048), reluInPlace()))
	return func(f *graph.Frame, yl []*graph.Tensor) *graph.Tensor {
		y := f.Let("y", f.Call1(wider.Children[0], yl[0]))
		for i := 1; i < len(yl); i++ {
			y = f.Let("y", f.Add(f.Call1(wider.Children[i], yl[i]), f.Call1(down.Children[i-1], y)))
		}
		return f.Let("y", f.Call1(final, y))
	}
}
