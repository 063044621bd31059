package model

import "memplan/internal/estimator/graph"

// Transformer layers of MMCV and the attention of torch they stand on
// (mmcv/cnn/bricks/transformer.py, drop.py@v1.7.2;
// torch/nn/functional.py:multi_head_attention_forward@v1.8.1).

// dropPath is DropPath: samples left out, what remains scaled first.
func dropPath(p float64) *graph.Module {
	return function("DropPath", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
		if p == 0 {
			return x
		}
		return f.DropPath(f.MulScalar(x), p)
	})
}

// spread are n probabilities from 0 to p, evenly.
func spread(p float64, n int64) []float64 {
	all := make([]float64, n)
	for i := range all {
		if n > 1 {
			all[i] = p * float64(i) / float64(n-1)
		}
	}
	return all
}

// raster is the height and width of a feature map.
type raster struct{ h, w int64 }

// over is the raster of a stride.
func (r raster) over(stride int64) raster { return raster{r.h / stride, r.w / stride} }

// multiple is the raster padded to a multiple of a size.
func (r raster) multiple(of int64) raster {
	return raster{(r.h + of - 1) / of * of, (r.w + of - 1) / of * of}
}

// after is the raster a convolution makes.
func (r raster) after(s convShape) raster {
	size := func(n int64) int64 { return (n+2*s.padding-s.kernel)/s.stride + 1 }
	return raster{size(r.h), size(r.w)}
}

// pixels is the raster of the job's images.
func (m mm) pixels() raster { return raster{m.b.Image[0], m.b.Image[1]} }

// noDropout reports dropout in layers, which is not modelled.
func (c *Config) noDropout() {
	for _, key := range []string{"drop_rate", "attn_drop_rate"} {
		if c.Float(0, key) > 0 {
			c.fields.Add("model.config."+key, c.values[key], "0 (others are not modelled)", "0")
		}
	}
}

// total is the sum of a list.
func total(ns []int64) int64 {
	n := int64(0)
	for _, v := range ns {
		n += v
	}
	return n
}

// multihead is nn.MultiheadAttention that also gives the mean of its weights,
// which nobody uses. Its tensors are [tokens, samples, width]; the inputs are
// queries, and keys that are values too, the same tensor where they are one.
func (m mm) multihead(width, heads int64, bias bool) *graph.Module {
	a := graph.NewModule("MultiheadAttention")
	weight := a.Param("in_proj_weight", m.d, 3*width, width)
	var b *graph.Param
	if bias {
		b = a.Param("in_proj_bias", m.d, 3*width)
	}
	out := a.Child("out_proj", linear(m.d, width, width, true))
	part := func(f *graph.Frame, p *graph.Param, from, to int64) *graph.Tensor {
		if p == nil {
			return nil
		}
		return f.SliceWhole(f.Slice(p.T(), 0, from*width, to*width), int(p.Shape.N)-1)
	}
	attend := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		query, key := in[0], in[1]
		tokens, samples := query.Shape.D[0], query.Shape.D[1]
		var q, k, v *graph.Tensor
		if query == key {
			parts := f.Split(f.Linear(query, weight.T(), tensorOf(b)), 3, -1)
			q, k, v = f.Let("q", parts[0]), f.Let("k", parts[1]), f.Let("v", parts[2])
		} else {
			w, bb := f.Let("_w", part(f, weight, 0, 1)), f.Let("_b", part(f, b, 0, 1))
			q = f.Let("q", f.Linear(query, w, bb))
			w, bb = f.Let("_w", part(f, weight, 1, 3)), f.Let("_b", part(f, b, 1, 3))
			parts := f.Split(f.Linear(key, w, bb), 2, -1)
			k, v = f.Let("k", parts[0]), f.Let("v", parts[1])
		}
		q = f.Let("q", f.MulScalar(q))
		byHead := func(name string, t *graph.Tensor) *graph.Tensor {
			return f.Let(name, f.Transpose(f.View(f.Contiguous(t), -1, samples*heads, width/heads), 0, 1))
		}
		q, k, v = byHead("q", q), byHead("k", k), byHead("v", v)
		w := f.Let("attn_output_weights", f.Matmul(q, f.Transpose(k, 1, 2)))
		w = f.Let("attn_output_weights", f.Softmax(w, w.DType))
		x := f.Let("attn_output", f.Matmul(w, v))
		x = f.Let("attn_output", f.View(f.Contiguous(f.Transpose(x, 0, 1)), tokens, samples, width))
		x = f.Let("attn_output", f.Call1(out, x))
		w = f.Let("attn_output_weights", f.View(w, samples, heads, tokens, -1))
		f.Drop(f.MulScalar(f.SumOver(w, 1, false)))
		return one(x)
	}
	a.Forward = attend
	return a
}

// batchFirst is MMCV's MultiheadAttention: the attention of [samples, tokens,
// width], dropped by path, without what it is added to.
func (m mm) batchFirst(attn, drop *graph.Module) func(f *graph.Frame, query, key *graph.Tensor) *graph.Tensor {
	return func(f *graph.Frame, query, key *graph.Tensor) *graph.Tensor {
		same := query == key
		q := f.Let("query", f.Transpose(query, 0, 1))
		k := q
		if !same {
			k = f.Let("key", f.Transpose(key, 0, 1))
		}
		out := f.Let("out", f.Call1(attn, q, k))
		out = f.Let("out", f.Transpose(out, 0, 1))
		return f.Call1(drop, out)
	}
}

// ffn is FFN without what it is added to: two linear layers and GELU, dropped by
// path.
func (m mm) ffn(width, inner int64, drop float64) *graph.Module {
	b := graph.NewModule("FFN")
	first := sequential(linear(m.d, width, inner, true), gelu(), dropout(0))
	layers := b.Child("layers", sequential(first, linear(m.d, inner, width, true), dropout(0)))
	path := b.Child("dropout_layer", dropPath(drop))
	b.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		out := f.Let("out", f.Call1(layers, in[0]))
		return one(f.Call1(path, out))
	}
	return b
}

// encoderLayer is TransformerEncoderLayer of the ViT.
func (m mm) encoderLayer(width, heads, inner int64, drop float64, bias bool) *graph.Module {
	l := graph.NewModule("TransformerEncoderLayer")
	norm1 := l.Child("ln1", layerNorm(m.d, width))
	attn := l.Child("attn", graph.NewModule("MultiheadAttention"))
	inside, path := attn.Child("attn", m.multihead(width, heads, bias)), attn.Child("dropout_layer", dropPath(drop))
	attend := m.batchFirst(inside, path)
	attn.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // the input, and what it is added to
		return one(f.Add(in[1], attend(f, in[0], in[0])))
	}
	norm2 := l.Child("ln2", layerNorm(m.d, width))
	ffn := l.Child("ffn", m.ffn(width, inner, drop))
	l.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(attn, f.Call1(norm1, in[0]), in[0]))
		return one(f.Let("x", f.Add(x, f.Call1(ffn, f.Call1(norm2, x)))))
	}
	return l
}

// patchEmbed is PatchEmbed: a convolution, its pixels as tokens, perhaps
// normalised. It gives [samples, tokens, width]; the size is that of pixels.
func (m mm) patchEmbed(in, out int64, s convShape, normed bool) *graph.Module {
	p := graph.NewModule("PatchEmbed")
	s.bias = true
	projection := p.Child("projection", conv2d(m.d, in, out, s))
	var norm *graph.Module
	if normed {
		norm = p.Child("norm", layerNorm(m.d, out))
	}
	p.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(projection, in[0]))
		x = f.Let("x", f.Transpose(f.Reshape(x, x.Shape.D[0], out, -1), 1, 2))
		if norm != nil {
			x = f.Let("x", f.Call1(norm, x))
		}
		return one(x)
	}
	return p
}

// toImage is nlc_to_nchw, toTokens nchw_to_nlc.
func toImage(f *graph.Frame, x *graph.Tensor, at raster) *graph.Tensor {
	return f.Reshape(f.Transpose(x, 1, 2), x.Shape.D[0], x.Shape.D[2], at.h, at.w)
}

func toTokens(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
	return f.Contiguous(f.Transpose(f.Reshape(x, x.Shape.D[0], x.Shape.D[1], -1), 1, 2))
}

// asMap lays tokens out as a feature map: reshaped, permuted and copied.
func asMap(f *graph.Frame, x *graph.Tensor, at raster) *graph.Tensor {
	s := x.Shape.D
	return f.Contiguous(f.Permute(f.Reshape(x, s[0], at.h, at.w, s[2]), 0, 3, 1, 2))
}
