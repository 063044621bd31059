package model

import "memplan/internal/estimator/graph"

// Backbones of segmentors that are residual networks
// (mmseg/models/backbones/resnet.py, utils/res_layer.py@v0.30.0).

// mmBackbones are the backbones by their type.
func mmBackbones() mmParts {
	return mmParts{
		"resnet": mm.resnet, "hrnet": mm.hrnet, "unet": mm.unet, "mobilenet_v2": mm.mobilenetV2, "mobilenet_v3": mm.mobilenetV3,
		"resnest": mm.resnest, "bisenet_v1": mm.bisenetV1, "erfnet": mm.erfnet,
		"vit": mm.vit, "beit": mm.beit, "swin": mm.swin, "mit": mm.mit, "twins_pcpvt": mm.pcpvt, "twins_svt": mm.svt, "convnext": mm.convnext,
	}
}

// depths are the blocks of each stage by the name of the depth.
var depths = map[int64]string{18: "resnet18", 34: "resnet34", 50: "resnet50", 101: "resnet101", 152: "resnet152"}

// resnet is ResNet or, with a deep stem, ResNetV1c: the results of all its
// stages.
func (m mm) resnet(c *Config) *graph.Module {
	c.Only("type", "depth", "stem", "num_stages", "out_indices", "dilations", "strides", "norm", "contract_dilation", "in_channels")
	shape := resnetDepth(c)
	stem := c.OneOf("stem", "plain", "deep")
	n := len(shape.layers)
	strides, dilations := c.PerLevel(1, n, "strides"), c.PerLevel(1, n, "dilations")
	net := graph.NewModule("ResNet")
	in := c.IntOr(3, "in_channels")
	if stem == "deep" {
		net.Child("stem", mmDeepStem(m.d, in, 64))
	} else {
		net.Child("conv1", conv2d(m.d, in, 64, convShape{kernel: 7, stride: 2, padding: 3}))
		net.Child("bn1", batchNorm(m.d, 64))
		net.Child("relu", reluInPlace())
	}
	net.Child("maxpool", maxPool2d(3, 2, 1))
	width := int64(64)
	contract := c.Bool(false, "contract_dilation")
	block := func(in, planes, stride, dilation int64, shortcut *graph.Module) *graph.Module {
		if shape.bottleneck {
			return bottleneck(m.d, in, planes, stride, dilation, shape, shortcut)
		}
		return basicBlock(m.d, in, planes, stride, dilation, shortcut)
	}
	for i, blocks := range shape.layers {
		planes := int64(64) << i
		net.Child("layer"+numbered(i+1), mmResLayer(m.d, block, width, planes, shape.outPlanes(planes), blocks, strides[i], dilations[i], contract))
		width = shape.outPlanes(planes)
	}
	net.Forward = stages(net.Children, len(shape.layers), c.outIndices(n))
	return net
}

// resnetDepth reads the depth of a residual network.
func resnetDepth(c *Config) resnetShape {
	depth := c.Int("depth")
	name, ok := depths[depth]
	if !ok {
		c.fields.Add("model.config.depth", depth, "18, 34, 50, 101 or 152", "50")
		name = "resnet50"
	}
	return resnets[name]
}

// outIndices are the stages whose results are returned, of n.
func (c *Config) outIndices(n int) []bool {
	wanted := make([]bool, n)
	for _, i := range c.indices("out_indices") {
		if i >= int64(n) {
			c.fields.Add("model.config.out_indices", i, "places below "+numbered(n), "")
			continue
		}
		wanted[i] = true
	}
	return wanted
}

// mmDeepStem is the stem of three convolutions of ResNetV1c.
func mmDeepStem(d graph.DType, in, width int64) *graph.Module {
	return sequential(
		conv2d(d, in, width/2, convShape{kernel: 3, stride: 2, padding: 1}), batchNorm(d, width/2), reluInPlace(),
		conv2d(d, width/2, width/2, convShape{kernel: 3, padding: 1}), batchNorm(d, width/2), reluInPlace(),
		conv2d(d, width/2, width, convShape{kernel: 3, padding: 1}), batchNorm(d, width), reluInPlace())
}

// mmResLayer is ResLayer: a stage of residual blocks, the first of which may
// stride and, where dilations are contracted, dilates half as far.
func mmResLayer(d graph.DType, block func(in, planes, stride, dilation int64, shortcut *graph.Module) *graph.Module,
	in, planes, out int64, blocks int, stride, dilation int64, contract bool,
) *graph.Module {
	var shortcut *graph.Module
	if stride != 1 || in != out {
		shortcut = sequential(conv2d(d, in, out, convShape{kernel: 1, stride: stride}), batchNorm(d, out))
	}
	first := dilation
	if contract && dilation > 1 {
		first = dilation / 2
	}
	all := []*graph.Module{block(in, planes, stride, first, shortcut)}
	for range blocks - 1 {
		all = append(all, block(out, planes, 1, dilation, nil))
	}
	return sequential(all...)
}

// stages is a forward that runs modules one after the other and returns the
// results wanted of the last n.
func stages(all []*graph.Module, n int, wanted []bool) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	all = append([]*graph.Module(nil), all...)
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		var outs []*graph.Tensor
		for i, m := range all {
			x = f.Let("x", f.Call1(m, x))
			if at := i - (len(all) - n); at >= 0 && wanted[at] {
				outs = append(outs, f.Let("outs."+numbered(at), x))
			}
		}
		return outs
	}
}
