package model

import "memplan/internal/estimator/graph"

// timmViTFamily is the Vision Transformer as timm builds it. Written from timm
// 1.0.31, models/vision_transformer.py.
var timmViTFamily = Family{
	Name:          "vision_transformer",
	Library:       Timm,
	Architectures: sortedKeys(timmViTs),
	Source:        "huggingface/pytorch-image-models:timm/models/vision_transformer.py@v1.0.31",
	New:           newTimmViT,
}

// vitShape is the size of an encoder and of the images it was made for.
type vitShape struct {
	patch, width, depth, heads, image int64
	inner                             int64 // of the MLPs, 0 is four times the width
	headless                          bool
}

// published is how many classes the weights that timm takes by default have: those
// of the largest plain ViT have no head.
func (s vitShape) published() int64 {
	if s.headless {
		return 0
	}
	return 1000
}

// hidden is the width inside the MLPs.
func (s vitShape) hidden() int64 {
	if s.inner == 0 {
		return 4 * s.width
	}
	return s.inner
}

var timmViTs = map[string]vitShape{
	"vit_tiny_patch16_224": {patch: 16, width: 192, depth: 12, heads: 3, image: 224}, "vit_tiny_patch16_384": {patch: 16, width: 192, depth: 12, heads: 3, image: 384},
	"vit_small_patch32_224": {patch: 32, width: 384, depth: 12, heads: 6, image: 224}, "vit_small_patch16_224": {patch: 16, width: 384, depth: 12, heads: 6, image: 224}, "vit_small_patch16_384": {patch: 16, width: 384, depth: 12, heads: 6, image: 384},
	"vit_base_patch32_224": {patch: 32, width: 768, depth: 12, heads: 12, image: 224}, "vit_base_patch16_224": {patch: 16, width: 768, depth: 12, heads: 12, image: 224}, "vit_base_patch16_384": {patch: 16, width: 768, depth: 12, heads: 12, image: 384},
	"vit_base_patch8_224": {patch: 8, width: 768, depth: 12, heads: 12, image: 224}, "vit_large_patch16_224": {patch: 16, width: 1024, depth: 24, heads: 16, image: 224},
	"vit_large_patch16_384": {patch: 16, width: 1024, depth: 24, heads: 16, image: 384}, "vit_large_patch14_224": {patch: 14, width: 1024, depth: 24, heads: 16, image: 224},
	"vit_huge_patch14_224":  {patch: 14, width: 1280, depth: 32, heads: 16, image: 224, headless: true},
	"vit_giant_patch14_224": {patch: 14, width: 1408, depth: 40, heads: 16, image: 224, inner: 6144},
	"deit_tiny_patch16_224": {patch: 16, width: 192, depth: 12, heads: 3, image: 224}, "deit_small_patch16_224": {patch: 16, width: 384, depth: 12, heads: 6, image: 224}, "deit_base_patch16_224": {patch: 16, width: 768, depth: 12, heads: 12, image: 224},
	"deit_base_patch16_384": {patch: 16, width: 768, depth: 12, heads: 12, image: 384},
}

func newTimmViT(c Config, b Build) (*Network, error) {
	s := timmViTs[c.Text("", "architecture")]
	n := b.Classes
	if n == 0 {
		n = c.Count(s.published(), "num_classes")
	}
	c.TakesImages(b, s.image)
	if err := c.Err(); err != nil {
		return nil, err
	}
	d := b.DType
	m := graph.NewModule("VisionTransformer")
	patch := m.Child("patch_embed", timmPatchEmbed(d, s))
	token := m.Param("cls_token", d, 1, 1, s.width)
	positions := m.Param("pos_embed", d, 1, (s.image/s.patch)*(s.image/s.patch)+1, s.width)
	var blocks []*graph.Module
	for range s.depth {
		blocks = append(blocks, timmViTBlock(b, s))
	}
	encoder := m.Child("blocks", sequential(blocks...))
	norm := m.Child("norm", layerNorm(d, s.width))
	head := identity()
	if n > 0 {
		head = linear(d, s.width, n, true)
	}
	m.Child("head", head)
	embed := graph.NewModule("")
	embed.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // _pos_embed
		cls := f.Let("to_cat", f.Expand(token.T(), in[0].Shape.D[0], -1, -1))
		x := f.Let("x", f.Cat(1, cls, in[0]))
		return one(f.Let("x", f.Add(x, positions.T())))
	}
	pool := graph.NewModule("")
	pool.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // the class token
		return one(f.Select(f.SliceWhole(in[0], 1), 1))
	}
	m.Forward = featuresThenHead([]*graph.Module{patch, embed, encoder, norm}, pool, head)
	net := classifier(m)
	net.Blocks = blocks
	return net, nil
}

// timmPatchEmbed is PatchEmbed: a convolution as wide as its stride, then
// patches as tokens.
func timmPatchEmbed(d graph.DType, s vitShape) *graph.Module {
	m := graph.NewModule("PatchEmbed")
	proj := m.Child("proj", conv2d(d, 3, s.width, convShape{kernel: s.patch, stride: s.patch, bias: true}))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(proj, in[0]))
		x = f.Let("x", f.Transpose(f.Reshape(x, x.Shape.D[0], s.width, -1), 1, 2))
		return one(x)
	}
	return m
}

// timmViTBlock is Block.
func timmViTBlock(b Build, s vitShape) *graph.Module {
	m := graph.NewModule("Block")
	norm1 := m.Child("norm1", layerNorm(b.DType, s.width))
	attn := m.Child("attn", timmAttention(b, s.width, s.heads))
	norm2 := m.Child("norm2", layerNorm(b.DType, s.width))
	mlp := m.Child("mlp", timmMLP(b.DType, s.width, s.hidden()))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Add(in[0], f.Call1(attn, f.Call1(norm1, in[0]))))
		return one(f.Let("x", f.Add(x, f.Call1(mlp, f.Call1(norm2, x)))))
	}
	return m
}
