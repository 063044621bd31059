package model

import "memplan/internal/estimator/graph"

// Heads of segmentors with a plain transformer for a backbone
// (mmseg/models/decode_heads/setr_up_head.py, setr_mla_head.py,
// segmenter_mask_head.py@v0.30.0).

// normedTokens normalises the pixels of a feature map and lays them out again.
func normedTokens(f *graph.Frame, norm *graph.Module, x *graph.Tensor) *graph.Tensor {
	s := x.Shape
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", toTokens(f, in[0]))
		x = f.Let("x", f.Call1(norm, x))
		return one(f.Let("x", f.Contiguous(f.Reshape(f.Transpose(x, 1, 2), s.Slice()...))))
	}, x)[0]
}

// setrUpHead is SETRUPHead: convolutions, each resized.
func (m mm) setrUpHead(c *Config) *graph.Module {
	c.Only(headKeys("num_convs", "up_scale", "kernel_size")...)
	in, width, kernel, scale := c.inputs(), c.Int("channels"), c.IntOr(3, "kernel_size"), c.IntOr(4, "up_scale")
	head := graph.NewModule("SETRUPHead")
	classifier := m.classifier(head, c, width)
	norm := head.Child("norm", layerNorm(m.d, in.width()))
	var ups []*graph.Module
	from := in.width()
	for range c.IntOr(1, "num_convs") {
		ups = append(ups, sequential(m.convModule(from, width, convShape{kernel: kernel, padding: (kernel - 1) / 2}, reluInPlace), upsample(scale)))
		from = width
	}
	head.Child("up_convs", moduleList(ups...))
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", normedTokens(f, norm, in.of(f, features)))
		for _, u := range ups {
			x = f.Let("x", f.Call1(u, x))
		}
		return one(f.Let("out", classifier.classify(f, x)))
	}
	return head
}

// setrMLAHead is SETRMLAHead: feature maps resized by four and joined.
func (m mm) setrMLAHead(c *Config) *graph.Module {
	c.Only(headKeys("mla_channels", "up_scale")...)
	in, width, inner, scale := c.inputs(), c.Int("channels"), c.IntOr(128, "mla_channels"), c.IntOr(4, "up_scale")
	head := graph.NewModule("SETRMLAHead")
	classifier := m.classifier(head, c, width)
	var ups []*graph.Module
	for _, w := range in.widths {
		ups = append(ups, sequential(m.conv3(w, inner), m.conv3(inner, inner), upsample(scale)))
	}
	head.Child("up_convs", moduleList(ups...))
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		outs := make([]*graph.Tensor, len(ups))
		for i, u := range ups {
			outs[i] = f.Let("outs."+numbered(i), f.Call1(u, features[in.at[i]]))
		}
		out := f.Let("out", f.Cat(1, outs...))
		return one(f.Let("out", classifier.classify(f, out)))
	}
	return head
}

// segmenterHead is SegmenterMaskTransformerHead: classes are tokens beside the
// patches, and a patch's logits its products with them.
func (m mm) segmenterHead(c *Config) *graph.Module {
	c.Only(headKeys("num_layers", "num_heads", "embed_dims", "mlp_ratio", "drop_path_rate")...)
	in, width, classes := c.inputs(), c.Int("embed_dims"), c.IntOr(19, "num_classes")
	head := graph.NewModule("SegmenterMaskTransformerHead")
	tokens := head.Param("cls_emb", m.d, 1, classes, width)
	list := head.Child("layers", graph.NewModule("ModuleList"))
	layers := c.Int("num_layers")
	for i, drop := range spread(c.Float(0.1, "drop_path_rate"), layers) {
		list.Child(numbered(i), m.encoderLayer(width, c.Int("num_heads"), width*c.IntOr(4, "mlp_ratio"), drop, true))
	}
	into := head.Child("dec_proj", linear(m.d, in.width(), width, true))
	patchProj, classProj := head.Child("patch_proj", linear(m.d, width, width, false)), head.Child("classes_proj", linear(m.d, width, width, false))
	norm, maskNorm := head.Child("decoder_norm", layerNorm(m.d, width)), head.Child("mask_norm", layerNorm(m.d, classes))
	head.Forward = func(f *graph.Frame, features ...*graph.Tensor) []*graph.Tensor {
		x := in.of(f, features)
		n, h, w := x.Shape.D[0], x.Shape.D[2], x.Shape.D[3]
		x = f.Let("x", f.View(f.Contiguous(f.Permute(x, 0, 2, 3, 1)), n, h*w, -1))
		x = f.Let("x", f.Call1(into, x))
		cls := f.Let("cls_emb", f.Expand(tokens.T(), n, -1, -1))
		x = f.Let("x", f.Cat(1, x, cls))
		for _, l := range list.Children {
			x = f.Let("x", f.Call1(l, x))
		}
		x = f.Let("x", f.Call1(norm, x))
		part := func(from, to int64) *graph.Tensor { return f.Slice(f.SliceWhole(x, 1), 1, from, to) }
		patches := f.Let("patches", f.Call1(patchProj, part(0, h*w)))
		found := f.Let("cls_seg_feat", f.Call1(classProj, part(h*w, h*w+classes)))
		patches = f.Let("patches", f.Normalize(patches))
		found = f.Let("cls_seg_feat", f.Normalize(found))
		masks := f.Let("masks", f.Matmul(patches, f.Transpose(found, 1, 2)))
		masks = f.Let("masks", f.Call1(maskNorm, masks))
		return one(f.Let("masks", f.View(f.Contiguous(f.Permute(masks, 0, 2, 1)), n, classes, h, w)))
	}
	return head
}
