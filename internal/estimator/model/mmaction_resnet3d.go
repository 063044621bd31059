package model

import "memplan/internal/estimator/graph"

// resnet3dFamily is a recogniser with a residual network over space and time:
// I3D, SlowOnly, R(2+1)D and channel-separated networks
// (models/backbones/resnet3d.py, resnet3d_slowonly.py, resnet2plus1d.py,
// resnet3d_csn.py, heads/i3d_head.py@v1.2.0).
var resnet3dFamily = Family{
	Name: "resnet3d", Explicit: "resnet3d", Implementation: MMAction,
	Source: "open-mmlab/mmaction2:mmaction/models@v1.2.0",
	New:    newResNet3D,
}

// resnet3d is how a residual network is inflated.
type resnet3d struct {
	mm
	shape            resnetShape
	in, base         int64
	stem             graph.Dims // kernel of the first convolution
	stemStride       int64      // of it in time
	poolStride       int64      // of the pooling after it in time
	spatial, overall [4]int64   // strides of the stages in space and in time
	inflate          [4][]bool
	whole            bool // an inflated block has 3×3×3 in the middle, not 3×1×1 at its head
	depthwise        bool // whose channels are apart
	split            bool // every convolution is one over space and one over time
	pool2            bool // frames are pooled in pairs after the first stage
	nonLocal         [4][]bool
	nonLocalBlock    nonLocal
	frozenNorms      bool
	// lateral widths are what joins each stage's input from another pathway.
	lateral [4]int64
}

func newResNet3D(c Config, b Build) (*Network, error) {
	c.Only("family", "variant", "backbone", "head", "num_classes")
	variant := c.OneOf("variant", "i3d", "slowonly", "r2plus1d", "csn")
	backbone, head := c.Part("backbone"), c.Part("head")
	if backbone == nil || head == nil {
		c.fields.Add("model.config.backbone", "nothing", "a backbone, and a head beside it", "")
		return nil, c.Err()
	}
	m := mm{b: b, d: b.DType}
	r := m.readResNet3D(backbone, variant)
	c.HasFrames(b)
	root := graph.NewModule("Recognizer3D")
	net := root.Child("backbone", r.build())
	if backbone.OneOf("norm", "bn", "syncbn") == "syncbn" {
		net.Walk(synchronised)
	}
	head.Only("type", "dropout", "in_channels")
	head.OneOf("type", "avgpool3d_linear")
	cls := root.Child("cls_head", m.pooledHead(head, c.classes(b, 400)))
	if err := c.Err(); err != nil {
		return nil, err
	}
	root.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		feats := f.Let("feats", f.Call1(net, in[0]))
		return one(f.Call1(cls, feats))
	}
	return recogniser(root, clips), nil
}

// HasFrames reports an error where the job does not say how many frames a video
// has.
func (c *Config) HasFrames(b Build) {
	if b.Frames < 1 {
		c.fields.Add("training.num_frames", b.Frames, "how many frames of a video are looked at", "8")
	}
}

// readResNet3D reads a backbone; its defaults are those of the variant's class.
func (m mm) readResNet3D(c *Config, variant string) resnet3d {
	c.Only("type", "depth", "in_channels", "base_channels", "conv1_kernel", "conv1_stride_t", "pool1_stride_t", "inflate", "spatial_strides",
		"temporal_strides", "with_pool2", "non_local", "non_local_cfg", "bottleneck_mode", "bn_frozen", "zero_init_residual", "norm",
		"lateral", "dilations", "fusion_kernel")
	r := resnet3d{
		mm: m, shape: resnetDepth(c), in: c.IntOr(3, "in_channels"), base: c.IntOr(64, "base_channels"),
		stem: graph.D(3, 7, 7), stemStride: 1, poolStride: 1, spatial: [4]int64{1, 2, 2, 2}, overall: [4]int64{1, 1, 1, 1},
		whole: variant == "csn", depthwise: variant == "csn", split: variant == "r2plus1d",
		pool2: c.Bool(variant == "i3d", "with_pool2"), frozenNorms: c.Bool(false, "bn_frozen"),
	}
	inflated := [4]int64{1, 1, 1, 1}
	switch variant {
	case "slowonly":
		r.stem, inflated = graph.D(1, 7, 7), [4]int64{0, 0, 1, 1}
	case "csn":
		r.overall = [4]int64{1, 2, 2, 2}
		c.OneOf("bottleneck_mode", "ir")
	case "i3d":
		r.stem, r.stemStride, r.poolStride = graph.D(5, 7, 7), 2, 2
	}
	if c.values["conv1_kernel"] != nil {
		k := c.PerLevel(1, 3, "conv1_kernel")
		r.stem = graph.D(k...)
	}
	r.stemStride, r.poolStride = c.IntOr(r.stemStride, "conv1_stride_t"), c.IntOr(r.poolStride, "pool1_stride_t")
	for key, into := range map[string]*[4]int64{"spatial_strides": &r.spatial, "temporal_strides": &r.overall} {
		if c.values[key] != nil {
			copy(into[:], c.PerLevel(1, 4, key))
		}
	}
	for i := range r.inflate {
		r.inflate[i] = c.perBlock("inflate", i, r.shape.layers[i], inflated[i] == 1)
		r.nonLocal[i] = c.perBlock("non_local", i, r.shape.layers[i], false)
	}
	r.nonLocalBlock.reduction = 2
	if n := c.Part("non_local_cfg"); n != nil {
		n.Only("sub_sample", "use_scale", "norm_cfg", "mode")
		n.OneOf("mode", "embedded_gaussian")
		r.nonLocalBlock.sampled, r.nonLocalBlock.scaled = n.Bool(false, "sub_sample"), n.Bool(true, "use_scale")
	}
	return r
}

// perBlock reads a switch of each block of stage i: a list of lists, a list with
// a switch a stage, or the default.
func (c *Config) perBlock(key string, i, blocks int, fallback bool) []bool {
	all := make([]bool, blocks)
	stage := c.values[key]
	if list, ok := stage.([]any); ok {
		if i >= len(list) {
			c.fields.Add("model.config."+key, len(list), "a list of 4", "")
			return all
		}
		stage = list[i]
	}
	blockwise, _ := stage.([]any)
	if blockwise != nil && len(blockwise) != blocks {
		c.fields.Add("model.config."+key+"["+numbered(i)+"]", len(blockwise), "a list of "+numbered(blocks), "")
		return all
	}
	for k := range all {
		switch {
		case blockwise != nil:
			all[k] = blockwise[k] == 1.0
		case stage == nil:
			all[k] = fallback
		default:
			all[k] = stage == 1.0
		}
	}
	return all
}

// conv is a ConvModule over space and time, of one convolution or of two.
func (r resnet3d) conv(in, out int64, kernel, stride graph.Dims, groups int64, act activationFunc) *graph.Module {
	c := graph.NewModule("ConvModule")
	padding := graph.D((kernel.D[0]-1)/2, (kernel.D[1]-1)/2, (kernel.D[2]-1)/2)
	if r.split {
		c.Child("conv", r.conv2plus1d(in, out, kernel, stride, padding))
	} else {
		c.Child("conv", conv3d(r.d, in, out, kernel, stride, padding, groups, false))
	}
	norm := c.Child("bn", batchNorm(r.d, out))
	if r.frozenNorms {
		norm.Eval = true
		for _, p := range norm.Params {
			p.Trained = false
		}
	}
	if act != nil {
		c.Child("activate", act())
	}
	chain(c)
	return c
}

// conv3d is nn.Conv3d.
func conv3d(d graph.DType, in, out int64, kernel, stride, padding graph.Dims, groups int64, bias bool) *graph.Module {
	return convolution(d, in, out, kernel, graph.Conv{Stride: stride, Padding: padding, Dilation: graph.D(1, 1, 1), OutputPadding: graph.D(0, 0, 0), Groups: groups}, bias)
}

// conv2plus1d is Conv2plus1d: over space, normalised, then over time, through as
// many channels as keep the number of parameters.
func (r resnet3d) conv2plus1d(in, out int64, kernel, stride, padding graph.Dims) *graph.Module {
	area := kernel.D[1] * kernel.D[2]
	middle := 3 * in * out * area / (in*area + 3*out)
	k, s, p := kernel.D, stride.D, padding.D
	m := graph.NewModule("Conv2plus1d")
	m.Child("conv_s", conv3d(r.d, in, middle, graph.D(1, k[1], k[2]), graph.D(1, s[1], s[2]), graph.D(0, p[1], p[2]), 1, false))
	m.Child("bn_s", batchNorm(r.d, middle))
	m.Child("relu", reluInPlace())
	m.Child("conv_t", conv3d(r.d, middle, out, graph.D(k[0], 1, 1), graph.D(s[0], 1, 1), graph.D(p[0], 0, 0), 1, false))
	chain(m)
	return m
}

// stemAndPool are the first convolution and the pooling after it.
func (r resnet3d) stemAndPool() (stem, pool *graph.Module) {
	stem = r.conv(r.in, r.base, r.stem, graph.D(r.stemStride, 2, 2), 1, reluInPlace)
	return stem, maxPool3d(graph.D(1, 3, 3), graph.D(r.poolStride, 2, 2), graph.D(0, 1, 1))
}

func maxPool3d(kernel, stride, padding graph.Dims) *graph.Module {
	p := graph.Pool{Kernel: kernel, Stride: stride, Padding: padding}
	return function("MaxPool3d", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { return f.MaxPool(x, p) })
}

// build is ResNet3d: the last stage's result.
func (r resnet3d) build() *graph.Module {
	net := graph.NewModule("ResNet3d")
	stem, pool := r.stemAndPool()
	net.Child("conv1", stem)
	net.Child("maxpool", pool)
	for i, stage := range r.stages() {
		net.Child("layer"+numbered(i+1), stage)
		if i == 0 && r.pool2 {
			net.Child("pool2", maxPool3d(graph.D(2, 1, 1), graph.D(2, 1, 1), graph.D(0, 0, 0)))
		}
	}
	net.Forward = stages(net.Children, 1, []bool{true})
	return net
}

// stages are the four rows of residual blocks.
func (r resnet3d) stages() []*graph.Module {
	var all []*graph.Module
	width := r.base
	for i, n := range r.shape.layers {
		planes := r.base << i
		in := width + r.lateral[i]
		var blocks []*graph.Module
		for k := range n {
			stride := graph.D(1, 1, 1)
			if k == 0 {
				stride = graph.D(r.overall[i], r.spatial[i], r.spatial[i])
			}
			blocks = append(blocks, r.block(in, planes, stride, r.inflate[i][k], r.nonLocal[i][k]))
			in = r.shape.outPlanes(planes)
		}
		width = in
		all = append(all, sequential(blocks...))
	}
	return all
}

// block is BasicBlock3d, Bottleneck3d or CSNBottleneck3d.
func (r resnet3d) block(in, planes int64, stride graph.Dims, inflated, seesAll bool) *graph.Module {
	block, out := graph.NewModule("BasicBlock3d"), r.shape.outPlanes(planes)
	one3 := graph.D(1, 1, 1)
	deep := func(on bool, k int64) graph.Dims { // 3 frames where it is on
		if on {
			return graph.D(3, k, k)
		}
		return graph.D(1, k, k)
	}
	var path []*graph.Module
	add := func(name string, m *graph.Module) { path = append(path, block.Child(name, m)) }
	if r.shape.bottleneck {
		block.Class = "Bottleneck3d"
		groups := int64(1)
		if r.depthwise {
			groups = planes
		}
		add("conv1", r.conv(in, planes, deep(inflated && !r.whole, 1), one3, 1, reluInPlace))
		add("conv2", r.conv(planes, planes, deep(inflated && r.whole, 3), stride, groups, reluInPlace))
		add("conv3", r.conv(planes, out, one3, one3, 1, nil))
	} else {
		add("conv1", r.conv(in, planes, deep(inflated, 3), stride, 1, reluInPlace))
		add("conv2", r.conv(planes, out, deep(inflated, 3), one3, 1, nil))
	}
	var downsample *graph.Module
	if stride.D[1] != 1 || in != out {
		downsample = block.Child("downsample", r.conv(in, out, one3, stride, 1, nil))
	}
	residual := outOfPlace(block.Child("relu", reluInPlace()), downsample, path...)
	block.Forward = residual
	if seesAll {
		n := r.nonLocalBlock
		n.channels = out
		all := block.Child("non_local_block", n.block(r.mm, 3))
		block.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			return one(f.Call1(all, residual(f, in...)[0]))
		}
	}
	return block
}

// pooledHead is I3DHead: the mean over space and time, dropout and a linear
// layer.
func (m mm) pooledHead(c *Config, classes int64) *graph.Module {
	head, drop := graph.NewModule("I3DHead"), c.Float(0.5, "dropout")
	fc := head.Child("fc_cls", linear(m.d, c.Int("in_channels"), classes, true))
	head.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.AdaptiveAvgPool(in[0], 1))
		x = f.Let("x", f.Dropout(x, drop))
		x = f.Let("x", f.View(x, x.Shape.D[0], -1))
		return one(f.Let("cls_score", f.Call1(fc, x)))
	}
	return head
}
