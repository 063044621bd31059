package model

import "memplan/internal/estimator/graph"

// gptBigCodeFamily is SantaCoder, StarCoder 1 and the first Granite code
// models: GPT-2 with one head of keys and values for all. Written from
// transformers 5.24 and 4.49, models/gpt_bigcode/modeling_gpt_bigcode.py.
var gptBigCodeFamily = Family{
	Name:           "gpt_bigcode",
	ModelTypes:     []string{"gpt_bigcode"},
	Source:         "huggingface/transformers:src/transformers/models/gpt_bigcode/modeling_gpt_bigcode.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"c_attn"},
	New:            newGPTBigCode,
}

// bigCodeConfig is what the program needs of a config.json.
type bigCodeConfig struct {
	hidden, inner, layers, heads, kvHeads, positions, vocab int64
	tied                                                    bool
	act                                                     string
	residual, embedded, attention                           float64 // dropout
}

func readGPTBigCode(c *Config) bigCodeConfig {
	g := bigCodeConfig{
		hidden: c.Int("n_embd", "hidden_size"), layers: c.Int("n_layer", "num_hidden_layers"), heads: c.Int("n_head", "num_attention_heads"),
		positions: c.IntOr(1024, "n_positions", "max_position_embeddings"), vocab: c.Int("vocab_size"), kvHeads: 1,
		tied: c.Bool(true, "tie_word_embeddings"), act: c.Activation("gelu_pytorch_tanh", "activation_function"),
		residual: c.Float(0.1, "resid_pdrop"), embedded: c.Float(0.1, "embd_pdrop"), attention: c.Float(0.1, "attn_pdrop"),
	}
	g.inner = c.IntOr(4*g.hidden, "n_inner")
	if !c.Bool(true, "multi_query") {
		g.kvHeads = g.heads
	}
	c.Refuses("add_cross_attention")
	c.Divides("n_head", "n_embd", g.heads, g.hidden)
	return g
}

func newGPTBigCode(c Config, b Build) (*Network, error) {
	g := readGPTBigCode(&c)
	if err := c.Err(); err != nil {
		return nil, err
	}
	before := b.Versions.Transformers.Before(keywordsSince)
	if before {
		b.UseCache = b.AsksCache
	}
	ctx := &decoderContext{}
	m := newPlacedDecoder("GPTBigCodeModel", b, g.hidden, g.vocab, g.positions, g.layers, g.embedded, ctx, func(int64) *graph.Module {
		attention := bigCodeAttention
		if before {
			attention = bigCodeAttentionBefore
		}
		mlp := droppedMLP("GPTBigCodeMLP", b.DType, g.hidden, g.inner, g.act, [2]string{"c_fc", "c_proj"}, g.residual)
		return placedBlock("GPTBigCodeBlock", b, ctx, g.hidden, attention(g, b, ctx), mlp, before)
	})
	m.Buffer("bias", graph.Bool, g.positions, g.positions)
	if before {
		m.Forward = bigCodeBefore(m, g, b)
	}
	net, _ := m.network("GPTBigCodeForCausalLM", b, g.hidden, g.vocab, g.tied)
	return net, nil
}

// bigCodeAttention cuts queries, keys and values out of one product.
func bigCodeAttention(g bigCodeConfig, b Build, ctx *decoderContext) *graph.Module {
	m := graph.NewModule("GPTBigCodeAttention")
	width := g.hidden / g.heads
	cAttn := m.Child("c_attn", linear(b.DType, g.hidden, g.hidden+2*g.kvHeads*width, true))
	cProj := m.Child("c_proj", linear(b.DType, g.hidden, g.hidden, true))
	drop := m.Child("resid_dropout", dropout(g.residual))
	shape := attentionShape{groups: g.heads / g.kvHeads, dropout: g.attention}
	shape.eager = eagerAttention(shape)
	attend := attentionInterface(b, shape)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		states := f.Call1(cAttn, in[0])
		var parts []*graph.Tensor
		if g.kvHeads == 1 {
			parts = f.SplitSizes(f.Unsqueeze(states, 1), 3, g.hidden, width, width)
		} else {
			parts = f.SplitSizes(f.Transpose(f.View(states, batch, tokens, g.heads, 3*width), 1, 2), 3, width, width, width)
		}
		query, key, value := f.Let("query", parts[0]), f.Let("key", parts[1]), f.Let("value", parts[2])
		if g.kvHeads == 1 {
			query = f.Let("query", f.Transpose(f.View(query, batch, tokens, -1, width), 1, 2))
		}
		key, value = ctx.updateCache(f, "key", "value", key, value)
		result := attend(f, query, key, value, ctx.mask)
		output := f.Let("attn_output", result[0])
		weights := result[1]
		if weights != nil {
			weights = f.Let("attn_weights", weights)
		}
		output = f.Let("attn_output", f.Contiguous(f.Reshape(output, batch, tokens, -1)))
		output = f.Let("attn_output", f.Call1(cProj, output))
		return []*graph.Tensor{f.Let("attn_output", f.Call1(drop, output)), weights}
	}
	return m
}
