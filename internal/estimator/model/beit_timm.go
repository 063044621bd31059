package model

import "memplan/internal/estimator/graph"

// timmBeitFamily is BEiT as timm builds it: a Vision Transformer with a bias by
// relative position in each layer and scaled branches. Written from timm 1.0.31,
// models/beit.py.
var timmBeitFamily = Family{
	Name:          "beit_timm",
	Library:       Timm,
	Architectures: sortedKeys(timmBeits),
	Source:        "huggingface/pytorch-image-models:timm/models/beit.py@v1.0.31",
	New:           newTimmBeit,
}

var timmBeits = map[string]vitShape{
	"beit_base_patch16_224": {patch: 16, width: 768, depth: 12, heads: 12, image: 224}, "beit_base_patch16_384": {patch: 16, width: 768, depth: 12, heads: 12, image: 384},
	"beit_large_patch16_224": {patch: 16, width: 1024, depth: 24, heads: 16, image: 224}, "beit_large_patch16_384": {patch: 16, width: 1024, depth: 24, heads: 16, image: 384},
}

func newTimmBeit(c Config, b Build) (*Network, error) {
	s := timmBeits[c.Text("", "architecture")]
	n := classes(&c, b)
	c.TakesImages(b, s.image)
	if err := c.Err(); err != nil {
		return nil, err
	}
	d := b.DType
	m := graph.NewModule("Beit")
	token := m.Param("cls_token", d, 1, 1, s.width)
	patch := m.Child("patch_embed", timmPatchEmbed(d, s))
	list := m.Child("blocks", graph.NewModule("ModuleList"))
	for i := range s.depth {
		list.Child(numbered(int(i)), timmBeitBlock(b, s))
	}
	m.Child("norm", identity())
	norm := m.Child("fc_norm", layerNorm(d, s.width))
	head := m.Child("head", linear(d, s.width, n, true))
	features := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(patch, in[0]))
		x = f.Let("x", f.Cat(1, f.Expand(token.T(), x.Shape.D[0], -1, -1), x))
		for _, block := range list.Children {
			x = f.Let("x", f.Call1(block, x))
		}
		return one(x)
	}
	classify := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Mean(f.Slice(f.SliceWhole(in[0], 1), 1, 1, in[0].Shape.D[1]), false, 1))
		x = f.Let("x", f.Call1(norm, x))
		return one(f.Call1(head, x))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Func(features, in[0])[0])
		return one(f.Let("x", f.Func(classify, x)[0]))
	}
	net := classifier(m)
	net.Blocks = list.Children
	return net, nil
}

// timmBeitBlock is Block with its branches scaled.
func timmBeitBlock(b Build, s vitShape) *graph.Module {
	m := graph.NewModule("Block")
	gamma1, gamma2 := m.Param("gamma_1", b.DType, s.width), m.Param("gamma_2", b.DType, s.width)
	norm1 := m.Child("norm1", layerNorm(b.DType, s.width))
	attn := m.Child("attn", timmBeitAttention(b, s))
	norm2 := m.Child("norm2", layerNorm(b.DType, s.width))
	mlp := m.Child("mlp", timmMLP(b.DType, s.width, s.hidden()))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Add(in[0], f.Mul(gamma1.T(), f.Call1(attn, f.Call1(norm1, in[0])))))
		return one(f.Let("x", f.Add(x, f.Mul(gamma2.T(), f.Call1(mlp, f.Call1(norm2, x))))))
	}
	return m
}

// timmBeitAttention is Attention: queries and values have biases, keys a buffer
// of zeros, and every pair of patches a bias by where they lie to each other.
func timmBeitAttention(b Build, s vitShape) *graph.Module {
	m := graph.NewModule("Attention")
	side := s.image / s.patch
	tokens := side*side + 1
	qBias, vBias := m.Param("q_bias", b.DType, s.width), m.Param("v_bias", b.DType, s.width)
	table := m.Param("relative_position_bias_table", b.DType, (2*side-1)*(2*side-1)+3, s.heads)
	kBias := m.Buffer("k_bias", b.DType, s.width)
	index := m.Buffer("relative_position_index", graph.I64, tokens, tokens)
	weight := m.Child("qkv", graph.NewModule("Linear")).Param("weight", b.DType, 3*s.width, s.width)
	proj := m.Child("proj", linear(b.DType, s.width, s.width, true))
	biases := func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor { // _get_rel_pos_bias
		rows := f.View(f.IndexRows(table.T(), f.View(index.T(), -1)), tokens, tokens, -1)
		bias := f.Let("relative_position_bias", rows)
		bias = f.Let("relative_position_bias", f.Contiguous(f.Permute(bias, 2, 0, 1)))
		return one(f.Unsqueeze(bias, 0))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		n := in[0].Shape.D[0]
		bias := f.Let("qkv_bias", f.Cat(0, qBias.T(), kBias.T(), vBias.T()))
		qkv := f.Let("qkv", f.Linear(in[0], weight.T(), bias))
		qkv = f.Let("qkv", f.Permute(f.Reshape(qkv, n, tokens, 3, s.heads, -1), 2, 0, 3, 1, 4))
		parts := f.Unbind(qkv)
		q, k, v := f.Let("q", parts[0]), f.Let("k", parts[1]), f.Let("v", parts[2])
		var x *graph.Tensor
		if b.Attention.Kernel == "eager" {
			q = f.Let("q", f.MulScalar(q))
			attn := f.Let("attn", f.Matmul(q, f.Transpose(k, -2, -1)))
			attn = f.Let("attn", f.Add(attn, f.Func(biases)[0]))
			attn = f.Let("attn", f.Softmax(attn, attn.DType))
			x = f.Let("x", f.Matmul(attn, v))
		} else {
			mask := f.Let("rel_pos_bias", f.Func(biases)[0])
			x = f.Let("x", f.ScaledDotProductAttention(q, k, v, mask, graph.Attention{Backend: b.Attention.Backend}))
		}
		x = f.Let("x", f.Reshape(f.Transpose(x, 1, 2), n, tokens, s.width))
		return one(f.Let("x", f.Call1(proj, x)))
	}
	return m
}
