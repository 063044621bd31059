package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// vitFamily is the Vision Transformer and DeiT, dinov2Family is DINOv2, with a
// classifier. Written from transformers 5.24, models/vit/modeling_vit.py and
// models/dinov2/modeling_dinov2.py.
var (
	vitFamily = Family{
		Name:           "vit",
		ModelTypes:     []string{"vit"},
		Source:         "huggingface/transformers:src/transformers/models/vit/modeling_vit.py@v5.24.0",
		AdapterTargets: []string{"q_proj", "v_proj"},
		New:            newViT,
	}
	dinov2Family = Family{
		Name:           "dinov2",
		ModelTypes:     []string{"dinov2"},
		Source:         "huggingface/transformers:src/transformers/models/dinov2/modeling_dinov2.py@v5.24.0",
		AdapterTargets: []string{"q_proj", "v_proj"},
		New:            newDINOv2,
	}
)

// vitConfig is what the programs need of a config.json.
type vitConfig struct {
	hidden, inner, layers, heads, patch, image, labels int64
	hiddenDrop, attentionDrop                          float64
	act                                                string
	bias                                               bool
	// dino says that the layers scale what they add, and the head sees the
	// patches' mean beside the class token.
	dino bool
}

func readViT(c *Config, b Build) vitConfig {
	v := vitConfig{
		hidden: c.IntOr(768, "hidden_size"), layers: c.IntOr(12, "num_hidden_layers"), heads: c.IntOr(12, "num_attention_heads"),
		image: c.IntOr(224, "image_size"), labels: c.Classes(b),
		hiddenDrop: c.Float(0, "hidden_dropout_prob"), attentionDrop: c.Float(0, "attention_probs_dropout_prob"),
		act: c.Activation("gelu", "hidden_act"), bias: c.Bool(true, "qkv_bias"),
	}
	c.Divides("num_attention_heads", "hidden_size", v.heads, v.hidden)
	if v.hiddenDrop > 0 || v.attentionDrop > 0 {
		c.fields.Add("model.config.hidden_dropout_prob", v.hiddenDrop, "0 (dropout is not modelled here)", "0")
	}
	if b.Versions.Transformers.Before(spec.Version{5}) {
		c.fields.Add("runtime.library_versions.transformers", b.Versions.Transformers.String(), "5 or newer: this family's modules were others before", "5.24.0")
	}
	return v
}

func newViT(c Config, b Build) (*Network, error) {
	v := readViT(&c, b)
	v.inner, v.patch = c.IntOr(3072, "intermediate_size"), c.IntOr(16, "patch_size")
	c.TakesImages(b, v.image)
	c.Head(b, "ViT", imageClassification)
	if err := c.Err(); err != nil {
		return nil, err
	}
	return imageEncoder("vit", v, b), nil
}

func newDINOv2(c Config, b Build) (*Network, error) {
	v := readViT(&c, b)
	v.inner, v.patch, v.dino = v.hidden*c.IntOr(4, "mlp_ratio"), c.IntOr(14, "patch_size"), true
	c.Head(b, "Dinov2", imageClassification)
	c.Refuses("use_swiglu_ffn")
	if c.Float(0, "drop_path_rate") > 0 {
		c.fields.Add("model.config.drop_path_rate", c.values["drop_path_rate"], "0 (others are not modelled)", "0")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	return imageEncoder("dinov2", v, b), nil
}

// imageEncoder is ViTForImageClassification or Dinov2ForImageClassification.
func imageEncoder(name string, v vitConfig, b Build) *Network {
	root := graph.NewModule("ForImageClassification")
	base := root.Child(name, graph.NewModule("Model"))
	embeddings := base.Child("embeddings", vitEmbeddings(v, b.DType))
	list := graph.NewModule("ModuleList")
	if v.dino {
		base.Child("encoder", graph.NewModule("Dinov2Encoder")).Child("layer", list)
	} else {
		base.Child("layers", list)
	}
	var layers []*graph.Module
	for i := range v.layers {
		layers = append(layers, list.Child(strconv.FormatInt(i, 10), vitLayer(v, b)))
	}
	norm := base.Child("layernorm", layerNorm(b.DType, v.hidden))
	base.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("embedding_output", f.Call1(embeddings, in[0]))
		hidden = f.Let("hidden_states", hidden)
		for layer := range f.Layers(layers) {
			hidden = f.Let("hidden_states", f.Call1(layer, hidden))
		}
		return one(f.Let("sequence_output", f.Call1(norm, hidden)))
	}
	width := v.hidden
	if v.dino {
		width *= 2
	}
	head := root.Child("classifier", linear(b.DType, width, v.labels, true))
	net := imageClassifier(root, b, func(f *graph.Frame, pixels *graph.Tensor) *graph.Tensor {
		hidden := f.Let("sequence_output", f.Call1(base, pixels))
		return f.Call1(head, vitPooled(f, v, hidden))
	})
	net.Blocks, net.Embeddings = layers, embeddings.Children[0]
	return net
}

// vitPooled is what the classifier sees.
func vitPooled(f *graph.Frame, v vitConfig, hidden *graph.Tensor) *graph.Tensor {
	token := f.Select(f.SliceWhole(hidden, 1), 1)
	if !v.dino {
		return f.Let("pooled_output", f.SliceWhole(token, 1))
	}
	f.Let("cls_token", token)
	patches := f.Let("patch_tokens", f.Slice(f.SliceWhole(hidden, 1), 1, 1, hidden.Shape.D[1]))
	return f.Let("linear_input", f.Cat(1, token, f.Mean(patches, false, 1)))
}

// vitEmbeddings is ViTEmbeddings: patches, the class token before them, and
// positions.
func vitEmbeddings(v vitConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("Embeddings")
	token := m.Param("cls_token", d, 1, 1, v.hidden)
	if v.dino {
		m.Param("mask_token", d, 1, v.hidden)
	}
	side := v.image / v.patch
	positions := m.Param("position_embeddings", d, 1, side*side+1, v.hidden)
	patches := m.Child("patch_embeddings", graph.NewModule("PatchEmbeddings"))
	projection := patches.Child("projection", conv2d(d, 3, v.hidden, convShape{kernel: v.patch, stride: v.patch, bias: true}))
	patches.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Call1(projection, in[0])
		return one(f.Transpose(f.Reshape(x, x.Shape.D[0], v.hidden, -1), 1, 2))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("embeddings", f.Call1(patches, in[0]))
		cls := f.Let("cls_tokens", f.Expand(token.T(), x.Shape.D[0], -1, -1))
		x = f.Let("embeddings", f.Cat(1, cls, x))
		at := positions.T()
		if h, w := in[0].Shape.D[2]/v.patch, in[0].Shape.D[3]/v.patch; v.dino && (h != side || w != side) {
			at = interpolatePositions(f, at, side, h, w)
		}
		return one(f.Let("embeddings", f.Add(x, at)))
	}
	return m
}

// interpolatePositions is interpolate_pos_encoding: the patches' positions as
// an image of another size.
func interpolatePositions(f *graph.Frame, positions *graph.Tensor, side, h, w int64) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		width, d := in[0].Shape.D[2], in[0].DType
		class := f.Let("class_pos_embed", f.Slice(f.SliceWhole(in[0], 1), 1, 0, 1))
		x := f.Let("patch_pos_embed", f.Slice(f.SliceWhole(in[0], 1), 1, 1, side*side+1))
		x = f.Let("patch_pos_embed", f.Reshape(x, 1, side, side, width))
		x = f.Let("patch_pos_embed", f.Permute(x, 0, 3, 1, 2))
		x = f.Let("patch_pos_embed", f.To(f.Bicubic(f.To(x, graph.F32), h, w), d))
		x = f.Let("patch_pos_embed", f.View(f.Permute(x, 0, 2, 3, 1), 1, -1, width))
		return one(f.Cat(1, class, x))
	}, positions)[0]
}

// vitLayer is ViTLayer or Dinov2Layer.
func vitLayer(v vitConfig, b Build) *graph.Module {
	m := graph.NewModule("Layer")
	names := [2]string{"layernorm_before", "layernorm_after"}
	if v.dino {
		names = [2]string{"norm1", "norm2"}
	}
	norm1, norm2 := layerNorm(b.DType, v.hidden), layerNorm(b.DType, v.hidden)
	scale1, scale2 := layerScale(b.DType, v.hidden), layerScale(b.DType, v.hidden)
	var attention, mlp *graph.Module
	if v.dino {
		m.Child(names[0], norm1)
		attention = m.Child("attention", vitAttention(v, b))
		m.Child("layer_scale1", scale1)
		m.Child(names[1], norm2)
		mlp = m.Child("mlp", vitMLP(v, b.DType))
		m.Child("layer_scale2", scale2)
	} else {
		attention = m.Child("attention", vitAttention(v, b))
		m.Child(names[0], norm1)
		m.Child(names[1], norm2)
		mlp = m.Child("mlp", vitMLP(v, b.DType))
	}
	add := func(f *graph.Frame, hidden *graph.Tensor, norm, part, scale *graph.Module) *graph.Tensor {
		residual := f.Let("residual", hidden)
		x := f.Let("hidden_states", f.Call1(norm, hidden))
		x = f.Let("hidden_states", f.Call1(part, x))
		if v.dino {
			x = f.Let("hidden_states", f.Call1(scale, x))
		}
		return f.Let("hidden_states", f.Add(x, residual))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := add(f, in[0], norm1, attention, scale1)
		return one(add(f, x, norm2, mlp, scale2))
	}
	return m
}

// layerScale is Dinov2LayerScale.
func layerScale(d graph.DType, width int64) *graph.Module {
	m := graph.NewModule("LayerScale")
	scale := m.Param("lambda1", d, width)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { return one(f.Mul(in[0], scale.T())) }
	return m
}

// vitMLP is ViTMLP or Dinov2MLP.
func vitMLP(v vitConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("MLP")
	act := m.Child("activation_fn", activation(v.act))
	fc1, fc2 := m.Child("fc1", linear(d, v.hidden, v.inner, true)), m.Child("fc2", linear(d, v.inner, v.hidden, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("hidden_states", f.Call1(fc1, in[0]))
		x = f.Let("hidden_states", f.Call1(act, x))
		return one(f.Let("hidden_states", f.Call1(fc2, x)))
	}
	return m
}

// vitAttention is ViTAttention or Dinov2Attention.
func vitAttention(v vitConfig, b Build) *graph.Module {
	m := graph.NewModule("Attention")
	projection := func(name string, bias bool) *graph.Module {
		return m.Child(name, linear(b.DType, v.hidden, v.hidden, bias))
	}
	q, k, val, o := projection("q_proj", v.bias), projection("k_proj", v.bias), projection("v_proj", v.bias), projection("o_proj", true)
	s := attentionShape{groups: 1, dropout: v.attentionDrop, bidirectional: true, eager: vitEager(v)}
	attend := attentionInterface(b, s)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		s := in[0].Shape.D
		split := func(name string, m *graph.Module) *graph.Tensor {
			return f.Let(name, f.Transpose(f.View(f.Call1(m, in[0]), s[0], s[1], v.heads, -1), 1, 2))
		}
		query, key, value := split("query_states", q), split("key_states", k), split("value_states", val)
		out := attend(f, query, key, value, nil)
		f.Let("attn_weights", out[1])
		attn := f.Let("attn_output", out[0])
		attn = f.Let("attn_output", f.Contiguous(f.Reshape(attn, s[0], s[1], v.hidden)))
		return one(f.Let("attn_output", f.Call1(o, attn)))
	}
	return m
}

// vitEager is eager_attention_forward: ViT takes the softmax in fp32 and goes
// back to the queries' type.
func vitEager(v vitConfig) attentionFunc {
	return func(f *graph.Frame, query, key, value, _ *graph.Tensor) []*graph.Tensor {
		w := f.Let("attn_weights", f.MulScalar(f.Matmul(query, f.Transpose(key, 2, 3))))
		if v.dino {
			w = f.Let("attn_weights", f.Softmax(w, w.DType))
		} else {
			w = f.Let("attn_weights", f.To(f.Softmax(w, graph.F32), query.DType))
		}
		out := f.Let("attn_output", f.Matmul(w, value))
		return []*graph.Tensor{f.Let("attn_output", f.Contiguous(f.Transpose(out, 1, 2))), w}
	}
}
