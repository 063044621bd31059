package model

import "memplan/internal/estimator/graph"

// gptJFamily is GPT-J: attention and MLP side by side behind one norm, heads
// that are partly turned in pairs of neighbours. Written from transformers
// 5.24, models/gptj/modeling_gptj.py; older versions, which had attention
// functions of their own, are taken to do the same.
var gptJFamily = Family{
	Name:           "gptj",
	ModelTypes:     []string{"gptj"},
	Source:         "huggingface/transformers:src/transformers/models/gptj/modeling_gptj.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newGPTJ,
}

// gptJConfig is what the program needs of a config.json.
type gptJConfig struct {
	hidden, inner, layers, heads, positions, vocab, turned int64
	tied                                                   bool
	act                                                    string
	residual, embedded, attention                          float64 // dropout
}

func readGPTJ(c *Config) gptJConfig {
	g := gptJConfig{
		hidden: c.Int("n_embd", "hidden_size"), layers: c.Int("n_layer", "num_hidden_layers"), heads: c.Int("n_head", "num_attention_heads"),
		positions: c.IntOr(2048, "n_positions", "max_position_embeddings"), vocab: c.Int("vocab_size"), turned: c.IntOr(64, "rotary_dim"),
		tied: c.Bool(false, "tie_word_embeddings"), act: c.Activation("gelu_new", "activation_function"),
		residual: c.Float(0, "resid_pdrop"), embedded: c.Float(0, "embd_pdrop"), attention: c.Float(0, "attn_pdrop"),
	}
	g.inner = c.IntOr(4*g.hidden, "n_inner")
	c.Divides("n_head", "n_embd", g.heads, g.hidden)
	if g.turned > g.hidden/g.heads {
		c.fields.Add("model.config.rotary_dim", g.turned, "at most the width of a head", "")
	}
	return g
}

func newGPTJ(c Config, b Build) (*Network, error) {
	g := readGPTJ(&c)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newDecoder("GPTJModel")
	m.embedTokens = m.Child("wte", embedding(b.DType, g.vocab, g.hidden))
	drop := m.Child("drop", dropout(g.embedded))
	m.dropped = func(f *graph.Frame, embeds *graph.Tensor) *graph.Tensor { return f.Call1(drop, embeds) }
	m.stack("h", g.layers, func(int64) *graph.Module { return gptJBlock(g, b, m.ctx) })
	m.norm = m.Child("ln_f", layerNorm(b.DType, g.hidden))
	m.rotary = m.Child("rotary_emb", gptJRotaryEmbedding(g, b))
	lm := m.causalLM("GPTJForCausalLM", "transformer", b, g.hidden, g.vocab, false)
	lm.setHead("lm_head", linear(b.DType, g.hidden, g.vocab, true))
	if g.tied {
		lm.head.Params[0].Tied = m.embedTokens.Params[0]
	}
	lm.takesOwnLoss()
	return m.network(lm), nil
}

// gptJRotaryEmbedding looks sines and cosines up in a table.
func gptJRotaryEmbedding(g gptJConfig, b Build) *graph.Module {
	m := graph.NewModule("GPTJRotaryEmbedding")
	table := m.Buffer("embed_positions", b.DType, g.positions, g.turned)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		rows := f.Embedding(in[1], table.T())
		sincos := f.Let("sincos", f.To(rows, in[0].DType))
		return f.Split(sincos, 2, -1)
	}
	return m
}

// gptJRotary is apply_rotary_pos_emb of one tensor [batch, tokens, heads,
// width].
func gptJRotary(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	x := in[0]
	repeated := func(t *graph.Tensor) *graph.Tensor {
		s := t.Shape.D
		t = f.SliceWhole(f.Unsqueeze(f.SliceWhole(t, 2), 2), 1)
		pairs := f.Contiguous(f.Expand(f.Unsqueeze(t, -1), s[0], s[1], 1, s[2], 2))
		return f.View(pairs, s[0], s[1], 1, 2*s[2])
	}
	sin := f.Let("sin", repeated(in[1]))
	cos := f.Let("cos", repeated(in[2]))
	straight := f.Mul(x, cos)
	return one(f.Add(straight, f.Mul(f.Func(rotateNeighbours, x)[0], sin)))
}

// gptJAttention turns keys and queries before heads come first.
func gptJAttention(g gptJConfig, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule("GPTJAttention")
	width := g.hidden / g.heads
	project := func(name string) *graph.Module { return m.Child(name, linear(b.DType, g.hidden, g.hidden, false)) }
	k, v, q, out := project("k_proj"), project("v_proj"), project("q_proj"), project("out_proj")
	drop := m.Child("resid_dropout", dropout(g.residual))
	shape := attentionShape{groups: 1, dropout: g.attention, positions: func() *graph.Tensor { return ctx.positions }}
	shape.eager = gptJEager(g)
	attend := attentionInterface(b, shape)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		heads := func(t *graph.Tensor) *graph.Tensor { return f.View(t, batch, tokens, -1, width) }
		query := f.Let("query", heads(f.Call1(q, in[0])))
		key := f.Let("key", heads(f.Call1(k, in[0])))
		value := f.Let("value", f.Transpose(heads(f.Call1(v, in[0])), 1, 2))
		kRot, kPass := f.Let("k_rot", f.Slice(key, -1, 0, g.turned)), f.Let("k_pass", f.Slice(key, -1, g.turned, width))
		qRot, qPass := f.Let("q_rot", f.Slice(query, -1, 0, g.turned)), f.Let("q_pass", f.Slice(query, -1, g.turned, width))
		kRot = f.Let("k_rot", f.Func(gptJRotary, kRot, ctx.cos, ctx.sin)[0]) // the table gives sines first
		qRot = f.Let("q_rot", f.Func(gptJRotary, qRot, ctx.cos, ctx.sin)[0])
		key = f.Let("key", f.Cat(-1, kRot, kPass))
		query = f.Let("query", f.Cat(-1, qRot, qPass))
		query, key = f.Let("query", f.Transpose(query, 1, 2)), f.Let("key", f.Transpose(key, 1, 2))
		key, value = ctx.updateCache(f, "key", "value", key, value)
		result := attend(f, query, key, value, ctx.mask)
		output := f.Let("attn_output", result[0])
		weights := result[1]
		if weights != nil {
			weights = f.Let("attn_weights", weights)
		}
		output = f.Let("attn_output", f.Contiguous(f.Reshape(output, batch, tokens, -1)))
		output = f.Let("attn_output", f.Call1(out, output))
		return []*graph.Tensor{f.Let("attn_output", f.Call1(drop, output)), weights}
	}
	return m
}

// gptJEager is GPT-J's eager_attention_forward: scores in fp32.
func gptJEager(g gptJConfig) attentionFunc {
	return func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor {
		queries := f.To(query, graph.F32)
		scores := f.Matmul(queries, f.Transpose(f.To(key, graph.F32), 2, 3))
		weights := f.Let("attn_weights", f.MulScalar(scores))
		if mask != nil {
			weights = f.Let("attn_weights", f.Add(weights, mask))
		}
		weights = f.Let("attn_weights", f.To(f.Softmax(weights, weights.DType), value.DType))
		weights = f.Let("attn_weights", f.Dropout(weights, g.attention))
		output := f.Let("attn_output", f.Matmul(weights, value))
		return []*graph.Tensor{f.Let("attn_output", f.Contiguous(f.Transpose(output, 1, 2))), weights}
	}
}

// gptJBlock is one block.
func gptJBlock(g gptJConfig, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule("GPTJBlock")
	norm := m.Child("ln_1", layerNorm(b.DType, g.hidden))
	attention := m.Child("attn", gptJAttention(g, b, ctx))
	mlp := m.Child("mlp", droppedMLP("GPTJMLP", b.DType, g.hidden, g.inner, g.act, [2]string{"fc_in", "fc_out"}, g.residual))
	m.Beside = ctx.beside(b.Versions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		residual := f.Let("residual", in[0])
		hidden := f.Let("hidden_states", f.Call1(norm, in[0]))
		attended := f.Call(attention, hidden)
		output := f.Let("attn_output", attended[0])
		f.Let("_", attended[1])
		forward := f.Let("feed_forward_hidden_states", f.Call1(mlp, hidden))
		return one(f.Add(f.Add(output, forward), residual))
	}
	return m
}
