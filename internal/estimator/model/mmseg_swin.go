package model

import "memplan/internal/estimator/graph"

// Swin Transformer as MMSegmentation builds it
// (mmseg/models/backbones/swin.py, utils/embed.py@v0.30.0).

// swinShape is the sizes of a Swin Transformer.
type swinShape struct {
	width, patch, window, ratio int64
	depths, heads               []int64
	bias                        bool
}

// swin is SwinTransformer: a normalised map after each stage wanted.
func (m mm) swin(c *Config) *graph.Module {
	c.Only("type", "pretrain_img_size", "embed_dims", "patch_size", "window_size", "mlp_ratio", "depths", "num_heads", "strides", "out_indices",
		"qkv_bias", "patch_norm", "drop_rate", "attn_drop_rate", "drop_path_rate", "use_abs_pos_embed", "activation", "norm", "in_channels")
	c.Refuses("use_abs_pos_embed")
	c.noDropout()
	s := swinShape{
		width: c.IntOr(96, "embed_dims"), patch: c.IntOr(4, "patch_size"), window: c.IntOr(7, "window_size"), ratio: c.IntOr(4, "mlp_ratio"),
		depths: c.Ints("depths"), bias: c.Bool(true, "qkv_bias"),
	}
	s.heads = c.PerLevel(3, len(s.depths), "num_heads")
	drops := spread(c.Float(0.1, "drop_path_rate"), total(s.depths))
	normed, wanted := c.Bool(true, "patch_norm"), c.outIndices(len(s.depths))
	at := m.pixels().over(s.patch)
	net := graph.NewModule("SwinTransformer")
	embed := net.Child("patch_embed", m.patchEmbed(c.IntOr(3, "in_channels"), s.width, convShape{kernel: s.patch, stride: s.patch}, normed))
	list := net.Child("stages", graph.NewModule("ModuleList"))
	norms := make([]*graph.Module, len(s.depths))
	var stages []swinStage
	for i, depth := range s.depths {
		width := s.width << i
		stage := swinStage{at: at}
		m2 := list.Child(numbered(i), graph.NewModule("SwinBlockSequence"))
		blocks := m2.Child("blocks", graph.NewModule("ModuleList"))
		for k := range depth {
			stage.blocks = append(stage.blocks, blocks.Child(numbered(int(k)), m.swinBlock(s, at, width, s.heads[i], k%2 == 1, drops[k])))
		}
		drops = drops[depth:]
		if i < len(s.depths)-1 {
			stage.merge = m2.Child("downsample", m.patchMerging(at, width, normed))
		}
		if wanted[i] {
			norms[i] = layerNorm(m.d, width)
		}
		stages = append(stages, stage)
		at = raster{(at.h + 1) / 2, (at.w + 1) / 2}
	}
	for i, norm := range norms {
		if norm != nil {
			net.Child("norm"+numbered(i), norm)
		}
	}
	net.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(embed, in[0]))
		var outs []*graph.Tensor
		for i, stage := range stages {
			for _, b := range stage.blocks {
				x = f.Let("x", f.Call1(b, x))
			}
			out := f.Let("out", x)
			if stage.merge != nil {
				x = f.Let("x", f.Call1(stage.merge, x))
			}
			if norms[i] != nil {
				out = f.Let("out", f.Call1(norms[i], out))
				outs = append(outs, f.Let("outs."+numbered(i), asMap(f, out, stage.at)))
			}
		}
		return outs
	}
	return net
}

// swinStage is a row of blocks over a raster, and what leads to the next.
type swinStage struct {
	at     raster
	blocks []*graph.Module
	merge  *graph.Module
}

// patchMerging is PatchMerging: pixels of 2×2 side by side, normalised, and half
// as many channels.
func (m mm) patchMerging(at raster, width int64, normed bool) *graph.Module {
	p := graph.NewModule("PatchMerging")
	if normed {
		p.Child("norm", layerNorm(m.d, 4*width))
	}
	p.Child("reduction", linear(m.d, 4*width, 2*width, false))
	p.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		n := in[0].Shape.D[0]
		x := f.Let("x", f.Permute(f.View(in[0], n, at.h, at.w, width), 0, 3, 1, 2))
		if even := at.multiple(2); even != at {
			x = f.Let("x", f.PadTo(x, graph.D(n, width, even.h, even.w)))
		}
		x = f.Let("x", f.Unfold(x, 2))
		x = f.Let("x", f.Transpose(x, 1, 2))
		for _, c := range p.Children {
			x = f.Let("x", f.Call1(c, x))
		}
		return one(x)
	}
	return p
}

// swinBlock is SwinBlock.
func (m mm) swinBlock(s swinShape, at raster, width, heads int64, shifted bool, drop float64) *graph.Module {
	b := graph.NewModule("SwinBlock")
	norm1 := b.Child("norm1", layerNorm(m.d, width))
	attn := b.Child("attn", m.shiftedWindows(s, at, width, heads, shifted, drop))
	norm2 := b.Child("norm2", layerNorm(m.d, width))
	ffn := b.Child("ffn", m.ffn(width, s.ratio*width, drop))
	b.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		identity := f.Let("identity", in[0])
		x := f.Let("x", f.Call1(norm1, in[0]))
		x = f.Let("x", f.Call1(attn, x))
		x = f.Let("x", f.Add(x, identity))
		identity = f.Let("identity", x)
		x = f.Let("x", f.Call1(norm2, x))
		return one(f.Let("x", f.Add(identity, f.Call1(ffn, x))))
	}
	return b
}

// shiftedWindows is ShiftWindowMSA: attention within windows, which every other
// layer moves by half their size.
func (m mm) shiftedWindows(s swinShape, at raster, width, heads int64, shifted bool, drop float64) *graph.Module {
	a := graph.NewModule("ShiftWindowMSA")
	inner := a.Child("w_msa", m.windowAttention(s, width, heads))
	path := a.Child("drop", dropPath(drop))
	padded := at.multiple(s.window)
	windows := (padded.h / s.window) * (padded.w / s.window)
	partition := func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { // window_partition
		n, c := x.Shape.D[0], x.Shape.D[3]
		x = f.Let("windows", f.View(x, n, padded.h/s.window, s.window, padded.w/s.window, s.window, c))
		x = f.Let("windows", f.Contiguous(f.Permute(x, 0, 1, 3, 2, 4, 5)))
		return f.Let("windows", f.View(x, -1, s.window*s.window, c))
	}
	maskOf := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		image := f.Let("img_mask", f.Empty(graph.F32, 1, padded.h, padded.w, 1))
		parts := f.View(partition(f, image), windows, -1)
		parts = f.Let("mask_windows", parts)
		tokens := s.window * s.window
		mask := f.Let("attn_mask", f.Sub(f.Expand(f.Unsqueeze(parts, 1), windows, tokens, tokens), f.Unsqueeze(parts, 2)))
		mask = f.Let("attn_mask", f.MaskedFill(mask, f.Empty(graph.Bool, windows, tokens, tokens)))
		return one(f.Let("attn_mask", f.MaskedFill(mask, f.Empty(graph.Bool, windows, tokens, tokens))))
	}
	a.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		n := in[0].Shape.D[0]
		query := f.Let("query", f.View(in[0], n, at.h, at.w, width))
		query = f.Let("query", f.PadTo(query, graph.D(n, padded.h, padded.w, width)))
		moved := f.Let("shifted_query", query)
		var mask *graph.Tensor
		if shifted {
			moved = f.Let("shifted_query", f.Roll(query))
			mask = f.Let("attn_mask", f.Func(maskOf)[0])
		}
		parts := f.Let("query_windows", f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { return one(partition(f, in[0])) }, moved)[0])
		given := []*graph.Tensor{parts}
		if mask != nil {
			given = append(given, mask)
		}
		x := f.Let("attn_windows", f.Call1(inner, given...))
		x = f.Let("shifted_x", windowReverse(f, x, n, padded, s.window))
		if shifted {
			x = f.Let("x", f.Roll(x))
		}
		x = f.Let("x", x)
		if padded != at {
			x = f.Let("x", f.Contiguous(f.SliceWhole(f.Slice(f.Slice(f.SliceWhole(x, 1), 1, 0, at.h), 2, 0, at.w), 1)))
		}
		x = f.Let("x", f.View(x, n, at.h*at.w, width))
		return one(f.Let("x", f.Call1(path, x)))
	}
	return a
}

// windowReverse puts windows back in their places.
func windowReverse(f *graph.Frame, x *graph.Tensor, n int64, at raster, window int64) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.View(in[0], n, at.h/window, at.w/window, window, window, -1))
		return one(f.Let("x", f.View(f.Contiguous(f.Permute(x, 0, 1, 3, 2, 4, 5)), n, at.h, at.w, -1)))
	}, x)[0]
}

// windowAttention is WindowMSA.
func (m mm) windowAttention(s swinShape, width, heads int64) *graph.Module {
	a := graph.NewModule("WindowMSA")
	tokens := s.window * s.window
	table := a.Param("relative_position_bias_table", m.d, (2*s.window-1)*(2*s.window-1), heads)
	index := a.Buffer("relative_position_index", graph.I64, tokens, tokens)
	qkv, proj := a.Child("qkv", linear(m.d, width, 3*width, s.bias)), a.Child("proj", linear(m.d, width, width, true))
	a.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		var mask *graph.Tensor
		if len(in) > 1 {
			mask = in[1]
		}
		x := f.Let("qkv", f.Call1(qkv, in[0]))
		q, k, v := splitHeads(f, x, in[0].Shape.D[0], tokens, heads)
		x = biasedAttention(f, q, k, v, table, index, mask)
		return one(f.Let("x", f.Call1(proj, x)))
	}
	return a
}
