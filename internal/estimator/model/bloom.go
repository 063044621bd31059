package model

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// bloomFamily is BLOOM and BLOOMZ: biases by distance instead of positions, one
// product for queries, keys and values, a GELU of its own, eager attention.
// Written from transformers 5.24 and 4.49, models/bloom/modeling_bloom.py.
var bloomFamily = Family{
	Name:           "bloom",
	ModelTypes:     []string{"bloom"},
	Source:         "huggingface/transformers:src/transformers/models/bloom/modeling_bloom.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"query_key_value"},
	New:            newBloom,
}

// bloomConfig is what the program needs of a config.json.
type bloomConfig struct {
	hidden, layers, heads, vocab int64
	tied, normedResidual         bool
	drop, attentionDrop          float64
}

func readBloom(c *Config) bloomConfig {
	g := bloomConfig{
		hidden: c.Int("hidden_size", "n_embed"), layers: c.Int("n_layer", "num_hidden_layers"), heads: c.Int("n_head", "num_attention_heads"),
		vocab: c.Int("vocab_size"), tied: c.Bool(true, "tie_word_embeddings"), normedResidual: c.Bool(false, "apply_residual_connection_post_layernorm"),
		drop: c.Float(0, "hidden_dropout"), attentionDrop: c.Float(0, "attention_dropout"),
	}
	c.Refuses("slow_but_exact")
	c.Divides("n_head", "hidden_size", g.heads, g.hidden)
	return g
}

func newBloom(c Config, b Build) (*Network, error) {
	g := readBloom(&c)
	if err := c.Err(); err != nil {
		return nil, err
	}
	b.Attention.Kernel = "eager" // there is no other
	m := newBloomModel(g, b)
	lm := newCausalLM("BloomForCausalLM", "transformer", m.Module, m.embeddings, &m.ctx.decoderContext, b, g.hidden, g.vocab, g.tied)
	lm.takesOwnLoss()
	lm.Named("")
	return &Network{Root: lm.Module, Embeddings: m.embeddings, Head: lm.head, Blocks: m.blocks, Items: lm.items(), Forward: lm.run}, nil
}

// bloomContext is what every block of one forward pass shares.
type bloomContext struct {
	decoderContext
	alibi *graph.Tensor
}

// beside is what a block is called with beside the hidden states.
func (c *bloomContext) beside(v spec.Versions) func() (args, bound []*graph.Tensor) {
	return func() (args, bound []*graph.Tensor) {
		args = []*graph.Tensor{c.alibi, c.mask, c.cachePosition}
		if v.Transformers.AtLeast(keywordsSince) {
			return nil, args
		}
		return args, nil
	}
}

var bloomGELURule = &graph.Rule{Name: "GeLUFunction", Source: "transformers/models/bloom/modeling_bloom.py:GeLUFunction"}

// bloomGELU is GeLUFunction: the tanh approximation, which keeps its input and
// computes again in backward.
func bloomGELU(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
	inner := func(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
		scaled := f.MulScalar(x)
		return f.Tanh(f.Mul(scaled, f.AddScalar(f.Mul(f.MulScalar(x), x))))
	}
	forward := func(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
		half := f.MulScalar(x)
		return f.Mul(half, f.AddScalar(inner(f, x)))
	}
	backward := func(f *graph.Frame, x, grad *graph.Tensor) *graph.Tensor {
		tanh := f.Let("tanh_out", inner(f, x))
		half := f.MulScalar(x)
		slope := f.AddScalar(f.Mul(tanh, tanh))
		slope = f.Mul(slope, f.AddScalar(f.Mul(f.MulScalar(x), x)))
		left := f.Mul(half, slope)
		factor := f.Let("ff", f.Add(left, f.MulScalar(f.AddScalar(tanh))))
		return f.Mul(factor, grad)
	}
	return f.Function(bloomGELURule, x, forward, backward)
}

// dropoutAdd is dropout_add.
func dropoutAdd(f *graph.Frame, x, residual *graph.Tensor, p float64) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		out := f.Let("out", f.Dropout(in[0], p))
		return one(f.Let("out", f.Add(in[1], out)))
	}, x, residual)[0]
}

// bloomAttention takes the normed hidden states and the residual and returns
// their sum and the weights.
func bloomAttention(g bloomConfig, b Build, ctx *bloomContext) *graph.Module {
	m := graph.NewModule("BloomAttention")
	width := g.hidden / g.heads
	qkv := m.Child("query_key_value", linear(b.DType, g.hidden, 3*g.hidden, true))
	dense := m.Child("dense", linear(b.DType, g.hidden, g.hidden, true))
	drop := m.Child("attention_dropout", dropout(g.attentionDrop))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		fused := f.Let("fused_qkv", f.Call1(qkv, in[0]))
		states := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			fused := f.Let("fused_qkv", f.View(in[0], batch, tokens, g.heads, 3, width))
			layer := func(name string) *graph.Tensor {
				return f.Let(name, f.Transpose(f.SliceWhole(f.Select(fused, 3), 1), 1, 2))
			}
			return []*graph.Tensor{layer("query_layer"), layer("key_layer"), layer("value_layer")}
		}, fused)
		query, key, value := f.Let("query_layer", states[0]), f.Let("key_layer", states[1]), f.Let("value_layer", states[2])
		key, value = ctx.updateCache(f, "key_layer", "value_layer", key, value)

		query = f.Let("query_layer", f.Reshape(query, batch*g.heads, -1, width))
		key = f.Let("key_layer", f.Transpose(f.Reshape(key, batch*g.heads, -1, width), -1, -2))
		value = f.Let("value_layer", f.Reshape(value, batch*g.heads, -1, width))
		scores := f.Let("attention_scores", f.Baddbmm(ctx.alibi, query, key))
		weights := f.Let("attn_weights", f.View(scores, batch, g.heads, tokens, -1))
		if ctx.mask != nil {
			weights = f.Let("attn_weights", f.Add(weights, ctx.mask))
		}
		probs := f.Let("attention_probs", f.To(f.Softmax(weights, graph.F32), query.DType))
		probs = f.Let("attention_probs", f.Call1(drop, probs))
		flat := f.Let("attention_probs_reshaped", f.View(probs, batch*g.heads, tokens, -1))
		context := f.Let("context_layer", f.Matmul(flat, value))
		context = f.Let("context_layer", f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			x := f.Let("x", f.View(in[0], batch, g.heads, tokens, width))
			x = f.Let("x", f.Transpose(x, 1, 2))
			return one(f.Reshape(x, batch, tokens, g.hidden))
		}, context)[0])
		output := f.Let("output_tensor", f.Call1(dense, context))
		output = f.Let("output_tensor", dropoutAdd(f, output, in[1], g.drop))
		if b.Versions.Transformers.Before(keywordsSince) {
			probs = nil // returned only when asked for
		}
		return []*graph.Tensor{output, probs}
	}
	return m
}

// bloomMLP takes the normed hidden states and the residual and returns their
// sum.
func bloomMLP(g bloomConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("BloomMLP")
	up := m.Child("dense_h_to_4h", linear(d, g.hidden, 4*g.hidden, true))
	down := m.Child("dense_4h_to_h", linear(d, 4*g.hidden, g.hidden, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", bloomGELU(f, f.Call1(up, in[0])))
		output := f.Let("intermediate_output", f.Call1(down, hidden))
		return one(f.Let("output", dropoutAdd(f, output, in[1], g.drop)))
	}
	return m
}

// bloomBlock is one block. Its second result is the attention's weights.
func bloomBlock(g bloomConfig, b Build, ctx *bloomContext) *graph.Module {
	m := graph.NewModule("BloomBlock")
	inputNorm := m.Child("input_layernorm", layerNorm(b.DType, g.hidden))
	attention := m.Child("self_attention", bloomAttention(g, b, ctx))
	postNorm := m.Child("post_attention_layernorm", layerNorm(b.DType, g.hidden))
	mlp := m.Child("mlp", bloomMLP(g, b.DType))
	m.Beside = ctx.beside(b.Versions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		normed := f.Let("layernorm_output", f.Call1(inputNorm, in[0]))
		residual := f.Let("residual", in[0])
		if g.normedResidual {
			residual = f.Let("residual", normed)
		}
		attended := f.Call(attention, normed, residual)
		output := f.Let("attention_output", attended[0])
		weights := f.Let("attn_weights", attended[1])
		normed = f.Let("layernorm_output", f.Call1(postNorm, output))
		residual = f.Let("residual", output)
		if g.normedResidual {
			residual = f.Let("residual", normed)
		}
		return []*graph.Tensor{f.Let("output", f.Call1(mlp, normed, residual)), weights}
	}
	return m
}

type bloomModel struct {
	*graph.Module
	embeddings, embeddingNorm, lnF *graph.Module
	blocks                         []*graph.Module
	ctx                            *bloomContext
}

func newBloomModel(g bloomConfig, b Build) *bloomModel {
	m := &bloomModel{Module: graph.NewModule("BloomModel"), ctx: &bloomContext{}}
	m.embeddings = m.Child("word_embeddings", embedding(b.DType, g.vocab, g.hidden))
	m.embeddingNorm = m.Child("word_embeddings_layernorm", layerNorm(b.DType, g.hidden))
	list := decoder{Module: m.Module}
	list.stack("h", g.layers, func(int64) *graph.Module { return bloomBlock(g, b, m.ctx) })
	m.blocks = list.layers
	m.lnF = m.Child("ln_f", layerNorm(b.DType, g.hidden))
	m.Forward = m.forward(g, b)
	return m
}

// forward takes input ids and an attention mask and returns the last hidden
// states.
func (m *bloomModel) forward(g bloomConfig, b Build) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	before := b.Versions.Transformers.Before(maskingUtilsSince)
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		embeds := f.Let("inputs_embeds", f.Call1(m.embeddings, in[0]))
		inputs := maskInputs{embeds: embeds, attention: in[1], padded: m.ctx.batch.Padded, cached: true}
		if before {
			inputs.positions = f.Let("cache_position", f.Arange(embeds.Shape.D[1]))
			m.ctx.cachePosition = inputs.positions
		}
		hidden := f.Let("hidden_states", f.Call1(m.embeddingNorm, embeds))
		if before && inputs.attention == nil {
			inputs.attention = f.Let("attention_mask", f.Empty(graph.F32, embeds.Shape.D[0], embeds.Shape.D[1]))
		}
		m.ctx.alibi = bloomAlibi(f, g, b, hidden, inputs.attention)
		m.ctx.mask = f.Let("causal_mask", causalMask(f, b, inputs))
		for block := range f.Layers(m.blocks) {
			outputs := f.Call(block, hidden)
			f.Let("outputs[1]", outputs[1])
			f.Let("outputs[0]", outputs[0])
			hidden = f.Let("hidden_states", outputs[0])
		}
		return one(f.Let("hidden_states", f.Call1(m.lnF, hidden)))
	}
}

// bloomAlibi is the bias of every key: without a mask it is made once and
// repeated over the batch.
func bloomAlibi(f *graph.Frame, g bloomConfig, b Build, hidden, present *graph.Tensor) *graph.Tensor {
	batch, tokens := hidden.Shape.D[0], hidden.Shape.D[1]
	if present != nil {
		slopes := calledSlopes
		if b.Versions.Transformers.Before(maskingUtilsSince) {
			slopes = alibiSlopes
		}
		return f.Let("alibi", buildAlibi(f, present, g.heads, hidden.DType, slopes, false))
	}
	slopes := f.Let("slopes", calledSlopes(f, g.heads))
	alibi := f.Let("alibi", f.Mul(f.View(slopes, -1, 1, 1), f.Arange(tokens)))
	return f.Let("alibi", f.To(f.Empty(alibi.DType, batch*g.heads, 1, tokens), hidden.DType))
}
