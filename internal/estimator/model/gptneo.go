package model

import "memplan/internal/estimator/graph"

// gptNeoFamily is GPT-Neo: GPT-2 with scores in fp32 and a mask of its own in
// every layer, which for local layers is a window. Written from transformers
// 5.24 and 4.49, models/gpt_neo/modeling_gpt_neo.py.
var gptNeoFamily = Family{
	Name:           "gpt_neo",
	ModelTypes:     []string{"gpt_neo"},
	Source:         "huggingface/transformers:src/transformers/models/gpt_neo/modeling_gpt_neo.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newGPTNeo,
}

// gptNeoConfig is what the program needs of a config.json. Which layers are
// local does not change a byte.
type gptNeoConfig struct {
	hidden, inner, layers, heads, positions, vocab int64
	tied                                           bool
	act                                            string
	residual, embedded, attention                  float64 // dropout
}

func readGPTNeo(c *Config) gptNeoConfig {
	g := gptNeoConfig{
		hidden: c.Int("hidden_size"), layers: c.Int("num_layers", "num_hidden_layers"), heads: c.Int("num_heads", "num_attention_heads"),
		positions: c.IntOr(2048, "max_position_embeddings"), vocab: c.Int("vocab_size"),
		tied: c.Bool(true, "tie_word_embeddings"), act: c.Activation("gelu_new", "activation_function"),
		residual: c.Float(0, "resid_dropout"), embedded: c.Float(0, "embed_dropout"), attention: c.Float(0, "attention_dropout"),
	}
	g.inner = c.IntOr(4*g.hidden, "intermediate_size")
	c.Divides("num_heads", "hidden_size", g.heads, g.hidden)
	return g
}

func newGPTNeo(c Config, b Build) (*Network, error) {
	g := readGPTNeo(&c)
	b.Attention.Kernel = c.eagerOr(b.Attention.Kernel)
	if err := c.Err(); err != nil {
		return nil, err
	}
	before := b.Versions.Transformers.Before(keywordsSince)
	ctx := &decoderContext{}
	m := newPlacedDecoder("GPTNeoModel", b, g.hidden, g.vocab, g.positions, g.layers, g.embedded, ctx, func(int64) *graph.Module {
		mlp := droppedMLP("GPTNeoMLP", b.DType, g.hidden, g.inner, g.act, [2]string{"c_fc", "c_proj"}, g.residual)
		attention := graph.NewModule("GPTNeoAttention")
		attention.Forward = attention.Child("attention", gptNeoAttention(g, b, ctx)).Forward
		return placedBlock("GPTNeoBlock", b, ctx, g.hidden, attention, mlp, !before)
	})
	net, lm := m.network("GPTNeoForCausalLM", b, g.hidden, g.vocab, g.tied)
	lm.roundTrip = before
	return net, nil
}

// gptNeoAttention is GPTNeoSelfAttention.
func gptNeoAttention(g gptNeoConfig, b Build, ctx *decoderContext) *graph.Module {
	m := graph.NewModule("GPTNeoSelfAttention")
	width := g.hidden / g.heads
	before := b.Versions.Transformers.Before(keywordsSince)
	bias := m.Buffer("bias", graph.Bool, 1, 1, g.positions, g.positions)
	if before {
		m.Buffer("masked_bias", b.DType)
	}
	project := func(name string, bias bool) *graph.Module {
		return m.Child(name, linear(b.DType, g.hidden, g.hidden, bias))
	}
	k, v, q, out := project("k_proj", false), project("v_proj", false), project("q_proj", false), project("out_proj", true)
	drop := m.Child("resid_dropout", dropout(g.residual))
	attend := gptNeoScores(g, bias)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		heads := func(t *graph.Tensor) *graph.Tensor {
			return f.Transpose(f.View(t, batch, tokens, g.heads, width), 1, 2)
		}
		query := f.Let("query", f.Call1(q, in[0]))
		key := f.Let("key", f.Call1(k, in[0]))
		value := f.Let("value", f.Call1(v, in[0]))
		query, key, value = f.Let("query", heads(query)), f.Let("key", heads(key)), f.Let("value", heads(value))
		key, value = ctx.updateCache(f, "key", "value", key, value)
		result := f.Func(attend, query, key, value, ctx.mask)
		output, weights := f.Let("attn_output", result[0]), f.Let("attn_weights", result[1])
		output = f.Let("attn_output", f.View(f.Contiguous(f.Transpose(output, 1, 2)), batch, tokens, g.hidden))
		output = f.Let("attn_output", f.Call1(out, output))
		output = f.Let("attn_output", f.Call1(drop, output))
		if before {
			weights = nil // returned only when asked for
		}
		return []*graph.Tensor{output, weights}
	}
	return m
}

// gptNeoScores is _attn.
func gptNeoScores(g gptNeoConfig, bias *graph.Param) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		value, mask := in[2], in[3]
		query := f.Let("query", f.To(in[0], graph.F32))
		key := f.Let("key", f.To(in[1], graph.F32))
		weights := f.Let("attn_weights", f.Matmul(query, f.Transpose(key, -1, -2)))
		rows, columns := query.Shape.At(-2), key.Shape.At(-2)
		visible := f.Let("causal_mask", f.Slice(f.Slice(bias.T(), 2, 0, rows), 3, 0, columns))
		least := f.Let("mask_value", f.Empty(weights.DType))
		weights = f.Let("attn_weights", f.Where(visible, weights, least))
		if mask != nil {
			weights = f.Let("attn_weights", f.Add(weights, f.Slice(mask, 3, 0, columns)))
		}
		weights = f.Let("attn_weights", f.Softmax(weights, weights.DType))
		weights = f.Let("attn_weights", f.To(weights, value.DType))
		weights = f.Let("attn_weights", f.Dropout(weights, g.attention))
		return []*graph.Tensor{f.Let("attn_output", f.Matmul(weights, value)), weights}
	}
}
