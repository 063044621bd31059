package model

import "memplan/internal/estimator/graph"

// torchvisionViTFamily is the Vision Transformer as torchvision builds it.
// Written from torchvision 0.29, models/vision_transformer.py, and
// torch/nn/functional.py:multi_head_attention_forward.
var torchvisionViTFamily = Family{
	Name:          "vit_torchvision",
	Library:       Torchvision,
	Architectures: sortedKeys(torchvisionViTs),
	Source:        "pytorch/vision:torchvision/models/vision_transformer.py@v0.29.2",
	New:           newTorchvisionViT,
}

var torchvisionViTs = map[string]vitShape{
	"vit_b_16": {patch: 16, width: 768, depth: 12, heads: 12, image: 224}, "vit_b_32": {patch: 32, width: 768, depth: 12, heads: 12, image: 224},
	"vit_l_16": {patch: 16, width: 1024, depth: 24, heads: 16, image: 224}, "vit_l_32": {patch: 32, width: 1024, depth: 24, heads: 16, image: 224},
	"vit_h_14": {patch: 14, width: 1280, depth: 32, heads: 16, image: 224},
}

func newTorchvisionViT(c Config, b Build) (*Network, error) {
	s := torchvisionViTs[c.Text("", "architecture")]
	n := classes(&c, b)
	c.TakesImages(b, s.image)
	if err := c.Err(); err != nil {
		return nil, err
	}
	d := b.DType
	m := graph.NewModule("VisionTransformer")
	token := m.Param("class_token", d, 1, 1, s.width)
	proj := m.Child("conv_proj", conv2d(d, 3, s.width, convShape{kernel: s.patch, stride: s.patch, bias: true}))
	encoder := m.Child("encoder", graph.NewModule("Encoder"))
	side := s.image / s.patch
	positions := encoder.Param("pos_embedding", d, 1, side*side+1, s.width)
	list := encoder.Child("layers", graph.NewModule("Sequential"))
	for i := range s.depth {
		list.Child("encoder_layer_"+numbered(int(i)), torchvisionEncoderBlock(b, s))
	}
	chain(list)
	norm := encoder.Child("ln", layerNorm(d, s.width))
	encoder.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("input", f.Add(in[0], positions.T()))
		return one(f.Call1(norm, f.Call1(list, x)))
	}
	heads := m.Child("heads", graph.NewModule("Sequential"))
	heads.Child("head", linear(d, s.width, n, true))
	chain(heads)
	process := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // _process_input
		x := f.Let("x", f.Call1(proj, in[0]))
		x = f.Let("x", f.Reshape(x, x.Shape.D[0], s.width, -1))
		return one(f.Let("x", f.Permute(x, 0, 2, 1)))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Func(process, in[0])[0])
		cls := f.Let("batch_class_token", f.Expand(token.T(), x.Shape.D[0], -1, -1))
		x = f.Let("x", f.Cat(1, cls, x))
		x = f.Let("x", f.Call1(encoder, x))
		x = f.Let("x", f.Select(f.SliceWhole(x, 1), 1))
		return one(f.Let("x", f.Call1(heads, x)))
	}
	return classifier(m), nil
}

// torchvisionEncoderBlock is EncoderBlock.
func torchvisionEncoderBlock(b Build, s vitShape) *graph.Module {
	m := graph.NewModule("EncoderBlock")
	norm1 := m.Child("ln_1", layerNorm(b.DType, s.width))
	attn := m.Child("self_attention", packedAttention(b, s.width, s.heads))
	norm2 := m.Child("ln_2", layerNorm(b.DType, s.width))
	mlp := m.Child("mlp", sequential(linear(b.DType, s.width, 4*s.width, true), gelu(), dropout(0), linear(b.DType, 4*s.width, s.width, true), dropout(0)))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(norm1, in[0]))
		x = f.Let("x", f.Call1(attn, x))
		x = f.Let("x", f.Add(x, in[0]))
		y := f.Let("y", f.Call1(norm2, x))
		y = f.Let("y", f.Call1(mlp, y))
		return one(f.Add(x, y))
	}
	return m
}

// packedAttention is nn.MultiheadAttention with the batch first that nobody asks
// for its weights: queries, keys and values of one tensor.
func packedAttention(b Build, width, heads int64) *graph.Module {
	m := graph.NewModule("MultiheadAttention")
	weight, bias := m.Param("in_proj_weight", b.DType, 3*width, width), m.Param("in_proj_bias", b.DType, 3*width)
	out := m.Child("out_proj", linear(b.DType, width, width, true))
	project := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // _in_projection_packed
		tokens, samples := in[0].Shape.D[0], in[0].Shape.D[1]
		x := f.Let("proj", f.Linear(in[0], weight.T(), bias.T()))
		x = f.Transpose(f.Unsqueeze(f.View(x, tokens, samples, 3, width), 0), 0, -2)
		x = f.Let("proj", f.Contiguous(f.Squeeze(x, -2)))
		return []*graph.Tensor{f.Select(x, 0), f.Select(x, 0), f.Select(x, 0)}
	}
	forward := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // multi_head_attention_forward
		tokens, samples := in[0].Shape.D[0], in[0].Shape.D[1]
		parts := f.Func(project, in[0])
		for i, name := range []string{"q", "k", "v"} {
			parts[i] = f.Let(name, parts[i])
		}
		for i, name := range []string{"q", "k", "v"} {
			parts[i] = f.Let(name, f.Transpose(f.View(parts[i], tokens, samples*heads, width/heads), 0, 1))
		}
		for i, name := range []string{"q", "k", "v"} {
			parts[i] = f.Let(name, f.View(parts[i], samples, heads, tokens, width/heads))
		}
		x := f.Let("attn_output", f.ScaledDotProductAttention(parts[0], parts[1], parts[2], nil, graph.Attention{Backend: b.Attention.Backend}))
		f.Del("q", "k", "v")
		x = f.Let("attn_output", f.Reshape(f.Permute(x, 2, 0, 1, 3), samples*tokens, width))
		x = f.Let("attn_output", f.Linear(x, out.Params[0].T(), out.Params[1].T()))
		return one(f.Let("attn_output", f.View(x, tokens, samples, width)))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		query := f.Let("query", f.Transpose(in[0], 1, 0))
		x := f.Let("attn_output", f.Func(forward, query)[0])
		return one(f.Transpose(x, 1, 0))
	}
	return m
}
