package model

import "memplan/internal/estimator/graph"

// Backbones of segmentors whose transformers shrink the keys, and those with
// windows beside (mmseg/models/backbones/mit.py, twins.py@v0.30.0).

// reducedAttention is EfficientMultiheadAttention without what it is added to:
// queries are the tokens, keys a convolution's view of them.
func (m mm) reducedAttention(at raster, width, heads, reduction int64, bias bool, drop float64) *graph.Module {
	a := graph.NewModule("EfficientMultiheadAttention")
	attend := m.batchFirst(a.Child("attn", m.multihead(width, heads, bias)), a.Child("dropout_layer", dropPath(drop)))
	var shrink, norm *graph.Module
	if reduction > 1 {
		shrink = a.Child("sr", conv2d(m.d, width, width, convShape{kernel: reduction, stride: reduction, bias: true}))
		norm = a.Child("norm", layerNorm(m.d, width))
	}
	a.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		key := in[0]
		if shrink != nil {
			key = f.Let("x_kv", toImage(f, in[0], at))
			key = f.Let("x_kv", f.Call1(shrink, key))
			key = f.Let("x_kv", toTokens(f, key))
			key = f.Let("x_kv", f.Call1(norm, key))
		}
		return one(attend(f, in[0], key))
	}
	return a
}

// mixFFN is MixFFN without what it is added to: a depthwise convolution between
// two of 1×1.
func (m mm) mixFFN(at raster, width, inner int64, drop float64) *graph.Module {
	b := graph.NewModule("MixFFN")
	layers := b.Child("layers", sequential(
		conv2d(m.d, width, inner, convShape{kernel: 1, bias: true}),
		conv2d(m.d, inner, inner, convShape{kernel: 3, padding: 1, groups: inner, bias: true}), gelu(), dropout(0),
		conv2d(m.d, inner, width, convShape{kernel: 1, bias: true}), dropout(0)))
	path := b.Child("dropout_layer", dropPath(drop))
	b.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		out := f.Let("out", toImage(f, in[0], at))
		out = f.Let("out", f.Call1(layers, out))
		out = f.Let("out", toTokens(f, out))
		return one(f.Call1(path, out))
	}
	return b
}

// mit is MixVisionTransformer, of SegFormer.
func (m mm) mit(c *Config) *graph.Module {
	c.Only("type", "in_channels", "embed_dims", "num_stages", "num_layers", "num_heads", "patch_sizes", "strides", "sr_ratios", "out_indices",
		"mlp_ratio", "qkv_bias", "drop_rate", "attn_drop_rate", "drop_path_rate", "norm")
	c.noDropout()
	n := int(c.IntOr(4, "num_stages"))
	base, layers, heads := c.IntOr(64, "embed_dims"), c.PerLevel(2, n, "num_layers"), c.PerLevel(1, n, "num_heads")
	kernels, ratios := c.PerLevel(3, n, "patch_sizes"), c.PerLevel(1, n, "sr_ratios")
	strides := []int64{4, 2, 2, 2}
	if c.values["strides"] != nil || n != 4 {
		strides = c.PerLevel(2, n, "strides")
	}
	ratio, bias := c.IntOr(4, "mlp_ratio"), c.Bool(true, "qkv_bias")
	drops, wanted := spread(c.Float(0, "drop_path_rate"), total(layers)), c.outIndices(n)
	net := graph.NewModule("MixVisionTransformer")
	list := net.Child("layers", graph.NewModule("ModuleList"))
	in, at := c.IntOr(3, "in_channels"), m.pixels()
	var rasters []raster
	for i := range n {
		width := base * heads[i]
		s := convShape{kernel: kernels[i], stride: strides[i], padding: kernels[i] / 2}
		at = at.after(s)
		rasters = append(rasters, at)
		var blocks []*graph.Module
		for k := range layers[i] {
			l := graph.NewModule("TransformerEncoderLayer")
			norm1 := l.Child("norm1", layerNorm(m.d, width))
			attn := l.Child("attn", m.reducedAttention(at, width, heads[i], ratios[i], bias, drops[k]))
			norm2 := l.Child("norm2", layerNorm(m.d, width))
			ffn := l.Child("ffn", m.mixFFN(at, width, ratio*width, drops[k]))
			l.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
				x := f.Let("x", f.Add(in[0], f.Call1(attn, f.Call1(norm1, in[0]))))
				return one(f.Let("x", f.Add(x, f.Call1(ffn, f.Call1(norm2, x)))))
			}
			blocks = append(blocks, l)
		}
		drops = drops[layers[i]:]
		list.Child(numbered(i), moduleList(m.patchEmbed(in, width, s, true), moduleList(blocks...), layerNorm(m.d, width)))
		in = width
	}
	net.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		var outs []*graph.Tensor
		for i, stage := range list.Children {
			x = f.Let("x", f.Call1(stage.Children[0], x))
			for _, b := range stage.Children[1].Children {
				x = f.Let("x", f.Call1(b, x))
			}
			x = f.Let("x", f.Call1(stage.Children[2], x))
			x = f.Let("x", toImage(f, x, rasters[i]))
			if wanted[i] {
				outs = append(outs, f.Let("outs."+numbered(i), x))
			}
		}
		return outs
	}
	return net
}

// pcpvt and svt are the Twins: PCPVT, and SVT, whose every other layer sees
// windows.
func (m mm) pcpvt(c *Config) *graph.Module { return m.twins(c, nil) }

func (m mm) svt(c *Config) *graph.Module {
	return m.twins(c, c.PerLevel(7, len(c.Ints("depths")), "windiow_sizes"))
}

func (m mm) twins(c *Config, windows []int64) *graph.Module {
	c.Only("type", "in_channels", "embed_dims", "num_heads", "patch_sizes", "strides", "mlp_ratios", "out_indices", "qkv_bias", "norm", "depths",
		"sr_ratios", "norm_after_stage", "drop_rate", "attn_drop_rate", "drop_path_rate", "windiow_sizes")
	c.noDropout()
	depths := c.Ints("depths")
	n := len(depths)
	widths, heads, ratios := c.PerLevel(64, n, "embed_dims"), c.PerLevel(1, n, "num_heads"), c.PerLevel(1, n, "sr_ratios")
	strides, inner := c.PerLevel(2, n, "strides"), c.PerLevel(4, n, "mlp_ratios")
	bias, after := c.Bool(false, "qkv_bias"), c.Bool(windows != nil, "norm_after_stage")
	drops, wanted := spread(c.Float(0, "drop_path_rate"), total(depths)), c.outIndices(n)
	net := graph.NewModule("PCPVT")
	embeds, positions := net.Child("patch_embeds", graph.NewModule("ModuleList")), net.Child("position_encodings", graph.NewModule("ModuleList"))
	layers, norms := net.Child("layers", graph.NewModule("ModuleList")), net.Child("norm_list", graph.NewModule("ModuleList"))
	in, at := c.IntOr(3, "in_channels"), m.pixels()
	var rasters []raster
	for i, width := range widths {
		at = at.over(strides[i])
		rasters = append(rasters, at)
		embeds.Child(numbered(i), m.patchEmbed(in, width, convShape{kernel: strides[i], stride: strides[i]}, true))
		positions.Child(numbered(i), m.conditionalPositions(at, width))
		var blocks []*graph.Module
		for k := range depths[i] {
			attn := m.reducedAttention(at, width, heads[i], ratios[i], bias, drops[k])
			grouped := windows != nil && k%2 == 0
			if grouped {
				attn = m.groupedAttention(at, width, heads[i], windows[i], bias)
			}
			blocks = append(blocks, m.twinsLayer(attn, width, inner[i]*width, drops[k], grouped))
		}
		drops = drops[depths[i]:]
		layers.Child(numbered(i), moduleList(blocks...))
		if after {
			norms.Child(numbered(i), layerNorm(m.d, width))
		}
		in = width
	}
	net.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", in[0])
		var outs []*graph.Tensor
		for i := range n {
			x = f.Let("x", f.Call1(embeds.Children[i], x))
			for k, b := range layers.Children[i].Children {
				x = f.Let("x", f.Call1(b, x))
				if k == 0 {
					x = f.Let("x", f.Call1(positions.Children[i], x))
				}
			}
			if after {
				x = f.Let("x", f.Call1(norms.Children[i], x))
			}
			x = f.Let("x", asMap(f, x, rasters[i]))
			if wanted[i] {
				outs = append(outs, f.Let("outputs."+numbered(i), x))
			}
		}
		return outs
	}
	return net
}

// twinsLayer is GSAEncoderLayer or LSAEncoderLayer, which drop by path twice.
func (m mm) twinsLayer(attn *graph.Module, width, inner int64, drop float64, grouped bool) *graph.Module {
	l := graph.NewModule("GSAEncoderLayer")
	norm1 := l.Child("norm1", layerNorm(m.d, width))
	l.Child("attn", attn)
	norm2 := l.Child("norm2", layerNorm(m.d, width))
	ffn, path := l.Child("ffn", m.ffn(width, inner, drop)), l.Child("drop_path", dropPath(drop))
	l.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		seen := f.Call1(attn, f.Call1(norm1, in[0]))
		if !grouped {
			seen = f.AddScalar(seen) // the identity is 0
		}
		x := f.Let("x", f.Add(in[0], f.Call1(path, seen)))
		return one(f.Let("x", f.Add(x, f.Call1(path, f.Call1(ffn, f.Call1(norm2, x))))))
	}
	return l
}

// conditionalPositions is ConditionalPositionEncoding.
func (m mm) conditionalPositions(at raster, width int64) *graph.Module {
	p := graph.NewModule("ConditionalPositionEncoding")
	proj := p.Child("proj", conv2d(m.d, width, width, convShape{kernel: 3, padding: 1, groups: width, bias: true}))
	p.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		image := f.Let("cnn_feat", toImage(f, in[0], at))
		x := f.Let("x", f.Add(f.Call1(proj, image), image))
		return one(f.Let("x", f.Transpose(f.Reshape(x, x.Shape.D[0], width, -1), 1, 2)))
	}
	return p
}

// groupedAttention is LocallyGroupedSelfAttention: attention within windows.
func (m mm) groupedAttention(at raster, width, heads, window int64, bias bool) *graph.Module {
	a := graph.NewModule("LocallyGroupedSelfAttention")
	qkv, proj := a.Child("qkv", linear(m.d, width, 3*width, bias)), a.Child("proj", linear(m.d, width, width, true))
	padded := at.multiple(window)
	rows, columns, tokens := padded.h/window, padded.w/window, window*window
	maskOf := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		mask := f.Let("mask", f.Empty(graph.F32, 1, rows, window, columns, window))
		mask = f.Let("mask", f.Reshape(f.Transpose(mask, 2, 3), 1, rows*columns, tokens))
		pairs := f.Let("attn_mask", f.Sub(f.Expand(f.Unsqueeze(mask, 2), 1, rows*columns, tokens, tokens), f.Unsqueeze(mask, 3)))
		for range 2 {
			pairs = f.Let("attn_mask", f.MaskedFill(pairs, f.Empty(graph.Bool, pairs.Shape.Slice()...)))
		}
		return one(pairs)
	}
	a.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		n := in[0].Shape.D[0]
		x := f.Let("x", f.View(in[0], n, at.h, at.w, width))
		x = f.Let("x", f.PadTo(x, graph.D(n, padded.h, padded.w, width)))
		x = f.Let("x", f.Transpose(f.Reshape(x, n, rows, window, columns, window, width), 2, 3))
		mask := f.Let("attn_mask", f.Func(maskOf)[0])
		qkv := f.Reshape(f.Call1(qkv, x), n, rows*columns, tokens, 3, heads, width/heads)
		qkv = f.Let("qkv", f.Permute(qkv, 3, 0, 1, 4, 2, 5))
		q, k, v := f.Let("q", f.Select(qkv, 0)), f.Let("k", f.Select(qkv, 0)), f.Let("v", f.Select(qkv, 0))
		attn := f.Let("attn", f.MulScalar(f.Matmul(q, f.Transpose(k, -2, -1))))
		attn = f.Let("attn", f.Add(attn, f.Unsqueeze(mask, 2)))
		attn = f.Let("attn", f.Softmax(attn, attn.DType))
		out := f.Let("attn", f.Reshape(f.Transpose(f.Matmul(attn, v), 2, 3), n, rows, columns, window, window, width))
		x = f.Let("x", f.Reshape(f.Transpose(out, 2, 3), n, padded.h, padded.w, width))
		if padded != at {
			x = f.Let("x", f.Contiguous(f.SliceWhole(f.Slice(f.Slice(f.SliceWhole(x, 1), 1, 0, at.h), 2, 0, at.w), 1)))
		}
		x = f.Let("x", f.Reshape(x, n, at.h*at.w, width))
		return one(f.Let("x", f.Call1(proj, x)))
	}
	return a
}
