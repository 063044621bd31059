package model

import "memplan/internal/estimator/graph"

// llamaFamily is Llama 1 to 3 and what shares its program: Mistral, Qwen 2 and
// 2.5, SmolLM. Written from transformers 5.24 and 4.49,
// models/llama/modeling_llama.py, models/mistral, models/qwen2.
var llamaFamily = Family{
	Name:           "llama",
	ModelTypes:     []string{"llama", "mistral", "qwen2"},
	Source:         "huggingface/transformers:src/transformers/models/llama/modeling_llama.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newLlama,
}

// llamaConfig is what the program of Llama, and of the families that vary it,
// needs of a config.json.
type llamaConfig struct {
	class                           string // what the classes' names begin with
	hidden, inner, layers           int64
	heads, kvHeads, headDim         int64
	vocab                           int64
	tied, qkvBias, outBias, mlpBias bool
	act                             string
	attentionDropout                float64
	// residualDropout is that of the attention's and the MLP's output.
	residualDropout float64
	// outName is the name of the attention's last projection.
	outName string
	// viewsLate says that projections are cut into heads once all three are
	// made.
	viewsLate bool
	// qkNorm normalises queries and keys; nil is none.
	qkNorm *qkNorm
	// rotary turns queries and keys; nil leaves them.
	rotary rotaryFunc
	// attention is the module's own way to attend, in its own frame; nil is
	// transformers' interface.
	attention attentionFunc
	// table makes the module that computes cosines and sines.
	table func(b Build, class string, width int64) *graph.Module
	// softcap says that eager scores are capped by a tanh.
	softcap bool
	// norm makes the layers' norms.
	norm func(d graph.DType, width int64) *graph.Module
	// scaledResidual says that what is added to the residual is multiplied.
	scaledResidual bool
}

func readLlama(c *Config) llamaConfig {
	l := llamaConfig{
		class:  "Llama",
		hidden: c.Int("hidden_size"), inner: c.Int("intermediate_size"), layers: c.Int("num_hidden_layers"),
		heads: c.Int("num_attention_heads"), vocab: c.Int("vocab_size"), act: c.Activation("silu", "hidden_act"),
		tied: c.Bool(false, "tie_word_embeddings"), attentionDropout: c.Float(0, "attention_dropout"),
		rotary: called(applyRotaryPosEmb), table: rotaryEmbedding, norm: llamaRMSNorm, outName: "o_proj",
	}
	l.kvHeads = c.IntOr(l.heads, "num_key_value_heads")
	l.headDim = c.IntOr(l.hidden/l.heads, "head_dim")
	l.qkvBias = c.Bool(false, "attention_bias")
	l.outBias, l.mlpBias = l.qkvBias, c.Bool(false, "mlp_bias")
	if c.Text("llama", "model_type") == "qwen2" { // biases on queries, keys and values only
		l.qkvBias, l.outBias, l.mlpBias = true, false, false
	}
	c.Divides("num_key_value_heads", "num_attention_heads", l.kvHeads, l.heads)
	return l
}

func newLlama(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModel(l, b, llamaDecoderLayer)
	switch c.Text("llama", "model_type") {
	case "mistral":
		m.window, m.compared = c.Window(4096, "sliding_window"), true
	case "qwen2":
		m.compared = true
		if b.Versions.Transformers.Before(maskingUtilsSince) { // use_sliding_window was not asked when masks were made
			m.window = c.Window(4096, "sliding_window")
		}
	}
	return m.network(m.causalLM(l.class+"ForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), nil
}

// newLlamaModel is the decoder of Llama with layers of a family's own.
func newLlamaModel(l llamaConfig, b Build, layer func(l llamaConfig, b Build, ctx *llamaContext) *graph.Module) *decoder {
	return newLlamaModelOf(l, b, func(_ int64, ctx *llamaContext) *graph.Module { return layer(l, b, ctx) })
}

// newLlamaModelOf is the same with layers that may differ.
func newLlamaModelOf(l llamaConfig, b Build, layer func(i int64, ctx *llamaContext) *graph.Module) *decoder {
	m := newDecoder(l.class + "Model")
	m.embedTokens = m.Child("embed_tokens", embedding(b.DType, l.vocab, l.hidden))
	m.stack("layers", l.layers, func(i int64) *graph.Module { return layer(i, m.ctx) })
	m.norm = m.Child("norm", l.norm(b.DType, l.hidden))
	m.rotary = m.Child("rotary_emb", l.table(b, l.class+"RotaryEmbedding", l.headDim))
	return m
}

// llamaRMSNorm computes in fp32 and multiplies the weight in the input's type.
func llamaRMSNorm(d graph.DType, hidden int64) *graph.Module {
	m := graph.NewModule("LlamaRMSNorm")
	weight := m.Param("weight", d, hidden)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		inputDType := in[0].DType
		hiddenStates := f.Let("hidden_states", f.To(in[0], graph.F32))
		variance := f.Let("variance", f.MeanLast(f.Pow(hiddenStates)))
		hiddenStates = f.Let("hidden_states", f.Mul(hiddenStates, f.Rsqrt(f.AddScalar(variance))))
		return one(f.Mul(weight.T(), f.To(hiddenStates, inputDType)))
	}
	return m
}

// llamaMLP is the gated MLP.
func llamaMLP(l llamaConfig, d graph.DType) *graph.Module {
	m := graph.NewModule(l.class + "MLP")
	gate := m.Child("gate_proj", linear(d, l.hidden, l.inner, l.mlpBias))
	up := m.Child("up_proj", linear(d, l.hidden, l.inner, l.mlpBias))
	down := m.Child("down_proj", linear(d, l.inner, l.hidden, l.mlpBias))
	act := m.Child("act_fn", activation(l.act))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		return one(f.Call1(down, f.Mul(f.Call1(act, f.Call1(gate, x)), f.Call1(up, x))))
	}
	return m
}

// qkNorm is a norm of queries and keys.
type qkNorm struct {
	names [2]string
	// make builds the norm for so many heads.
	make  func(heads int64) *graph.Module
	place normPlace
}

// normPlace is where queries and keys are normalised.
type normPlace uint8

const (
	wholeWidth  normPlace = iota // the projection, before it is cut into heads
	eachHead                     // every head of a projection, before the next projection
	tokensFirst                  // every head, once all three are projected
	headsFirst                   // the same, with heads before tokens
)

// at is the norm where it has that place.
func (n *qkNorm) at(p normPlace) bool { return n != nil && n.place == p }

// llamaAttention is multi-head attention with grouped keys and values.
func llamaAttention(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule(l.class + "Attention")
	p := projectionsOf(l, b, m)
	attend := l.attend(b, ctx)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		query, key, value := p.project(f, in[0])
		return attend(f, query, key, value, p.out)
	}
	return m
}

// attend is what an attention does from queries, keys and values on, in its
// own frame: positions, cache, the attention function, the last projection. It
// returns the output and the weights, if there are any.
func (l llamaConfig) attend(b Build, ctx *llamaContext) func(f *graph.Frame, query, key, value *graph.Tensor, out *graph.Module) []*graph.Tensor {
	shape := attentionShape{groups: l.heads / l.kvHeads, dropout: l.attentionDropout, softcap: l.softcap}
	shape.eager = eagerAttention(shape)
	shape.positions = func() *graph.Tensor { return ctx.positions }
	attention := l.attention
	if attention == nil {
		attention = attentionInterface(b, shape)
	}
	if b.Patches.Rotary != nil && l.rotary != nil {
		l.rotary = called(b.Patches.Rotary)
	}
	return func(f *graph.Frame, query, key, value *graph.Tensor, out *graph.Module) []*graph.Tensor {
		batch, tokens := query.Shape.D[0], query.Shape.D[2]
		if l.rotary != nil {
			turned := l.rotary(f, query, key, ctx.cos, ctx.sin)
			query, key = f.Let("query_states", turned[0]), f.Let("key_states", turned[1])
		}
		key, value = ctx.updateCache(f, "key_states", "value_states", key, value)
		result := attention(f, query, key, value, ctx.mask)
		output := f.Let("attn_output", result[0])
		weights := result[1]
		if weights != nil {
			weights = f.Let("attn_weights", weights)
		}
		output = f.Let("attn_output", f.Contiguous(f.Reshape(output, batch, tokens, -1)))
		output = f.Let("attn_output", f.Call1(out, output))
		output = f.Let("attn_output", f.Dropout(output, l.residualDropout))
		return []*graph.Tensor{output, weights}
	}
}

// projections are the linear layers of an attention, and its norms.
type projections struct {
	l            llamaConfig
	q, k, v, out *graph.Module
	norms        [2]*graph.Module
}

func projectionsOf(l llamaConfig, b Build, m *graph.Module) projections {
	p := projections{l: l}
	p.q = m.Child("q_proj", linear(b.DType, l.hidden, l.heads*l.headDim, l.qkvBias))
	p.k = m.Child("k_proj", linear(b.DType, l.hidden, l.kvHeads*l.headDim, l.qkvBias))
	p.v = m.Child("v_proj", linear(b.DType, l.hidden, l.kvHeads*l.headDim, l.qkvBias))
	p.out = m.Child(l.outName, linear(b.DType, l.heads*l.headDim, l.hidden, l.outBias))
	if l.qkNorm != nil {
		p.norms[0] = m.Child(l.qkNorm.names[0], l.qkNorm.make(l.heads))
		p.norms[1] = m.Child(l.qkNorm.names[1], l.qkNorm.make(l.kvHeads))
	}
	return p
}

// project gives queries, keys and values of shape [batch, heads, tokens,
// width], bound to their names.
func (p *projections) project(f *graph.Frame, x *graph.Tensor) (query, key, value *graph.Tensor) {
	names := [3]string{"query_states", "key_states", "value_states"}
	var states [3]*graph.Tensor
	for i, layer := range []*graph.Module{p.q, p.k, p.v} {
		t := f.Call1(layer, x)
		if i < 2 && p.l.qkNorm.at(wholeWidth) {
			t = f.Call1(p.norms[i], t)
		}
		if !p.l.viewsLate {
			t = f.View(t, x.Shape.D[0], x.Shape.D[1], -1, p.l.headDim)
		}
		if i < 2 && p.l.qkNorm.at(eachHead) {
			t = f.Call1(p.norms[i], t)
		}
		states[i] = f.Let(names[i], t)
	}
	if p.l.qkNorm.at(tokensFirst) {
		p.normalise(f, states[:2], names[:2])
	}
	for i, t := range states {
		if p.l.viewsLate {
			t = f.View(t, x.Shape.D[0], x.Shape.D[1], -1, p.l.headDim)
		}
		states[i] = f.Let(names[i], f.Transpose(t, 1, 2))
	}
	if p.l.qkNorm.at(headsFirst) {
		p.normalise(f, states[:2], names[:2])
	}
	return states[0], states[1], states[2]
}

func (p *projections) normalise(f *graph.Frame, states []*graph.Tensor, names []string) {
	for i, t := range states {
		states[i] = f.Let(names[i], f.Call1(p.norms[i], t))
	}
}

// llamaDecoderLayer is one block: attention and MLP, each behind a norm and
// beside a residual.
func llamaDecoderLayer(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
	return llamaBlock(l, b, ctx, llamaMLP(l, b.DType))
}

// llamaBlock is the same with an MLP of a family's own.
func llamaBlock(l llamaConfig, b Build, ctx *llamaContext, mlp *graph.Module) *graph.Module {
	return llamaBlockOf(l, b, ctx, llamaAttention(l, b, ctx), mlp)
}

// llamaBlockOf is the same with an attention of a family's own too.
func llamaBlockOf(l llamaConfig, b Build, ctx *llamaContext, attention, mlp *graph.Module) *graph.Module {
	m := graph.NewModule(l.class + "DecoderLayer")
	m.Child("self_attn", attention)
	m.Child("mlp", mlp)
	inputNorm := m.Child("input_layernorm", l.norm(b.DType, l.hidden))
	postNorm := m.Child("post_attention_layernorm", l.norm(b.DType, l.hidden))
	m.Beside = ctx.beside(b.Versions)
	added := func(f *graph.Frame, t *graph.Tensor) *graph.Tensor {
		if l.scaledResidual {
			return f.MulScalar(t)
		}
		return t
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", in[0])
		residual := f.Let("residual", hidden)
		hidden = f.Let("hidden_states", f.Call1(inputNorm, hidden))
		attended := f.Call(attention, hidden)
		hidden = f.Let("hidden_states", attended[0])
		f.Let("_", attended[1])
		hidden = f.Let("hidden_states", f.Add(residual, added(f, hidden)))

		residual = f.Let("residual", hidden)
		hidden = f.Let("hidden_states", f.Call1(postNorm, hidden))
		forward := f.Call(mlp, hidden)
		hidden = f.Let("hidden_states", forward[0])
		if len(forward) > 1 { // a router's scores
			f.Let("_", forward[1])
		}
		hidden = f.Let("hidden_states", f.Add(residual, added(f, hidden)))
		return one(hidden)
	}
	return m
}
