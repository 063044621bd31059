package model

import "memplan/internal/estimator/graph"

// optFamily is OPT: learned positions counted from the attention mask, biases
// everywhere, norms before or behind. Written from transformers 5.24 and 4.49,
// models/opt/modeling_opt.py.
var optFamily = Family{
	Name:           "opt",
	ModelTypes:     []string{"opt"},
	Source:         "huggingface/transformers:src/transformers/models/opt/modeling_opt.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newOPT,
}

// optConfig is what the program needs of a config.json.
type optConfig struct {
	hidden, inner, layers, heads, positions, vocab, word int64
	tied, bias, before, lastNorm                         bool
	act                                                  string
	drop, attentionDrop                                  float64
}

func readOPT(c *Config) optConfig {
	o := optConfig{
		hidden: c.Int("hidden_size"), inner: c.Int("ffn_dim"), layers: c.Int("num_hidden_layers"), heads: c.Int("num_attention_heads"),
		positions: c.IntOr(2048, "max_position_embeddings"), vocab: c.Int("vocab_size"), act: c.Activation("relu", "activation_function"),
		tied: c.Bool(true, "tie_word_embeddings"), bias: c.Bool(true, "enable_bias"), before: c.Bool(true, "do_layer_norm_before"),
		drop: c.Float(0.1, "dropout"), attentionDrop: c.Float(0, "attention_dropout"),
	}
	o.word = c.IntOr(o.hidden, "word_embed_proj_dim")
	o.lastNorm = o.before && !c.Bool(false, "_remove_final_layer_norm")
	if c.Float(0, "layerdrop") > 0 || !c.Bool(true, "layer_norm_elementwise_affine") {
		c.fields.Add("model.config", "layerdrop, or layer norms without weights", "neither: they are not modelled", "")
	}
	c.Divides("num_attention_heads", "hidden_size", o.heads, o.hidden)
	return o
}

func newOPT(c Config, b Build) (*Network, error) {
	o := readOPT(&c)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newOPTDecoder(o, b)
	base := graph.NewModule("OPTModel")
	base.Child("decoder", m.Module)
	base.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.Let("decoder_outputs", f.Call1(m.Module, in...)))
	}
	lm := newCausalLM("OPTForCausalLM", "model", base, m.embedTokens, m.ctx, b, o.word, o.vocab, o.tied)
	lm.takesOwnLoss()
	lm.Named("")
	return &Network{Root: lm.Module, Embeddings: m.embedTokens, Head: lm.head, Blocks: m.layers, Items: lm.items(), Forward: lm.run}, nil
}

// optDecoder is the model below the head.
type optDecoder struct {
	*graph.Module
	embedTokens, embedPositions, projectOut, projectIn, finalNorm *graph.Module
	layers                                                        []*graph.Module
	ctx                                                           *decoderContext
}

func newOPTDecoder(o optConfig, b Build) *optDecoder {
	m := &optDecoder{Module: graph.NewModule("OPTDecoder"), ctx: &decoderContext{}}
	m.embedTokens = m.Child("embed_tokens", embedding(b.DType, o.vocab, o.word))
	m.embedPositions = m.Child("embed_positions", optPositions(b.DType, o))
	if o.word != o.hidden {
		m.projectOut = m.Child("project_out", linear(b.DType, o.hidden, o.word, false))
		m.projectIn = m.Child("project_in", linear(b.DType, o.word, o.hidden, false))
	}
	if o.lastNorm {
		m.finalNorm = m.Child("final_layer_norm", layerNorm(b.DType, o.hidden))
	}
	list := decoder{Module: m.Module}
	list.stack("layers", o.layers, func(int64) *graph.Module { return optDecoderLayer(o, b, m.ctx) })
	m.layers = list.layers
	m.Forward = m.forward(b)
	return m
}

// optPositions is OPTLearnedPositionalEmbedding, whose rows begin at 2.
func optPositions(d graph.DType, o optConfig) *graph.Module {
	m := embedding(d, o.positions+2, o.hidden)
	look := m.Forward
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { return look(f, f.AddScalar(in[0])) }
	return m
}

// forward takes input ids and an attention mask and returns the last hidden
// states.
func (m *optDecoder) forward(b Build) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	before := b.Versions.Transformers.Before(maskingUtilsSince)
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		embeds := f.Let("inputs_embeds", f.Call1(m.embedTokens, in[0]))
		inputs := maskInputs{embeds: embeds, attention: in[1], padded: m.ctx.batch.Padded, cached: true}
		if before {
			inputs.positions = f.Let("cache_position", f.Arange(embeds.Shape.D[1]))
			m.ctx.cachePosition = inputs.positions
		}
		present := f.Let("position_attention_mask", in[1])
		if present == nil {
			present = f.Let("position_attention_mask", f.Empty(graph.F32, embeds.Shape.D[0], embeds.Shape.D[1]))
		}
		if before {
			inputs.attention = present
			m.ctx.mask = f.Let("causal_mask", causalMask(f, b, inputs))
			m.ctx.positions = optPositionIDs(f, present)
		} else {
			m.ctx.positions = optPositionIDs(f, present)
			m.ctx.mask = f.Let("causal_mask", causalMask(f, b, inputs))
		}
		places := f.Let("pos_embeds", f.Call1(m.embedPositions, m.ctx.positions))
		if m.projectIn != nil {
			embeds = f.Let("inputs_embeds", f.Call1(m.projectIn, embeds))
		}
		hidden := f.Let("hidden_states", f.Add(embeds, places))
		for layer := range f.Layers(m.layers) {
			hidden = f.Let("hidden_states", f.Call1(layer, hidden))
			if before {
				f.Let("layer_outputs", hidden)
			}
		}
		for _, last := range []*graph.Module{m.finalNorm, m.projectOut} {
			if last != nil {
				hidden = f.Let("hidden_states", f.Call1(last, hidden))
			}
		}
		return one(hidden)
	}
}

// optPositionIDs counts the tokens that the mask shows.
func optPositionIDs(f *graph.Frame, present *graph.Tensor) *graph.Tensor {
	count := f.Let("position_ids", f.Cumsum(present))
	return f.Let("position_ids", f.To(f.AddScalar(f.Mul(count, present)), graph.I64))
}

// optAttention is multi-head attention whose queries are scaled.
func optAttention(o optConfig, b Build, ctx *decoderContext) *graph.Module {
	m := graph.NewModule("OPTAttention")
	width := o.hidden / o.heads
	project := func(name string) *graph.Module { return m.Child(name, linear(b.DType, o.hidden, o.hidden, o.bias)) }
	k, v, q, out := project("k_proj"), project("v_proj"), project("q_proj"), project("out_proj")
	attend := optAttend(o, b, ctx)
	unscaled := b.Attention.Kernel != "eager" && b.Versions.Transformers.Before(keywordsSince)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		heads := func(t *graph.Tensor) *graph.Tensor {
			return f.Transpose(f.View(t, batch, -1, o.heads, width), 1, 2)
		}
		query := f.Let("query_states", f.Call1(q, in[0]))
		if !unscaled {
			query = f.Let("query_states", f.MulScalar(query))
		}
		query = f.Let("query_states", heads(query))
		key := f.Let("key_states", f.Call1(k, in[0]))
		value := f.Let("value_states", f.Call1(v, in[0]))
		key, value = f.Let("key_states", heads(key)), f.Let("value_states", heads(value))
		key, value = ctx.updateCache(f, "key_states", "value_states", key, value)
		result := attend(f, query, key, value, ctx.mask)
		output := f.Let("attn_output", result[0])
		weights := result[1]
		if weights != nil {
			weights = f.Let("attn_weights", weights)
		}
		output = f.Let("attn_output", f.Contiguous(f.Reshape(output, batch, tokens, -1)))
		return []*graph.Tensor{f.Let("attn_output", f.Call1(out, output)), weights}
	}
	return m
}

// optAttend is the attention function; the module ran the kernels itself until
// there was an interface for them.
func optAttend(o optConfig, b Build, ctx *decoderContext) attentionFunc {
	shape := attentionShape{groups: 1, dropout: o.attentionDrop, positions: func() *graph.Tensor { return ctx.positions }}
	shape.eager = eagerAttention(shape)
	if b.Versions.Transformers.AtLeast(keywordsSince) || b.Attention.Kernel == "flash" {
		return attentionInterface(b, shape)
	}
	if b.Attention.Kernel == "eager" {
		return func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor {
			weights := f.Let("attn_weights", f.Matmul(query, f.Transpose(key, 3, 2)))
			if mask != nil {
				weights = f.Let("attn_weights", f.Add(weights, mask))
			}
			weights = f.Let("attn_weights", f.To(f.Softmax(weights, graph.F32), query.DType))
			weights = f.Let("attn_probs", f.Dropout(weights, o.attentionDrop))
			output := f.Let("attn_output", f.Matmul(weights, value))
			return []*graph.Tensor{f.Let("attn_output", f.Contiguous(f.Transpose(output, 1, 2))), weights}
		}
	}
	return kernelItself(b, o.attentionDrop)
}

// kernelItself is a module that calls F.scaled_dot_product_attention in its own
// frame.
func kernelItself(b Build, drop float64) attentionFunc {
	return func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor {
		output := f.Let("attn_output", f.ScaledDotProductAttention(query, key, value, mask, graph.Attention{
			Dropout: drop, Causal: mask == nil, Backend: b.Attention.Backend,
		}))
		return []*graph.Tensor{f.Contiguous(f.Transpose(output, 1, 2)), nil}
	}
}

// optDecoderLayer is one block, with its norms before attention and MLP or
// behind them.
func optDecoderLayer(o optConfig, b Build, ctx *decoderContext) *graph.Module {
	m := graph.NewModule("OPTDecoderLayer")
	attention := m.Child("self_attn", optAttention(o, b, ctx))
	act := m.Child("activation_fn", activation(o.act))
	attentionNorm := m.Child("self_attn_layer_norm", layerNorm(b.DType, o.hidden))
	fc1 := m.Child("fc1", linear(b.DType, o.hidden, o.inner, o.bias))
	fc2 := m.Child("fc2", linear(b.DType, o.inner, o.hidden, o.bias))
	finalNorm := m.Child("final_layer_norm", layerNorm(b.DType, o.hidden))
	m.Beside = ctx.beside(b.Versions)
	normed := func(f *graph.Frame, now bool, norm *graph.Module, hidden *graph.Tensor) *graph.Tensor {
		if !now {
			return hidden
		}
		return f.Let("hidden_states", f.Call1(norm, hidden))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		residual := f.Let("residual", in[0])
		hidden := normed(f, o.before, attentionNorm, f.Let("hidden_states", in[0]))
		attended := f.Call(attention, hidden)
		hidden = f.Let("hidden_states", attended[0])
		f.Let("_", attended[1])
		hidden = f.Let("hidden_states", f.Dropout(hidden, o.drop))
		hidden = f.Let("hidden_states", f.Add(residual, hidden))
		hidden = normed(f, !o.before, attentionNorm, hidden)

		shape := hidden.Shape.Slice()
		hidden = f.Let("hidden_states", f.Reshape(hidden, -1, o.hidden))
		residual = f.Let("residual", hidden)
		hidden = normed(f, o.before, finalNorm, hidden)
		hidden = f.Let("hidden_states", f.Call1(fc1, hidden))
		hidden = f.Let("hidden_states", f.Call1(act, hidden))
		hidden = f.Let("hidden_states", f.Call1(fc2, hidden))
		hidden = f.Let("hidden_states", f.Dropout(hidden, o.drop))
		hidden = f.Let("hidden_states", f.View(f.Add(residual, hidden), shape...))
		return one(normed(f, !o.before, finalNorm, hidden))
	}
	return m
}
