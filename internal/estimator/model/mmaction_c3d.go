package model

import (
	"slices"

	"memplan/internal/estimator/graph"
)

// c3dFamily is C3D: plain convolutions over space and time
// (models/backbones/c3d.py@v1.2.0).
var c3dFamily = Family{
	Name: "c3d", Explicit: "c3d", Implementation: MMAction,
	Source: "open-mmlab/mmaction2:mmaction/models/backbones/c3d.py@v1.2.0",
	New:    newC3D,
}

func newC3D(c Config, b Build) (*Network, error) {
	c.Only("family", "channels", "kernel", "pools_after", "fc", "dropout", "norm", "head", "num_classes")
	channels, pools, hidden := c.Ints("channels"), c.Ints("pools_after"), c.Ints("fc")
	kernel, drop := c.IntOr(3, "kernel"), c.Float(0.5, "dropout")
	c.OneOf("norm", "none")
	c.HasFrames(b)
	root := graph.NewModule("Recognizer3D")
	net := root.Child("backbone", graph.NewModule("C3D"))
	in := int64(3)
	frames, h, w := b.Frames, b.Image[0], b.Image[1]
	for i, out := range channels {
		k, p := graph.D(kernel, kernel, kernel), graph.D(kernel/2, kernel/2, kernel/2)
		net.Child("conv"+numbered(i+1), sequential(conv3d(b.DType, in, out, k, graph.D(1, 1, 1), p, 1, true), reluInPlace()))
		in = out
		at := slices.Index(pools, int64(i+1))
		if at < 0 {
			continue
		}
		window, padding := graph.D(2, 2, 2), graph.D(0, 0, 0)
		if at == 0 {
			window.D[0] = 1
		}
		if at == len(pools)-1 {
			padding = graph.D(0, 1, 1)
		}
		net.Child("pool"+numbered(at+1), maxPool3d(window, window, padding))
		frames, h, w = frames/window.D[0], (h+2*padding.D[1])/2, (w+2*padding.D[2])/2
	}
	trunk := slices.Clone(net.Children)
	width := in * frames * h * w
	var layers []*graph.Module
	for i, out := range hidden {
		layers = append(layers, net.Child("fc"+numbered(i), linear(b.DType, width, out, true)))
		width = out
	}
	act, fc := net.Child("relu", relu()), linear(b.DType, width, c.classes(b, 101), true)
	root.Child("cls_head", graph.NewModule("I3DHead")).Child("fc_cls", fc)
	headDrop := 0.0
	if head := c.Part("head"); head != nil {
		head.Only("type", "in_channels", "dropout", "spatial_pool")
		headDrop = head.Float(0.5, "dropout")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	net.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		for _, m := range trunk {
			x = f.Let("x", f.Call1(m, x))
		}
		x = f.Let("x", flatten(f, x))
		for i, l := range layers {
			if i > 0 {
				x = f.Let("x", f.Dropout(x, drop))
			}
			x = f.Let("x", f.Call1(act, f.Call1(l, x)))
		}
		return one(x)
	}
	root.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("feats", f.Call1(net, in[0]))
		x = f.Let("x", f.Dropout(x, headDrop))
		return one(f.Let("cls_score", f.Call1(fc, x)))
	}
	return recogniser(root, clips), nil
}
