package model

import (
	"fmt"

	"memplan/internal/estimator/graph"
)

// Backbones of segmentors that are plain transformers
// (mmseg/models/backbones/vit.py, beit.py, mae.py@v0.30.0).

// plainViT is what ViT, BEiT and MAE share.
type plainViT struct {
	patch, width, heads, layers, inner int64
	h, w                               int64 // in patches
	in                                 int64
	drops                              []float64
	wanted                             []bool
}

func readPlainViT(c *Config, b Build) plainViT {
	v := plainViT{
		patch: c.IntOr(16, "patch_size"), width: c.IntOr(768, "embed_dims"), heads: c.IntOr(12, "num_heads"), layers: c.IntOr(12, "num_layers"),
		in: c.IntOr(3, "in_channels"),
	}
	v.inner = v.width * c.IntOr(4, "mlp_ratio")
	c.Divides("num_heads", "embed_dims", v.heads, v.width)
	c.noDropout()
	size := c.PerLevel(224, 2, "img_size")
	if b.Image != [2]int64{} && b.Image != [2]int64{size[0], size[1]} {
		c.fields.Add("model.config.img_size", size, fmt.Sprintf("training.image_size, %v: resized positions are not modelled", b.Image), "")
	}
	v.h, v.w = size[0]/v.patch, size[1]/v.patch
	v.drops = spread(c.Float(0, "drop_path_rate"), v.layers)
	if c.values["out_indices"] == nil {
		v.wanted = make([]bool, v.layers)
		v.wanted[v.layers-1] = true
	} else {
		v.wanted = c.outIndices(int(v.layers))
	}
	return v
}

var plainViTKeys = []string{
	"type", "img_size", "patch_size", "in_channels", "embed_dims", "num_layers", "num_heads", "mlp_ratio", "out_indices", "drop_rate",
	"attn_drop_rate", "drop_path_rate", "norm", "activation",
}

// vit is VisionTransformer.
func (m mm) vit(c *Config) *graph.Module {
	c.Only(append(plainViTKeys, "qkv_bias", "final_norm", "with_cls_token")...)
	v := readPlainViT(c, m.b)
	bias, withToken := c.Bool(true, "qkv_bias"), c.Bool(true, "with_cls_token")
	layer := func(drop float64) *graph.Module { return m.encoderLayer(v.width, v.heads, v.inner, drop, bias) }
	return m.plainEncoder("VisionTransformer", v, layer, positioned, withToken, c.Bool(false, "final_norm"))
}

// positions of a plain transformer.
const (
	positioned = iota // learned and trained
	unmoved           // kept as they are
	relative          // in the layers alone
)

// beit is BEiT or, with a bias for keys too and fixed positions, MAE.
func (m mm) beit(c *Config) *graph.Module {
	c.Only(append(plainViTKeys, "qv_bias", "init_values", "relative_position_bias")...)
	v := readPlainViT(c, m.b)
	masked := !c.Bool(false, "qv_bias")
	where := relative
	if masked {
		where = unmoved
	}
	layer := func(drop float64) *graph.Module { return m.beitLayer(v, drop, masked) }
	return m.plainEncoder("BEiT", v, layer, where, true, false)
}

// plainEncoder is the forward of all of them: patches, a class token, layers, and
// maps of the patches after those wanted.
func (m mm) plainEncoder(class string, v plainViT, layer func(drop float64) *graph.Module, where int, withToken, finalNorm bool) *graph.Module {
	net := graph.NewModule(class)
	token := net.Param("cls_token", m.d, 1, 1, v.width)
	var positions *graph.Param
	if where != relative {
		positions = net.Param("pos_embed", m.d, 1, v.h*v.w+1, v.width)
		positions.Trained = where == positioned
	}
	patches := net.Child("patch_embed", m.patchEmbed(v.in, v.width, convShape{kernel: v.patch, stride: v.patch}, false))
	list := net.Child("layers", graph.NewModule("ModuleList"))
	for i, drop := range v.drops {
		list.Child(numbered(i), layer(drop))
	}
	var norm *graph.Module
	if finalNorm {
		norm = net.Child("norm1", layerNorm(m.d, v.width))
	}
	net.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(patches, in[0]))
		cls := f.Let("cls_tokens", f.Expand(token.T(), x.Shape.D[0], -1, -1))
		x = f.Let("x", f.Cat(1, cls, x))
		if positions != nil {
			x = f.Let("x", f.Add(x, positions.T()))
		}
		tail := func(x *graph.Tensor) *graph.Tensor { return f.Slice(f.SliceWhole(x, 1), 1, 1, v.h*v.w+1) }
		if !withToken {
			x = f.Let("x", tail(x))
		}
		var outs []*graph.Tensor
		for i, l := range list.Children {
			x = f.Let("x", f.Call1(l, x))
			if norm != nil && i == len(list.Children)-1 {
				x = f.Let("x", f.Call1(norm, x))
			}
			if !v.wanted[i] {
				continue
			}
			out := f.Let("out", x)
			if withToken {
				out = f.Let("out", tail(x))
			}
			outs = append(outs, f.Let("outs."+numbered(i), asMap(f, out, raster{v.h, v.w})))
		}
		return outs
	}
	return net
}

// beitLayer is BEiTTransformerEncoderLayer: what a layer adds is scaled.
func (m mm) beitLayer(v plainViT, drop float64, keyBias bool) *graph.Module {
	l := graph.NewModule("BEiTTransformerEncoderLayer")
	gamma1, gamma2 := l.Param("gamma_1", m.d, v.width), l.Param("gamma_2", m.d, v.width)
	norm1 := l.Child("ln1", layerNorm(m.d, v.width))
	attn := l.Child("attn", m.beitAttention(v, keyBias))
	norm2 := l.Child("ln2", layerNorm(m.d, v.width))
	ffn := l.Child("ffn", m.ffn(v.width, v.inner, 0))
	path := l.Child("drop_path", dropPath(drop))
	l.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Add(in[0], f.Call1(path, f.Mul(gamma1.T(), f.Call1(attn, f.Call1(norm1, in[0]))))))
		return one(f.Let("x", f.Add(x, f.Call1(path, f.Mul(gamma2.T(), f.Call1(ffn, f.Call1(norm2, x)))))))
	}
	return l
}

// beitAttention is BEiTAttention: a bias by where two patches lie to each other.
func (m mm) beitAttention(v plainViT, keyBias bool) *graph.Module {
	a := graph.NewModule("BEiTAttention")
	var qBias, vBias, bias *graph.Param
	if !keyBias {
		qBias, vBias = a.Param("q_bias", m.d, v.width), a.Param("v_bias", m.d, v.width)
	}
	table := a.Param("relative_position_bias_table", m.d, (2*v.h-1)*(2*v.w-1)+3, v.heads)
	tokens := v.h*v.w + 1
	index := a.Buffer("relative_position_index", graph.I64, tokens, tokens)
	qkv := a.Child("qkv", graph.NewModule("Linear"))
	weight := qkv.Param("weight", m.d, 3*v.width, v.width)
	if keyBias {
		bias = qkv.Param("bias", m.d, 3*v.width)
	}
	proj := a.Child("proj", linear(m.d, v.width, v.width, true))
	a.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		n := in[0].Shape.D[0]
		b := tensorOf(bias)
		if !keyBias {
			zeros := f.Let("k_bias", f.Empty(m.d, v.width))
			b = f.Let("qkv_bias", f.Cat(0, qBias.T(), zeros, vBias.T()))
		}
		x := f.Let("qkv", f.Linear(in[0], weight.T(), b))
		q, k, val := splitHeads(f, x, n, tokens, v.heads)
		x = biasedAttention(f, q, k, val, table, index, nil)
		return one(f.Let("x", f.Call1(proj, x)))
	}
	return a
}
