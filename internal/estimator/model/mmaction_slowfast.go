package model

import "memplan/internal/estimator/graph"

// slowfastFamily is SlowFast: one network over few frames and a narrow one over
// many, joined after every stage
// (models/backbones/resnet3d_slowfast.py, heads/slowfast_head.py@v1.2.0).
var slowfastFamily = Family{
	Name: "slowfast", Explicit: "slowfast", Implementation: MMAction,
	Source: "open-mmlab/mmaction2:mmaction/models@v1.2.0",
	New:    newSlowFast,
}

func newSlowFast(c Config, b Build) (*Network, error) {
	c.Only("family", "resample_rate", "speed_ratio", "channel_ratio", "slow_pathway", "fast_pathway", "fusion_kernel", "head", "num_classes")
	slowPart, fastPart, head := c.Part("slow_pathway"), c.Part("fast_pathway"), c.Part("head")
	if slowPart == nil || fastPart == nil || head == nil {
		c.fields.Add("model.config.slow_pathway", "nothing", "a slow_pathway, a fast_pathway and a head", "")
		return nil, c.Err()
	}
	m := mm{b: b, d: b.DType}
	every, speed, ratio := c.IntOr(8, "resample_rate"), c.IntOr(8, "speed_ratio"), c.IntOr(8, "channel_ratio")
	if speed != every {
		c.fields.Add("model.config.speed_ratio", speed, "resample_rate: others are not modelled", numbered(int(every)))
	}
	slow, fast := m.readResNet3D(slowPart, "slowonly"), m.readResNet3D(fastPart, "pathway")
	kernel := slowPart.IntOr(c.IntOr(5, "fusion_kernel"), "fusion_kernel")
	width := slow.base / ratio
	for i := range slow.lateral {
		slow.lateral[i] = 2 * width
		width = slow.shape.outPlanes(slow.base<<i) / ratio
	}
	c.HasFrames(b)
	root := graph.NewModule("Recognizer3D")
	net := root.Child("backbone", slowFast(slow, fast, every, speed, ratio, kernel))
	head.Only("type", "dropout", "in_channels")
	head.OneOf("type", "slowfast")
	cls := root.Child("cls_head", m.pooledHead(head, c.classes(b, 400)))
	if err := c.Err(); err != nil {
		return nil, err
	}
	drop := head.Float(0.5, "dropout")
	cls.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		slow := f.Let("x_slow", f.AdaptiveAvgPool(in[0], 1))
		fast := f.Let("x_fast", f.AdaptiveAvgPool(in[1], 1))
		x := f.Let("x", f.Cat(1, fast, slow))
		x = f.Let("x", f.Dropout(x, drop))
		x = f.Let("x", f.View(x, x.Shape.D[0], -1))
		return one(f.Let("cls_score", f.Call1(cls.Children[0], x)))
	}
	root.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		feats := letAll(f, "feats", f.Call(net, in[0]))
		return one(f.Call1(cls, feats...))
	}
	return recogniser(root, clips), nil
}

// slowFast is ResNet3dSlowFast.
func slowFast(slow, fast resnet3d, every, speed, ratio, kernel int64) *graph.Module {
	net := graph.NewModule("ResNet3dSlowFast")
	pathway := func(name string, r resnet3d) (stem, pool *graph.Module, stages []*graph.Module, path *graph.Module) {
		path = net.Child(name, graph.NewModule("ResNet3dPathway"))
		stem, pool = r.stemAndPool()
		path.Child("conv1", stem)
		path.Child("maxpool", pool)
		for i, s := range r.stages() {
			stages = append(stages, path.Child("layer"+numbered(i+1), s))
		}
		return stem, pool, stages, path
	}
	slowStem, slowPool, slowStages, slowPath := pathway("slow_path", slow)
	fastStem, fastPool, fastStages, _ := pathway("fast_path", fast)
	lateral := func(name string, width int64) *graph.Module {
		padding := graph.D((kernel-1)/2, 0, 0)
		conv := conv3d(slow.d, width/ratio, 2*width/ratio, graph.D(kernel, 1, 1), graph.D(speed, 1, 1), padding, 1, false)
		return slowPath.Child(name, conv)
	}
	laterals := []*graph.Module{lateral("conv1_lateral", slow.base)}
	for i := range slowStages[:len(slowStages)-1] {
		laterals = append(laterals, lateral("layer"+numbered(i+1)+"_lateral", slow.shape.outPlanes(slow.base<<i)))
	}
	join := func(f *graph.Frame, at int, slow, fast *graph.Tensor) *graph.Tensor {
		side := f.Let("x_fast_lateral", f.Call1(laterals[at], fast))
		return f.Let("x_slow", f.Cat(1, slow, side))
	}
	net.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		t, h, w := in[0].Shape.D[2], in[0].Shape.D[3], in[0].Shape.D[4]
		s := f.Let("x_slow", f.Interpolate(in[0], t/every, h, w))
		s = f.Let("x_slow", f.Call1(slowStem, s))
		s = f.Let("x_slow", f.Call1(slowPool, s))
		q := f.Let("x_fast", f.Interpolate(in[0], t/(every/speed), h, w))
		q = f.Let("x_fast", f.Call1(fastStem, q))
		q = f.Let("x_fast", f.Call1(fastPool, q))
		s = join(f, 0, s, q)
		for i := range slowStages {
			s = f.Let("x_slow", f.Call1(slowStages[i], s))
			q = f.Let("x_fast", f.Call1(fastStages[i], q))
			if i+1 < len(laterals) {
				s = join(f, i+1, s, q)
			}
		}
		return []*graph.Tensor{s, q}
	}
	return net
}
