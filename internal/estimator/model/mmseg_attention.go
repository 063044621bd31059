package model

import "memplan/internal/estimator/graph"

// Heads of segmentors that let every pixel see others
// (mmseg/models/decode_heads, utils/self_attention_block.py@v0.30.0; blocks of
// MMCV 1.7).

// nonLocalHead is NLHead.
func (m mm) nonLocalHead(c *Config) *graph.Module {
	c.Only(headKeys("reduction", "use_scale", "mode", "concat_input")...)
	c.OneOf("mode", "embedded_gaussian")
	n := nonLocal{channels: c.Int("channels"), reduction: c.IntOr(2, "reduction"), scaled: c.Bool(true, "use_scale")}
	return m.aroundBlock(c, "NLHead", "nl_block", n.block(m, 2))
}

// contextHead is GCHead.
func (m mm) contextHead(c *Config) *graph.Module {
	c.Only(headKeys("ratio", "pooling_type", "fusion_types", "concat_input")...)
	c.OneOf("pooling_type", "att")
	if c.values["fusion_types"] != nil {
		c.Blocks(c.Words("fusion_types"), "fusion_types", "channel_add")
	}
	width := c.Int("channels")
	return m.aroundBlock(c, "GCHead", "gc_block", m.contextBlock(width, int64(float64(width)*c.Float(0.25, "ratio"))))
}

// aroundBlock is an FCN head of two convolutions with a block between them.
func (m mm) aroundBlock(c *Config, class, name string, block *graph.Module) *graph.Module {
	in, width := c.inputs(), c.Int("channels")
	head := graph.NewModule(class)
	classifier := m.classifier(head, c, width)
	convs := head.Child("convs", sequential(m.conv3(in.width(), width), m.conv3(width, width)))
	var joined *graph.Module
	if c.Bool(true, "concat_input") {
		joined = head.Child("conv_cat", m.conv3(in.width()+width, width))
	}
	head.Child(name, block)
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		x := in.of(f, features)
		output := f.Let("output", f.Call1(convs.Children[0], x))
		output = f.Let("output", f.Call1(block, output))
		output = f.Let("output", f.Call1(convs.Children[1], output))
		if joined != nil {
			output = f.Let("output", f.Call1(joined, f.Cat(1, x, output)))
		}
		return one(f.Let("output", classifier.classify(f, output)))
	}
	return head
}

// contextBlock is ContextBlock: what the whole image shows, weighed by a mask, is
// added to every pixel.
func (m mm) contextBlock(channels, planes int64) *graph.Module {
	b := graph.NewModule("ContextBlock")
	mask := b.Child("conv_mask", conv2d(m.d, channels, 1, convShape{kernel: 1, bias: true}))
	norm := graph.NewModule("LayerNorm")
	weight, bias := norm.Param("weight", m.d, planes, 1, 1), norm.Param("bias", m.d, planes, 1, 1)
	norm.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		flat := func(t *graph.Tensor) *graph.Tensor { return f.View(t, planes) }
		w, b := f.Let("weight", flat(weight.T())), f.Let("bias", flat(bias.T()))
		x := f.LayerNorm(f.View(in[0], -1, planes), w, b)
		return one(f.View(x, -1, planes, 1, 1))
	}
	add := b.Child("channel_add_conv", sequential(conv2d(m.d, channels, planes, convShape{kernel: 1, bias: true}), norm, reluInPlace(),
		conv2d(m.d, planes, channels, convShape{kernel: 1, bias: true})))
	pool := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // spatial_pool
		n := in[0].Shape.D[0]
		x := f.Let("input_x", f.Unsqueeze(f.View(in[0], n, channels, -1), 1))
		weights := f.Let("context_mask", f.View(f.Call1(mask, in[0]), n, 1, -1))
		weights = f.Let("context_mask", f.Softmax(weights, weights.DType))
		weights = f.Let("context_mask", f.Unsqueeze(weights, -1))
		return one(f.View(f.Matmul(x, weights), n, channels, 1, 1))
	}
	b.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		context := f.Let("context", f.Func(pool, in[0])[0])
		term := f.Let("channel_add_term", f.Call1(add, context))
		return one(f.Let("out", f.Add(in[0], term)))
	}
	return b
}

// pairAttention is SelfAttentionBlock: pixels of a query see those of a key.
type pairAttention struct {
	in, channels      int64
	scaled            bool // the map of similarities is
	normed, projected bool // the value's projection is normalised; there is one of the result
	plain             bool // query and key are projected by one bare convolution each
}

func (m mm) selfAttention(a pairAttention) *graph.Module {
	b := graph.NewModule("SelfAttentionBlock")
	bare := func(in, out int64) *graph.Module { return conv2d(m.d, in, out, convShape{kernel: 1, bias: true}) }
	project := func() *graph.Module {
		if a.plain {
			return bare(a.in, a.channels)
		}
		return sequential(m.conv1(a.in, a.channels), m.conv1(a.channels, a.channels))
	}
	key, query := b.Child("key_project", project()), b.Child("query_project", project())
	outer := a.in
	if a.projected {
		outer = a.channels
	}
	value := bare(a.in, outer)
	if a.normed {
		value = m.conv1(a.in, outer)
	}
	b.Child("value_project", value)
	var out *graph.Module
	if a.projected {
		out = b.Child("out_project", m.conv1(a.channels, a.in))
	}
	b.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		shape := in[0].Shape
		rows := func(name string, t *graph.Tensor) *graph.Tensor { // [samples, channels, pixels]
			t = f.Let(name, t)
			return f.Let(name, f.Reshape(t, t.Shape.D[0], t.Shape.D[1], -1))
		}
		turned := func(name string, t *graph.Tensor) *graph.Tensor {
			return f.Let(name, f.Contiguous(f.Permute(t, 0, 2, 1)))
		}
		q := turned("query", rows("query", f.Call1(query, in[0])))
		k := f.Let("key", f.Call1(key, in[1]))
		v := f.Let("value", f.Call1(value, in[1]))
		k, v = rows("key", k), rows("value", v)
		v = turned("value", v)
		sim := f.Let("sim_map", f.Matmul(q, k))
		if a.scaled {
			sim = f.Let("sim_map", f.MulScalar(sim))
		}
		sim = f.Let("sim_map", f.Softmax(sim, sim.DType))
		context := f.Let("context", f.Matmul(sim, v))
		context = turned("context", context)
		context = f.Let("context", f.Reshape(context, shape.D[0], -1, shape.D[2], shape.D[3]))
		if out != nil {
			context = f.Let("context", f.Call1(out, context))
		}
		return one(context)
	}
	return b
}

// weighted is Scale around a module's result, and what went in added to it.
func (m mm) weighted(class string, inner func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor) *graph.Module {
	b := graph.NewModule(class)
	scale := b.Child("gamma", graph.NewModule("Scale")).Param("scale", m.d)
	b.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		out := f.Let("out", f.Func(inner, in[0])[0])
		return one(f.Let("out", f.Add(f.Mul(out, scale.T()), in[0])))
	}
	return b
}

// channelAttention is CAM: channels see each other.
func channelAttention(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	s := in[0].Shape
	rows := func(name string) *graph.Tensor { return f.Let(name, f.View(in[0], s.D[0], s.D[1], -1)) }
	query := rows("proj_query")
	key := f.Let("proj_key", f.Permute(f.View(in[0], s.D[0], s.D[1], -1), 0, 2, 1))
	energy := f.Let("energy", f.Matmul(query, key))
	best := f.MaxLast(energy)
	energy = f.Let("energy_new", f.Sub(f.Expand(best, s.D[0], s.D[1], s.D[1]), energy))
	attention := f.Let("attention", f.Softmax(energy, energy.DType))
	value := rows("proj_value")
	out := f.Let("out", f.Matmul(attention, value))
	return one(f.Let("out", f.View(out, s.Slice()...)))
}

// dualAttentionHead is DAHead: three results, each with its loss.
func (m mm) dualAttentionHead(c *Config) *graph.Module {
	c.Only(headKeys("pam_channels")...)
	in, width, classes := c.inputs(), c.Int("channels"), c.IntOr(19, "num_classes")
	head := graph.NewModule("DAHead")
	sum := m.classifier(head, c, width)
	position := m.selfAttention(pairAttention{in: width, channels: c.Int("pam_channels"), plain: true})
	pam := m.weighted("PAM", func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { return f.Call(position, in[0], in[0]) })
	for _, p := range position.Children {
		pam.Child(p.Name, p)
	}
	cam := m.weighted("CAM", channelAttention)
	branch := func(name string, block *graph.Module) (*graph.Module, pixelClassifier) {
		first := head.Child(name+"_in_conv", m.conv3(in.width(), width))
		head.Child(name, block)
		last := head.Child(name+"_out_conv", m.conv3(width, width))
		conv := head.Child(name+"_conv_seg", conv2d(m.d, width, classes, convShape{kernel: 1, bias: true}))
		run := graph.NewModule("")
		run.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			x := f.Let("feat", f.Call1(first, in[0]))
			x = f.Let("feat", f.Call1(block, x))
			return one(f.Let("feat", f.Call1(last, x)))
		}
		return run, pixelClassifier{conv: conv, drop: sum.drop}
	}
	pamRun, pamClass := branch("pam", pam)
	camRun, camClass := branch("cam", cam)
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		x := in.of(f, features)
		p := f.Let("pam_feat", pamRun.Forward(f, x)[0])
		pamOut := f.Let("pam_out", pamClass.classify(f, p))
		q := f.Let("cam_feat", camRun.Forward(f, x)[0])
		camOut := f.Let("cam_out", camClass.classify(f, q))
		both := f.Let("feat_sum", f.Add(p, q))
		return []*graph.Tensor{f.Let("pam_cam_out", sum.classify(f, both)), pamOut, camOut}
	}
	return head
}

// interlacedHead is ISAHead: pixels see those at equal places of other groups,
// then those of their own.
func (m mm) interlacedHead(c *Config) *graph.Module {
	c.Only(headKeys("isa_channels", "down_factor")...)
	in, width, inner := c.inputs(), c.Int("channels"), c.Int("isa_channels")
	factor := c.PerLevel(8, 2, "down_factor")
	lh, lw := factor[0], factor[1]
	head := graph.NewModule("ISAHead")
	classifier := m.classifier(head, c, width)
	first := head.Child("in_conv", m.conv3(in.width(), width))
	relation := func(name string) *graph.Module {
		b := head.Child(name, m.selfAttention(pairAttention{in: width, channels: inner, scaled: true}))
		attend, project := b.Forward, b.Child("output_project", m.conv1(width, width))
		b.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			context := f.Let("context", f.Func(attend, in[0], in[0])[0])
			return one(f.Call1(project, context))
		}
		return b
	}
	global, local := relation("global_relation"), relation("local_relation")
	last := head.Child("out_conv", m.conv1(2*width, width))
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(first, in.of(f, features)))
		residual := f.Let("residual", x)
		n, h, w := x.Shape.D[0], x.Shape.D[2], x.Shape.D[3]
		gh, gw := (h+lh-1)/lh, (w+lw-1)/lw
		padded := gh*lh != h || gw*lw != w
		if padded {
			x = f.Let("x", f.PadTo(x, graph.D(n, width, gh*lh, gw*lw)))
		}
		x = f.Let("x", f.View(x, n, width, gh, lh, gw, lw))
		x = f.Let("x", f.Permute(x, 0, 3, 5, 1, 2, 4))
		x = f.Let("x", f.Reshape(x, -1, width, gh, gw))
		x = f.Let("x", f.Call1(global, x))
		x = f.Let("x", f.View(x, n, lh, lw, width, gh, gw))
		x = f.Let("x", f.Permute(x, 0, 4, 5, 3, 1, 2))
		x = f.Let("x", f.Reshape(x, -1, width, lh, lw))
		x = f.Let("x", f.Call1(local, x))
		x = f.Let("x", f.View(x, n, gh, gw, width, lh, lw))
		x = f.Let("x", f.Permute(x, 0, 3, 1, 4, 2, 5))
		x = f.Let("x", f.Reshape(x, n, width, gh*lh, gw*lw))
		if padded {
			x = f.Let("x", f.Slice(f.Slice(f.SliceWhole(x, 2), 2, 0, h), 3, 0, w))
		}
		x = f.Let("x", f.Call1(last, f.Cat(1, x, residual)))
		return one(classifier.classify(f, x))
	}
	return head
}

// objectHead is OCRHead, the second of a cascade: pixels see the classes that the
// first found.
func (m mm) objectHead(c *Config) *graph.Module {
	c.Only(headKeys("ocr_channels")...)
	in, width := c.inputs(), c.Int("channels")
	head := graph.NewModule("OCRHead")
	classifier := m.classifier(head, c, width)
	attention := m.selfAttention(pairAttention{in: width, channels: c.Int("ocr_channels"), scaled: true, normed: true, projected: true})
	block := head.Child("object_context_block", graph.NewModule("ObjectAttentionBlock"))
	for _, p := range attention.Children {
		block.Child(p.Name, p)
	}
	fuse := block.Child("bottleneck", m.conv1(2*width, width))
	block.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		context := f.Let("context", f.Func(attention.Forward, in[0], in[1])[0])
		return one(f.Let("output", f.Call1(fuse, f.Cat(1, context, in[0]))))
	}
	first := head.Child("bottleneck", m.conv3(in.width(), width))
	gather := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // SpatialGatherModule
		n, classes := in[1].Shape.D[0], in[1].Shape.D[1]
		probs := f.Let("probs", f.View(in[1], n, classes, -1))
		feats := f.Let("feats", f.Permute(f.View(in[0], n, width, -1), 0, 2, 1))
		probs = f.Let("probs", f.Softmax(f.MulScalar(probs), probs.DType))
		context := f.Let("ocr_context", f.Matmul(probs, feats))
		return one(f.Unsqueeze(f.Contiguous(f.Permute(context, 0, 2, 1)), 3))
	}
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		last := len(features) - 1
		x := in.of(f, features[:last])
		feats := f.Let("feats", f.Call1(first, x))
		context := f.Let("context", f.Func(gather, feats, features[last])[0])
		object := f.Let("object_context", f.Call1(block, feats, context))
		return one(f.Let("output", classifier.classify(f, object)))
	}
	return head
}
