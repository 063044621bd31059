package model

import "memplan/internal/estimator/graph"

// timmSwinFamily is the Swin Transformer as timm builds it. Written from timm
// 1.0.31, models/swin_transformer.py.
var timmSwinFamily = Family{
	Name:          "swin_timm",
	Library:       Timm,
	Architectures: sortedKeys(timmSwins),
	Source:        "huggingface/pytorch-image-models:timm/models/swin_transformer.py@v1.0.31",
	New:           newTimmSwin,
}

// timmSwin is one of swin_transformer.py's functions.
type timmSwin struct {
	width, window, image int64
	depths, heads        [4]int64
}

var timmSwins = map[string]timmSwin{
	"swin_tiny_patch4_window7_224":   {96, 7, 224, [4]int64{2, 2, 6, 2}, [4]int64{3, 6, 12, 24}},
	"swin_small_patch4_window7_224":  {96, 7, 224, [4]int64{2, 2, 18, 2}, [4]int64{3, 6, 12, 24}},
	"swin_base_patch4_window7_224":   {128, 7, 224, [4]int64{2, 2, 18, 2}, [4]int64{4, 8, 16, 32}},
	"swin_base_patch4_window12_384":  {128, 12, 384, [4]int64{2, 2, 18, 2}, [4]int64{4, 8, 16, 32}},
	"swin_large_patch4_window7_224":  {192, 7, 224, [4]int64{2, 2, 18, 2}, [4]int64{6, 12, 24, 48}},
	"swin_large_patch4_window12_384": {192, 12, 384, [4]int64{2, 2, 18, 2}, [4]int64{6, 12, 24, 48}},
}

// timmSwinPath is drop_path_rate, which these models have by default.
const timmSwinPath = 0.1

func newTimmSwin(c Config, b Build) (*Network, error) {
	s := timmSwins[c.Text("", "architecture")]
	n := classes(&c, b)
	c.TakesImages(b, s.image)
	if err := c.Err(); err != nil {
		return nil, err
	}
	d := b.DType
	m := graph.NewModule("SwinTransformer")
	embed := m.Child("patch_embed", graph.NewModule("PatchEmbed"))
	proj, first := embed.Child("proj", conv2d(d, 3, s.width, convShape{kernel: 4, stride: 4, bias: true})), embed.Child("norm", layerNorm(d, s.width))
	embed.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(proj, in[0]))
		x = f.Let("x", f.Permute(x, 0, 2, 3, 1))
		return one(f.Let("x", f.Call1(first, x)))
	}
	var stages, blocks []*graph.Module
	drops := spread(timmSwinPath, total(s.depths[:]))
	at := raster{s.image / 4, s.image / 4}
	width := s.width
	for i, depth := range s.depths {
		stage := graph.NewModule("SwinTransformerStage")
		stage.Child("downsample", identity())
		if i > 0 {
			stage.Children[0] = timmPatchMerging(d, width)
			stage.Children[0].Name = "downsample"
			width, at = 2*width, at.over(2)
		}
		var row []*graph.Module
		for k := range depth {
			row = append(row, timmSwinBlock(b, s, at, width, s.heads[i], k%2 == 1, drops[k]))
		}
		drops = drops[depth:]
		blocks = append(blocks, row...)
		stage.Child("blocks", sequential(row...))
		chainNamed(stage, "x")
		stages = append(stages, stage)
	}
	layers, norm := m.Child("layers", sequential(stages...)), m.Child("norm", layerNorm(d, width))
	head := m.Child("head", graph.NewModule("ClassifierHead"))
	fc := head.Child("fc", linear(d, width, n, true))
	head.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Mean(in[0], false, 1, 2))
		return one(f.Call1(fc, x))
	}
	m.Forward = featuresThenHead([]*graph.Module{embed, layers, norm}, head)
	net := classifier(m)
	net.Blocks = blocks
	return net, nil
}

// timmPatchMerging is PatchMerging.
func timmPatchMerging(d graph.DType, width int64) *graph.Module {
	m := graph.NewModule("PatchMerging")
	norm, reduction := m.Child("norm", layerNorm(d, 4*width)), m.Child("reduction", linear(d, 4*width, 2*width, false))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		s := in[0].Shape.D
		x := f.Let("x", f.PadTo(in[0], in[0].Shape))
		x = f.Permute(f.Reshape(x, s[0], s[1]/2, 2, s[2]/2, 2, width), 0, 1, 3, 4, 2, 5)
		x = f.Let("x", f.Reshape(x, s[0], s[1]/2, s[2]/2, 4*width))
		x = f.Let("x", f.Call1(norm, x))
		return one(f.Let("x", f.Call1(reduction, x)))
	}
	return m
}

// timmDropPath is DropPath: samples left out, what remains scaled by the numbers
// that leave them out.
func timmDropPath(p float64) *graph.Module {
	return function("DropPath", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { return f.DropPath(x, p) })
}

// timmSwinBlock is SwinTransformerBlock.
func timmSwinBlock(b Build, s timmSwin, at raster, width, heads int64, shifted bool, drop float64) *graph.Module {
	m := graph.NewModule("SwinTransformerBlock")
	window := min(s.window, at.h)
	shifted = shifted && at.h > s.window
	padded := at.multiple(window)
	tokens := window * window
	norm1 := m.Child("norm1", layerNorm(b.DType, width))
	attn := m.Child("attn", timmWindowAttention(b, window, width, heads))
	path1 := m.Child("drop_path1", timmDropPath(drop))
	norm2, mlp := m.Child("norm2", layerNorm(b.DType, width)), m.Child("mlp", timmMLP(b.DType, width, 4*width))
	path2 := m.Child("drop_path2", timmDropPath(drop))
	var mask *graph.Param
	if shifted {
		mask = m.Buffer("attn_mask", b.DType, (padded.h/window)*(padded.w/window), tokens, tokens)
	}
	partition := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		n := in[0].Shape.D[0]
		x := f.Let("x", f.View(in[0], n, padded.h/window, window, padded.w/window, window, width))
		return one(f.Let("windows", f.View(f.Contiguous(f.Permute(x, 0, 1, 3, 2, 4, 5)), -1, window, window, width)))
	}
	attend := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // _attn
		n := in[0].Shape.D[0]
		x := f.Let("shifted_x", in[0])
		if shifted {
			x = f.Let("shifted_x", f.Roll(in[0]))
		}
		x = f.Let("shifted_x", f.PadTo(x, graph.D(n, padded.h, padded.w, width)))
		windows := f.Let("x_windows", f.Func(partition, x)[0])
		windows = f.Let("x_windows", f.View(windows, -1, tokens, width))
		given := []*graph.Tensor{windows}
		if mask != nil {
			given = append(given, mask.T())
		}
		out := f.Let("attn_windows", f.Call1(attn, given...))
		out = f.Let("attn_windows", f.View(out, -1, window, window, width))
		x = f.Let("shifted_x", windowReverse(f, out, n, padded, window))
		x = f.Let("shifted_x", f.Contiguous(f.SliceWhole(f.Slice(f.Slice(f.SliceWhole(x, 1), 1, 0, at.h), 2, 0, at.w), 1)))
		if shifted {
			return one(f.Let("x", f.Roll(x)))
		}
		return one(f.Let("x", x))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		n := in[0].Shape.D[0]
		x := f.Let("x", f.Add(in[0], f.Call1(path1, f.Func(attend, f.Call1(norm1, in[0]))[0])))
		x = f.Let("x", f.Reshape(x, n, -1, width))
		x = f.Let("x", f.Add(x, f.Call1(path2, f.Call1(mlp, f.Call1(norm2, x)))))
		return one(f.Let("x", f.Reshape(x, n, at.h, at.w, width)))
	}
	return m
}

// timmWindowAttention is WindowAttention, whose fused kernel is not used unless
// experiments are asked for.
func timmWindowAttention(b Build, window, width, heads int64) *graph.Module {
	m := graph.NewModule("WindowAttention")
	tokens := window * window
	table := m.Param("relative_position_bias_table", b.DType, (2*window-1)*(2*window-1), heads)
	index := m.Buffer("relative_position_index", graph.I64, tokens, tokens)
	qkv, proj := m.Child("qkv", linear(b.DType, width, 3*width, true)), m.Child("proj", linear(b.DType, width, width, true))
	relative := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // _get_rel_pos_bias
		bias := f.Let("relative_position_bias", f.View(f.IndexRows(table.T(), f.View(index.T(), -1)), tokens, tokens, -1))
		bias = f.Let("relative_position_bias", f.Contiguous(f.Permute(bias, 2, 0, 1)))
		return one(f.Unsqueeze(bias, 0))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		n := in[0].Shape.D[0]
		x := f.Reshape(f.Call1(qkv, in[0]), n, tokens, 3, heads, -1)
		x = f.Let("qkv", f.Permute(x, 2, 0, 3, 1, 4))
		parts := f.Unbind(x)
		q, k, v := f.Let("q", parts[0]), f.Let("k", parts[1]), f.Let("v", parts[2])
		q = f.Let("q", f.MulScalar(q))
		attn := f.Let("attn", f.Matmul(q, f.Transpose(k, -2, -1)))
		attn = f.Let("attn", f.Add(attn, f.Func(relative)[0]))
		if len(in) > 1 {
			windows := in[1].Shape.D[0]
			attn = f.Let("attn", f.Add(f.View(attn, -1, windows, heads, tokens, tokens), f.Unsqueeze(f.Unsqueeze(in[1], 1), 0)))
			attn = f.Let("attn", f.View(attn, -1, heads, tokens, tokens))
		}
		attn = f.Let("attn", f.Softmax(attn, attn.DType))
		x = f.Let("x", f.Matmul(attn, v))
		x = f.Let("x", f.Reshape(f.Transpose(x, 1, 2), n, tokens, -1))
		return one(f.Let("x", f.Call1(proj, x)))
	}
	return m
}
