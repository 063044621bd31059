package model

import "memplan/internal/estimator/graph"

// falconFamily is Falcon 1: RefinedWeb models with biases by distance, and the
// 7B and 40B with rotary positions and shared keys and values. Written from
// transformers 5.24 and 4.49, models/falcon/modeling_falcon.py.
var falconFamily = Family{
	Name:           "falcon",
	ModelTypes:     []string{"falcon"},
	Source:         "huggingface/transformers:src/transformers/models/falcon/modeling_falcon.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"query_key_value"},
	New:            newFalcon,
}

// falconConfig is what the program needs of a config.json.
type falconConfig struct {
	hidden, inner, layers, heads, kvHeads, vocab   int64
	tied, alibi, bias, multiQuery, parallel, grown bool
	norms                                          int64 // before attention and MLP side by side
	act                                            string
	drop, attentionDrop                            float64
}

func readFalcon(c *Config) falconConfig {
	g := falconConfig{
		hidden: c.Int("hidden_size", "n_embed"), layers: c.Int("num_hidden_layers", "n_layer"), heads: c.Int("num_attention_heads", "n_head"),
		vocab: c.Int("vocab_size"), tied: c.Bool(true, "tie_word_embeddings"), alibi: c.Bool(false, "alibi"), bias: c.Bool(false, "bias"),
		multiQuery: c.Bool(true, "multi_query"), parallel: c.Bool(true, "parallel_attn"), grown: c.Bool(false, "new_decoder_architecture"),
		act: c.Activation("gelu", "activation"), drop: c.Float(0, "hidden_dropout"), attentionDrop: c.Float(0, "attention_dropout"),
	}
	g.inner = c.IntOr(4*g.hidden, "ffn_hidden_size")
	g.kvHeads, g.norms = c.IntOr(g.heads, "num_kv_heads"), 1
	if g.grown {
		g.norms = c.IntOr(2, "num_ln_in_parallel_attn")
	}
	if !g.grown && g.multiQuery {
		g.kvHeads = 1
	}
	c.Divides("num_attention_heads", "hidden_size", g.heads, g.hidden)
	c.Divides("num_kv_heads", "num_attention_heads", g.kvHeads, g.heads)
	return g
}

func newFalcon(c Config, b Build) (*Network, error) {
	g := readFalcon(&c)
	if b.Attention.Kernel == "flash" {
		b.Attention.Kernel = c.eagerOr("flash")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newDecoder("FalconModel")
	ctx := &falconContext{llamaContext: m.ctx}
	m.embedTokens = m.Child("word_embeddings", embedding(b.DType, g.vocab, g.hidden))
	m.stack("h", g.layers, func(int64) *graph.Module { return falconDecoderLayer(g, b, ctx) })
	m.norm = m.Child("ln_f", layerNorm(b.DType, g.hidden))
	m.rotary = m.Child("rotary_emb", rotaryEmbedding(b, "FalconRotaryEmbedding", g.hidden/g.heads))
	m.scaled = func(f *graph.Frame, embeds *graph.Tensor) *graph.Tensor { return ctx.bias(f, g, embeds) }
	m.ownMask = func(f *graph.Frame, b Build, in maskInputs) *graph.Tensor { return ctx.biasedMask(f, g, b, in) }
	lm := m.causalLM("FalconForCausalLM", "transformer", b, g.hidden, g.vocab, g.tied)
	lm.takesOwnLoss()
	return m.network(lm), nil
}

// falconContext is what every layer of one forward pass shares.
type falconContext struct {
	*llamaContext
	alibi *graph.Tensor
}

// bias makes the biases by distance, where the model has them; the embeddings
// stay as they are.
func (c *falconContext) bias(f *graph.Frame, g falconConfig, embeds *graph.Tensor) *graph.Tensor {
	c.alibi = nil
	if !g.alibi {
		return embeds
	}
	present := f.Let("mask", c.batch.Tensor(AttentionMask))
	if present == nil {
		present = f.Let("mask", f.Empty(graph.I64, embeds.Shape.D[0], embeds.Shape.D[1]))
	}
	c.alibi = f.Let("alibi", buildAlibi(f, present, g.heads, embeds.DType, alibiSlopes, true))
	return embeds
}

// biasedMask is the mask of the layers, with the biases in it.
func (c *falconContext) biasedMask(f *graph.Frame, g falconConfig, b Build, in maskInputs) *graph.Tensor {
	before := b.Versions.Transformers.Before(maskingUtilsSince)
	if before && g.alibi {
		in.exact = true
		mask := f.Let("causal_mask", additiveCausalMask(f, in))
		mask = f.Let("causal_mask", c.withBias(f, g, in, mask))
		if b.Attention.Kernel == "sdpa" && in.attention != nil {
			return unmaskUnattended(f, mask)
		}
		return mask
	}
	in.always = !before
	mask := f.Let("causal_mask", causalMask(f, b, in))
	if c.alibi == nil || mask == nil {
		return mask
	}
	if mask.DType == graph.Bool {
		mask = f.Let("causal_mask", f.Choose(mask, in.embeds.DType))
	}
	return c.withBias(f, g, in, mask)
}

// withBias is the biases where the additive mask lets a query see.
func (c *falconContext) withBias(f *graph.Frame, g falconConfig, in maskInputs, mask *graph.Tensor) *graph.Tensor {
	batch, tokens := in.sizes()
	c.alibi = f.Let("alibi", f.View(c.alibi, batch, g.heads, 1, tokens))
	return f.MaskedFill(f.MulScalar(c.alibi), f.Compare(mask, nil))
}

// falconLinear is FalconLinear: a product with the turned weight, and the bias
// added to it, so that autocast casts the weight anew each time and leaves the
// sum in fp32.
func falconLinear(d graph.DType, in, out int64, bias bool) *graph.Module {
	m := linear(d, in, out, bias)
	weights := m.Params
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.MatmulMatrix(in[0], f.Transpose(weights[0].T(), 0, 1)))
		if bias {
			return one(f.Add(hidden, weights[1].T()))
		}
		return one(hidden)
	}
	return m
}

// falconAttention returns the output and, where it is eager, the weights.
func falconAttention(g falconConfig, b Build, ctx *falconContext) *graph.Module {
	m := graph.NewModule("FalconAttention")
	width := g.hidden / g.heads
	qkv := m.Child("query_key_value", falconLinear(b.DType, g.hidden, g.hidden+2*g.kvHeads*width, g.bias))
	dense := m.Child("dense", falconLinear(b.DType, g.hidden, g.hidden, g.bias))
	drop := m.Child("attention_dropout", dropout(g.attentionDrop))
	split := falconSplit(g)
	attend := falconEager(g, ctx, drop)
	if b.Attention.Kernel != "eager" {
		attend = falconKernel(g, b)
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		fused := f.Let("fused_qkv", f.Call1(qkv, in[0]))
		states := f.Func(split, fused)
		for i, name := range []string{"query_layer", "key_layer", "value_layer"} {
			states[i] = f.Let(name, states[i])
		}
		for i, name := range []string{"query_layer", "key_layer", "value_layer"} {
			heads := states[i].Shape.At(2)
			states[i] = f.Let(name, f.Reshape(f.Transpose(states[i], 1, 2), batch, heads, tokens, width))
		}
		query, key, value := states[0], states[1], states[2]
		if !g.alibi {
			turned := f.Func(applyRotaryPosEmb, query, key, ctx.cos, ctx.sin)
			query, key = f.Let("query_layer", turned[0]), f.Let("key_layer", turned[1])
		}
		key, value = ctx.updateCache(f, "key_layer", "value_layer", key, value)
		result := attend(f, query, key, value, ctx.mask, in[0])
		output := f.Let("attn_output", f.Reshape(f.Transpose(result[0], 1, 2), batch, tokens, g.hidden))
		return []*graph.Tensor{f.Let("attn_output", f.Call1(dense, output)), result[1]}
	}
	return m
}

// falconSplit is _split_heads: queries, keys and values [batch, tokens, heads,
// width].
func falconSplit(g falconConfig) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	width := g.hidden / g.heads
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		view := func(sizes ...int64) *graph.Tensor {
			return f.Let("qkv", f.View(in[0], append([]int64{batch, tokens}, sizes...)...))
		}
		switch {
		case g.grown:
			group := g.heads / g.kvHeads
			qkv := view(-1, group+2, width)
			query := f.Let("query", f.Slice(qkv, 3, 0, group))
			key, value := f.Let("key", f.Pick(qkv, 3)), f.Let("value", f.Pick(qkv, 3))
			key = f.Let("key", f.Expand(key, query.Shape.Slice()...))
			value = f.Let("value", f.Expand(value, query.Shape.Slice()...))
			flat := func(name string, t *graph.Tensor) *graph.Tensor {
				return f.Let(name, f.Reshape(t, batch, tokens, g.heads, width))
			}
			return []*graph.Tensor{flat("x0", query), flat("x1", key), flat("x2", value)}
		case g.multiQuery:
			qkv := view(g.heads+2, width)
			return []*graph.Tensor{f.Slice(qkv, 2, 0, g.heads), f.Pick(qkv, 2), f.Pick(qkv, 2)}
		}
		qkv := view(g.heads, 3, width)
		part := func() *graph.Tensor { return f.SliceWhole(f.Select(qkv, 3), 1) }
		return []*graph.Tensor{part(), part(), part()}
	}
}

// falconScores is one of Falcon's two ways to attend, in the module's frame;
// hidden gives the type of the weights.
type falconScores func(f *graph.Frame, query, key, value, mask, hidden *graph.Tensor) []*graph.Tensor

// falconKernel calls F.scaled_dot_product_attention.
func falconKernel(g falconConfig, b Build) falconScores {
	drop := 0.0
	if g.alibi {
		drop = g.attentionDrop
	}
	laidOut := b.Versions.Transformers.Before(maskingUtilsSince) // works around a bug with masks in older kernels
	return func(f *graph.Frame, query, key, value, mask, _ *graph.Tensor) []*graph.Tensor {
		if laidOut && mask != nil {
			query = f.Let("query_layer", f.Contiguous(query))
			key = f.Let("key_layer", f.Contiguous(key))
			value = f.Let("value_layer", f.Contiguous(value))
		}
		return []*graph.Tensor{f.Let("attn_output", f.ScaledDotProductAttention(query, key, value, mask, graph.Attention{
			Dropout: drop, Causal: mask == nil, Backend: b.Attention.Backend,
		})), nil}
	}
}

// falconEager computes scores, in fp32 where biases are added, and weights.
func falconEager(g falconConfig, ctx *falconContext, drop *graph.Module) falconScores {
	return func(f *graph.Frame, query, key, value, mask, hidden *graph.Tensor) []*graph.Tensor {
		if !g.alibi {
			scores := f.Let("attention_scores", f.Matmul(query, f.Transpose(key, -1, -2)))
			scores = f.Let("attention_scores", f.MulScalarInPlace(scores))
			probs := f.Let("attention_scores", f.Softmax(f.Add(scores, mask), hidden.DType))
			return []*graph.Tensor{f.Let("attn_output", f.Matmul(probs, value)), probs}
		}
		scores := f.Let("matmul_result", f.Matmul(query, f.Transpose(key, -1, -2)))
		scores = f.Let("attention_scores", f.View(scores, scores.Shape.Slice()...))
		scores = f.Let("attention_scores", f.To(scores, graph.F32))
		logits := f.Let("attention_logits", f.Add(scores, ctx.alibi))
		logits = f.Let("attention_logits", f.MulScalarInPlace(logits))
		probs := f.Let("attention_probs", f.Softmax(f.Add(logits, mask), hidden.DType))
		probs = f.Let("attention_probs", f.Call1(drop, probs))
		return []*graph.Tensor{f.Let("attn_output", f.Matmul(probs, value)), probs}
	}
}

// falconMLP is the feed-forward part.
func falconMLP(g falconConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("FalconMLP")
	up := m.Child("dense_h_to_4h", falconLinear(d, g.hidden, g.inner, g.bias))
	act := m.Child("act", activation(g.act))
	down := m.Child("dense_4h_to_h", falconLinear(d, g.inner, g.hidden, g.bias))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(act, f.Call1(up, in[0])))
		return one(f.Let("x", f.Call1(down, x)))
	}
	return m
}

// falconDecoderLayer is one block: MLP behind attention, or beside it. Its
// second result is the attention's weights.
func falconDecoderLayer(g falconConfig, b Build, ctx *falconContext) *graph.Module {
	m := graph.NewModule("FalconDecoderLayer")
	attention := m.Child("self_attention", falconAttention(g, b, ctx))
	mlp := m.Child("mlp", falconMLP(g, b.DType))
	norm := func(name string) *graph.Module { return m.Child(name, layerNorm(b.DType, g.hidden)) }
	var inputNorm, postNorm, mlpNorm *graph.Module
	switch {
	case !g.parallel:
		postNorm, inputNorm = norm("post_attention_layernorm"), norm("input_layernorm")
	case g.norms == 2:
		inputNorm, mlpNorm = norm("ln_attn"), norm("ln_mlp")
	default:
		inputNorm = norm("input_layernorm")
	}
	shared := ctx.beside(b.Versions)
	m.Beside = func() (args, bound []*graph.Tensor) {
		args, bound = shared()
		return args, append(bound, ctx.alibi)
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		residual := f.Let("residual", in[0])
		normed := f.Let("attention_layernorm_out", f.Call1(inputNorm, in[0]))
		forMLP := f.Let("mlp_layernorm_out", normed)
		if mlpNorm != nil {
			forMLP = f.Let("mlp_layernorm_out", f.Call1(mlpNorm, in[0]))
		}
		attended := f.Call(attention, normed)
		output, weights := f.Let("attention_output", attended[0]), f.Let("attn_weights", attended[1])
		if postNorm != nil {
			residual = f.Let("residual", dropoutAdd(f, output, residual, g.attentionDrop))
			forMLP = f.Let("mlp_layernorm_out", f.Call1(postNorm, residual))
		}
		forward := f.Let("mlp_output", f.Call1(mlp, forMLP))
		if g.parallel {
			forward = f.Let("mlp_output", f.AddInPlace(forward, output))
		}
		return []*graph.Tensor{f.Let("output", dropoutAdd(f, forward, residual, g.drop)), weights}
	}
	return m
}
