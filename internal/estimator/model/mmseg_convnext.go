package model

import "memplan/internal/estimator/graph"

// layerNorm2d is LayerNorm2d: over the channels of each pixel.
func layerNorm2d(d graph.DType, width int64) *graph.Module {
	m := graph.NewModule("LayerNorm2d")
	w, b := m.Param("weight", d, width), m.Param("bias", d, width)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Contiguous(f.Permute(in[0], 0, 2, 3, 1))
		return one(f.Contiguous(f.Permute(f.LayerNorm(x, w.T(), b.T()), 0, 3, 1, 2)))
	}
	return m
}

// convnext is ConvNeXt of MMClassification, a normalised map after each stage
// wanted (mmcls/models/backbones/convnext.py@v0.25.0).
func (m mm) convnext(c *Config) *graph.Module {
	c.Only("type", "depths", "dims", "out_indices", "drop_path_rate", "layer_scale_init_value", "gap_before_final_norm", "in_channels", "norm")
	c.Refuses("gap_before_final_norm")
	depths := c.Ints("depths")
	widths := c.PerLevel(96, len(depths), "dims")
	scaled := c.Float(1e-6, "layer_scale_init_value") > 0
	drops, wanted := spread(c.Float(0, "drop_path_rate"), total(depths)), c.outIndices(len(depths))
	net := graph.NewModule("ConvNeXt")
	downs, list := net.Child("downsample_layers", graph.NewModule("ModuleList")), net.Child("stages", graph.NewModule("ModuleList"))
	in := c.IntOr(3, "in_channels")
	norms := make([]*graph.Module, len(depths))
	for i, width := range widths {
		down := sequential(layerNorm2d(m.d, in), conv2d(m.d, in, width, convShape{kernel: 2, stride: 2, bias: true}))
		if i == 0 {
			down = sequential(conv2d(m.d, in, width, convShape{kernel: 4, stride: 4, bias: true}), layerNorm2d(m.d, width))
		}
		downs.Child(numbered(i), down)
		var blocks []*graph.Module
		for k := range depths[i] {
			blocks = append(blocks, m.convnextBlock(width, drops[k], scaled))
		}
		drops = drops[depths[i]:]
		list.Child(numbered(i), sequential(blocks...))
		if wanted[i] {
			norms[i] = net.Child("norm"+numbered(i), layerNorm2d(m.d, width))
		}
		in = width
	}
	net.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		var outs []*graph.Tensor
		for i, stage := range list.Children {
			x = f.Let("x", f.Call1(downs.Children[i], x))
			x = f.Let("x", f.Call1(stage, x))
			if norms[i] != nil {
				outs = append(outs, f.Let("outs."+numbered(i), f.Contiguous(f.Call1(norms[i], x))))
			}
		}
		return outs
	}
	return net
}

// convnextBlock is ConvNeXtBlock.
func (m mm) convnextBlock(width int64, drop float64, scaled bool) *graph.Module {
	b := graph.NewModule("ConvNeXtBlock")
	var gamma *graph.Param
	if scaled {
		gamma = b.Param("gamma", m.d, width)
	}
	depthwise := b.Child("depthwise_conv", conv2d(m.d, width, width, convShape{kernel: 7, padding: 3, groups: width, bias: true}))
	norm := b.Child("norm", layerNorm2d(m.d, width))
	up, act, down := b.Child("pointwise_conv1", linear(m.d, width, 4*width, true)), b.Child("act", gelu()), b.Child("pointwise_conv2", linear(m.d, 4*width, width, true))
	path := b.Child("drop_path", dropPath(drop))
	b.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(depthwise, in[0]))
		x = f.Let("x", f.Call1(norm, x))
		x = f.Let("x", f.Permute(x, 0, 2, 3, 1))
		for _, l := range []*graph.Module{up, act, down} {
			x = f.Let("x", f.Call1(l, x))
		}
		x = f.Let("x", f.Permute(x, 0, 3, 1, 2))
		if gamma != nil {
			x = f.Let("x", f.Mul(x, f.View(gamma.T(), 1, -1, 1, 1)))
		}
		return one(f.Let("x", f.Add(in[0], f.Call1(path, x))))
	}
	return b
}
