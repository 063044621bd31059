package model

import "memplan/internal/estimator/graph"

// HRNet as MMSegmentation builds it: branches of several resolutions, fused
// after every module (mmseg/models/backbones/hrnet.py@v0.30.0).

// hrStage is one of HRNet's stages.
type hrStage struct {
	modules          int64
	bottleneck       bool
	blocks, channels []int64
}

func (s hrStage) outPlanes(planes int64) int64 {
	return resnetShape{bottleneck: s.bottleneck}.outPlanes(planes)
}

// widths are those of the stage's branches.
func (s hrStage) widths() []int64 {
	all := make([]int64, len(s.channels))
	for i, c := range s.channels {
		all[i] = s.outPlanes(c)
	}
	return all
}

func readHRStage(c *Config) hrStage {
	c.Only("num_modules", "num_branches", "block", "num_blocks", "num_channels")
	n := int(c.Int("num_branches"))
	return hrStage{
		modules: c.Int("num_modules"), bottleneck: c.OneOf("block", "basic", "bottleneck") == "bottleneck",
		blocks: c.PerLevel(4, n, "num_blocks"), channels: c.PerLevel(32, n, "num_channels"),
	}
}

// hrnet is HRNet: the results of its branches.
func (m mm) hrnet(c *Config) *graph.Module {
	c.Only("type", "stages", "norm", "in_channels")
	var all []hrStage
	for _, s := range c.Parts("stages") {
		all = append(all, readHRStage(s))
	}
	net := graph.NewModule("HRNet")
	if len(all) != 4 {
		c.fields.Add("model.config.stages", len(all), "a list of 4", "")
		return net
	}
	stem := []*graph.Module{
		net.Child("conv1", conv2d(m.d, c.IntOr(3, "in_channels"), 64, convShape{kernel: 3, stride: 2, padding: 1})), net.Child("bn1", batchNorm(m.d, 64)),
		net.Child("relu", reluInPlace()),
		net.Child("conv2", conv2d(m.d, 64, 64, convShape{kernel: 3, stride: 2, padding: 1})), net.Child("bn2", batchNorm(m.d, 64)),
		net.Child("relu", reluInPlace()),
	}
	first := all[0]
	stem = append(stem, net.Child("layer1", m.hrBranch(first, 64, 0)))
	before := first.widths()
	var transitions [][]*graph.Module
	var modules [][]*graph.Module
	for i, s := range all[1:] {
		t := m.hrTransition(before, s.widths())
		transitions = append(transitions, t)
		list := net.Child("transition"+numbered(i+1), graph.NewModule("ModuleList"))
		for k, part := range t {
			if part != nil {
				list.Child(numbered(k), part)
			}
		}
		var ms []*graph.Module
		for range s.modules {
			ms = append(ms, m.hrModule(s))
		}
		modules = append(modules, ms)
		net.Child("stage"+numbered(i+2), sequential(ms...))
		before = s.widths()
	}
	net.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		for _, part := range stem {
			x = f.Let("x", f.Call1(part, x))
		}
		y := []*graph.Tensor{x}
		for i, t := range transitions {
			list := make([]*graph.Tensor, len(t))
			for k, part := range t {
				switch {
				case part == nil:
					list[k] = f.Let("x_list."+numbered(k), y[k])
				default:
					list[k] = f.Let("x_list."+numbered(k), f.Call1(part, y[len(y)-1]))
				}
			}
			y = list
			for _, part := range modules[i] {
				y = letAll(f, "y_list", f.Call(part, y...))
				for k := range list { // a module puts its branches' results in the place of its input's
					f.Del("x_list." + numbered(k))
				}
			}
		}
		return y
	}
	return net
}

// hrBranch is one branch's residual blocks.
func (m mm) hrBranch(s hrStage, in int64, branch int) *graph.Module {
	planes := s.channels[branch]
	block := func(in, planes, stride, dilation int64, shortcut *graph.Module) *graph.Module {
		if s.bottleneck {
			return bottleneck(m.d, in, planes, stride, dilation, resnets["resnet50"], shortcut)
		}
		return basicBlock(m.d, in, planes, stride, dilation, shortcut)
	}
	return mmResLayer(m.d, block, in, planes, s.outPlanes(planes), int(s.blocks[branch]), 1, 1, false)
}

// hrTransition is _make_transition_layer: what leads from the branches before to
// those of a stage, nil where that is nothing.
func (m mm) hrTransition(before, after []int64) []*graph.Module {
	step := func(in, out, stride int64) *graph.Module {
		return sequential(conv2d(m.d, in, out, convShape{kernel: 3, stride: stride, padding: 1}), batchNorm(m.d, out), reluInPlace())
	}
	all := make([]*graph.Module, len(after))
	for i, out := range after {
		if i < len(before) {
			if before[i] != out {
				all[i] = step(before[i], out, 1)
			}
			continue
		}
		last := before[len(before)-1]
		var steps []*graph.Module
		for range i - len(before) {
			steps = append(steps, step(last, last, 2))
		}
		all[i] = sequential(append(steps, step(last, out, 2))...)
	}
	return all
}

// hrModule is HRModule: each branch's blocks, then every branch's sum of all.
func (m mm) hrModule(s hrStage) *graph.Module {
	mod := graph.NewModule("HRModule")
	widths := s.widths()
	branches := mod.Child("branches", graph.NewModule("ModuleList"))
	for i, w := range widths {
		branches.Child(numbered(i), m.hrBranch(s, w, i))
	}
	list := mod.Child("fuse_layers", graph.NewModule("ModuleList"))
	fuse := make([][]*graph.Module, len(widths))
	for i := range widths {
		row := list.Child(numbered(i), graph.NewModule("ModuleList"))
		for j := range widths {
			layer := m.hrFuse(widths, i, j)
			if layer != nil {
				row.Child(numbered(j), layer)
			}
			fuse[i] = append(fuse[i], layer)
		}
	}
	act := mod.Child("relu", relu())
	mod.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := make([]*graph.Tensor, len(in))
		for i, b := range branches.Children {
			x[i] = f.Let("x."+numbered(i), f.Call1(b, in[i]))
		}
		outs := make([]*graph.Tensor, len(in))
		for i := range fuse {
			y := f.Let("y", f.AddScalar(hrTerm(f, fuse[i][0], x, i, 0))) // 0 + x
			for j := 1; j < len(x); j++ {
				term := hrTerm(f, fuse[i][j], x, i, j)
				if j > i {
					y = f.Let("y", f.Add(y, term))
				} else {
					y = f.Let("y", f.AddInPlace(y, term))
				}
			}
			outs[i] = f.Let("x_fuse."+numbered(i), f.Call1(act, y))
		}
		return outs
	}
	return mod
}

// hrTerm is what branch j adds to branch i.
func hrTerm(f *graph.Frame, layer *graph.Module, x []*graph.Tensor, i, j int) *graph.Tensor {
	switch {
	case layer == nil:
		return x[j]
	case j > i:
		return resizeLike(f, f.Call1(layer, x[j]), x[i])
	}
	return f.Call1(layer, x[j])
}

// hrFuse leads from branch j to branch i: nil where they are one.
func (m mm) hrFuse(widths []int64, i, j int) *graph.Module {
	if j == i {
		return nil
	}
	if j > i {
		return sequential(conv2d(m.d, widths[j], widths[i], convShape{kernel: 1}), batchNorm(m.d, widths[i]), upsample(1<<(j-i)))
	}
	var steps []*graph.Module
	down := convShape{kernel: 3, stride: 2, padding: 1}
	for range i - j - 1 {
		steps = append(steps, sequential(conv2d(m.d, widths[j], widths[j], down), batchNorm(m.d, widths[j]), relu()))
	}
	return sequential(append(steps, sequential(conv2d(m.d, widths[j], widths[i], down), batchNorm(m.d, widths[i])))...)
}
