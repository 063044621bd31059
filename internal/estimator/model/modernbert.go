package model

import (
	"slices"
	"strconv"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// modernbertFamily is ModernBERT: norms in front, gated MLPs, rotary positions,
// and layers that see a window between those that see all. Written from
// transformers 5.24, models/modernbert/modeling_modernbert.py.
var modernbertFamily = Family{
	Name:           "modernbert",
	ModelTypes:     []string{"modernbert"},
	Source:         "huggingface/transformers:src/transformers/models/modernbert/modeling_modernbert.py@v5.24.0",
	AdapterTargets: []string{"Wqkv", "Wi", "Wo"},
	New:            newModernBert,
}

// modernbertSince is when the model became one of the common interfaces; before,
// it unpadded its batches and compiled its own MLP.
var modernbertSince = spec.Version{5}

// modernbertConfig is what the program needs of a config.json.
type modernbertConfig struct {
	hidden, inner, layers, heads, vocab             int64
	window                                          int64  // tokens a local layer sees to either side
	sliding                                         []bool // which layers are local
	act, headAct                                    string
	normBias, attentionBias, mlpBias                bool
	headBias, decoderBias, tied                     bool
	embeddingDrop, attentionDrop, mlpDrop, headDrop float64
	classes                                         int64
}

func readModernBert(c *Config, b Build) modernbertConfig {
	r := modernbertConfig{
		hidden: c.IntOr(768, "hidden_size"), inner: c.IntOr(1152, "intermediate_size"), layers: c.IntOr(22, "num_hidden_layers"),
		heads: c.IntOr(12, "num_attention_heads"), vocab: c.IntOr(50368, "vocab_size"), window: c.IntOr(128, "local_attention") / 2,
		act: c.Activation("gelu", "hidden_activation"), headAct: c.Activation("gelu", "classifier_activation"),
		normBias: c.Bool(false, "norm_bias"), attentionBias: c.Bool(false, "attention_bias"), mlpBias: c.Bool(false, "mlp_bias"),
		headBias: c.Bool(false, "classifier_bias"), decoderBias: c.Bool(true, "decoder_bias"), tied: c.Bool(true, "tie_word_embeddings"),
		embeddingDrop: c.Float(0, "embedding_dropout"), attentionDrop: c.Float(0, "attention_dropout"),
		mlpDrop: c.Float(0, "mlp_dropout"), headDrop: c.Float(0, "classifier_dropout"), classes: c.Classes(b),
	}
	r.sliding = c.alternating(r.layers, c.IntOr(3, "global_attn_every_n_layers"))
	c.Divides("num_attention_heads", "hidden_size", r.heads, r.hidden)
	c.OneOf("classifier_pooling", "cls")
	c.Refuses("sparse_prediction")
	c.needsTransformers(b, modernbertSince, "the model compiles its own MLP before")
	return r
}

// alternating says which layers see only a window: those layer_types names, else
// all but the first and every so many-th after it.
func (c *Config) alternating(layers, every int64) []bool {
	if c.values["layer_types"] != nil {
		return c.Sliding(layers, every)
	}
	sliding := make([]bool, layers)
	for i := range sliding {
		sliding[i] = int64(i)%every != 0
	}
	return sliding
}

func newModernBert(c Config, b Build) (*Network, error) {
	r := readModernBert(&c, b)
	const class = "ModernBert"
	head := c.Head(b, class, maskedLM, sequenceClassification, tokenClassification)
	if err := c.Err(); err != nil {
		return nil, err
	}
	base := newModernBertModel(r, b)
	root := graph.NewModule(class + head)
	root.Child("model", base.Module)
	prediction := root.Child("head", modernbertHead(r, b.DType))
	net := &Network{Root: root, Embeddings: base.words, Blocks: base.layers}
	e := encoderHead{base: base.Module, batch: &base.batch, inline: head != maskedLM, first: head == sequenceClassification}
	if head == maskedLM {
		decoder := root.Child("decoder", linear(b.DType, r.hidden, r.vocab, r.decoderBias))
		if r.tied {
			decoder.Params[0].Tied = base.words.Params[0]
		}
		net.Head = decoder
		e.steps, e.loss = []*graph.Module{prediction, decoder}, maskedLMLoss
	} else {
		e.steps = []*graph.Module{prediction, root.Child("drop", dropout(r.headDrop)), root.Child("classifier", linear(b.DType, r.hidden, r.classes, true))}
	}
	e.put(net, b, head)
	root.Named("")
	return net, nil
}

// kinds names the kinds of layers there are.
func (r modernbertConfig) kinds() []string {
	var kinds []string
	if slices.Contains(r.sliding, false) {
		kinds = append(kinds, "full_attention")
	}
	if slices.Contains(r.sliding, true) {
		kinds = append(kinds, "sliding_attention")
	}
	return kinds
}

// modernbertContext is what the layers of one kind share in a forward pass.
type modernbertContext struct {
	mask, cos, sin *graph.Tensor
}

// beside is what a layer is called with beside the hidden states, all by
// keyword.
func (c *modernbertContext) beside() (args, bound []*graph.Tensor) {
	return nil, []*graph.Tensor{c.mask, c.cos, c.sin}
}

type modernbertModel struct {
	*graph.Module
	words         *graph.Module
	layers        []*graph.Module
	batch         Batch
	global, local modernbertContext
}

// context is what the layers of a kind share.
func (m *modernbertModel) context(sliding bool) *modernbertContext {
	if sliding {
		return &m.local
	}
	return &m.global
}

// newModernBertModel builds the encoder. Its forward takes ids and mask and
// returns the last hidden states.
func newModernBertModel(r modernbertConfig, b Build) *modernbertModel {
	m := &modernbertModel{Module: graph.NewModule("ModernBertModel")}
	embeddings := m.Child("embeddings", modernbertEmbeddings(r, b.DType))
	m.words = embeddings.Children[0]
	list := m.Child("layers", graph.NewModule("ModuleList"))
	for i, sliding := range r.sliding {
		m.layers = append(m.layers, list.Child(strconv.Itoa(i), modernbertLayer(r, b, m.context(sliding), i > 0)))
	}
	norm := m.Child("final_norm", layerNormFor(b.DType, r.hidden, r.normBias))
	rotary := m.Child("rotary_emb", modernbertRotary(r, b))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		positions := f.Let("position_ids", f.Unsqueeze(f.Arange(in[0].Shape.D[1]), 0))
		hidden := f.Let("hidden_states", f.Call1(embeddings, in[0]))
		f.Let("mask_kwargs", hidden)
		inputs := maskInputs{embeds: hidden, attention: in[1], padded: m.batch.Padded, bidirectional: true}
		m.global.mask = f.Let("full_attention", createBidirectionalMask(f, b, inputs))
		inputs.window = r.window
		m.local.mask = f.Let("sliding_attention", createBidirectionalMask(f, b, inputs))
		for _, kind := range r.kinds() {
			ctx, table := m.context(kind == "sliding_attention"), f.Call(rotary, hidden, positions)
			ctx.cos, ctx.sin = f.Let("cos "+kind, table[0]), f.Let("sin "+kind, table[1])
		}
		for _, layer := range m.layers {
			hidden = f.Let("hidden_states", f.Call1(layer, hidden))
		}
		return one(f.Let("hidden_states", f.Call1(norm, hidden)))
	}
	return m
}

// modernbertEmbeddings are the words, normalised.
func modernbertEmbeddings(r modernbertConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("ModernBertEmbeddings")
	words := m.Child("tok_embeddings", embedding(d, r.vocab, r.hidden))
	norm := m.Child("norm", layerNormFor(d, r.hidden, r.normBias))
	drop := m.Child("drop", dropout(r.embeddingDrop))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.Let("hidden_states", f.Call1(drop, f.Call1(norm, f.Call1(words, in[0])))))
	}
	return m
}

// modernbertRotary holds the frequencies of every kind of layer and computes a
// table of cosines and sines.
func modernbertRotary(r modernbertConfig, b Build) *graph.Module {
	m := graph.NewModule("ModernBertRotaryEmbedding")
	var frequencies *graph.Param
	for _, kind := range r.kinds() {
		frequencies = m.Buffer(kind+"_inv_freq", b.DType, r.hidden/r.heads/2)
		m.Buffer(kind+"_original_inv_freq", b.DType, r.hidden/r.heads/2)
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return castTable(f, in[0].DType, func() (cos, sin *graph.Tensor) { return rotaryTable(f, frequencies.T(), in[1], doubled) })
	}
	return m
}

// turnInFloat turns queries and keys in fp32 and gives them in their own type
// (apply_rotary_pos_emb of ModernBERT).
func turnInFloat(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	cos := f.Let("cos", f.Unsqueeze(in[2], 1))
	sin := f.Let("sin", f.Unsqueeze(in[3], 1))
	turn := func(x *graph.Tensor) *graph.Tensor {
		straight := f.Mul(f.To(x, graph.F32), cos)
		return f.Add(straight, f.Mul(f.Func(rotateHalf, f.To(x, graph.F32))[0], sin))
	}
	q := f.Let("q_embed", turn(in[0]))
	k := f.Let("k_embed", turn(in[1]))
	q = f.To(q, in[0].DType)
	return []*graph.Tensor{q, f.To(k, in[1].DType)}
}

// modernbertAttention is attention of queries, keys and values from one
// projection.
func modernbertAttention(r modernbertConfig, b Build, ctx *modernbertContext) *graph.Module {
	m := graph.NewModule("ModernBertAttention")
	qkv := m.Child("Wqkv", linear(b.DType, r.hidden, 3*r.hidden, r.attentionBias))
	out := m.Child("Wo", linear(b.DType, r.hidden, r.hidden, r.attentionBias))
	drop := m.Child("out_drop", dropout(r.attentionDrop))
	shape := attentionShape{groups: 1, dropout: r.attentionDrop, bidirectional: true}
	shape.eager = eagerAttention(shape)
	attend := attentionInterface(b, shape)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		joined := f.Let("qkv", f.Call1(qkv, in[0]))
		joined = f.Let("qkv", f.View(joined, batch, tokens, 3, -1, r.hidden/r.heads))
		states, names := f.UnbindAt(joined, -3), [3]string{"query_states", "key_states", "value_states"}
		for i, t := range states {
			states[i] = f.Let(names[i], t)
		}
		for i, t := range states {
			states[i] = f.Let(names[i], f.Transpose(t, 1, 2))
		}
		turned := f.Func(turnInFloat, states[0], states[1], ctx.cos, ctx.sin)
		query, key := f.Let("query_states", turned[0]), f.Let("key_states", turned[1])
		result := attend(f, query, key, states[2], ctx.mask)
		output, weights := f.Let("attn_output", result[0]), f.Let("attn_weights", result[1])
		output = f.Let("attn_output", f.Contiguous(f.Reshape(output, batch, tokens, -1)))
		output = f.Let("attn_output", f.Call1(drop, f.Call1(out, output)))
		return []*graph.Tensor{output, weights}
	}
	return m
}

// modernbertMLP is the gated MLP, with input and gate from one projection.
func modernbertMLP(r modernbertConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("ModernBertMLP")
	wide := m.Child("Wi", linear(d, r.hidden, 2*r.inner, r.mlpBias))
	act := m.Child("act", activation(r.act))
	drop := m.Child("drop", dropout(r.mlpDrop))
	out := m.Child("Wo", linear(d, r.inner, r.hidden, r.mlpBias))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		parts := f.Split(f.Call1(wide, in[0]), 2, -1)
		input, gate := f.Let("input", parts[0]), f.Let("gate", parts[1])
		return one(f.Call1(out, f.Call1(drop, f.Mul(f.Call1(act, input), gate))))
	}
	return m
}

// modernbertLayer is one block; the first has no norm before its attention.
func modernbertLayer(r modernbertConfig, b Build, ctx *modernbertContext, normed bool) *graph.Module {
	m := graph.NewModule("ModernBertEncoderLayer")
	var attentionNorm *graph.Module
	if normed {
		attentionNorm = m.Child("attn_norm", layerNormFor(b.DType, r.hidden, r.normBias))
	}
	attention := m.Child("attn", modernbertAttention(r, b, ctx))
	mlpNorm := m.Child("mlp_norm", layerNormFor(b.DType, r.hidden, r.normBias))
	mlp := m.Child("mlp", modernbertMLP(r, b.DType))
	m.Beside = ctx.beside
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		var attended []*graph.Tensor
		if attentionNorm == nil {
			attended = f.Call(attention, in[0])
		} else {
			attended = f.Call(attention, f.Call1(attentionNorm, in[0]))
		}
		output := f.Let("attn_output", attended[0])
		f.Let("_", attended[1])
		hidden := f.Let("hidden_states", f.Add(in[0], output))
		return one(f.Let("hidden_states", f.Add(hidden, f.Call1(mlp, f.Call1(mlpNorm, hidden)))))
	}
	return m
}

// modernbertHead is the dense layer, activation and norm before the output
// layer.
func modernbertHead(r modernbertConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("ModernBertPredictionHead")
	dense := m.Child("dense", linear(d, r.hidden, r.hidden, r.headBias))
	act := m.Child("act", activation(r.headAct))
	norm := m.Child("norm", layerNormFor(d, r.hidden, r.normBias))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.Call1(norm, f.Call1(act, f.Call1(dense, in[0]))))
	}
	return m
}
