package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// albertFamily is ALBERT: narrow embeddings, and layers that share their
// weights. Written from transformers 5.24, models/albert/modeling_albert.py.
var albertFamily = Family{
	Name:           "albert",
	ModelTypes:     []string{"albert"},
	Source:         "huggingface/transformers:src/transformers/models/albert/modeling_albert.py@v5.24.0",
	AdapterTargets: []string{"query", "value"},
	New:            newAlbert,
}

// albertConfig is BERT's and how the layers are shared.
type albertConfig struct {
	bertConfig
	groups, inGroup int64
}

func readAlbert(c *Config, b Build) albertConfig {
	r := albertConfig{
		bertConfig: bertConfig{
			bertKind: bertKind{class: "Albert", attribute: "albert", pooled: true},
			hidden:   c.Int("hidden_size"), inner: c.Int("intermediate_size"), layers: c.Int("num_hidden_layers"), heads: c.Int("num_attention_heads"),
			embedding: c.IntOr(128, "embedding_size"), vocab: c.Int("vocab_size"), positions: c.IntOr(512, "max_position_embeddings"), types: c.IntOr(2, "type_vocab_size"),
			tied: c.Bool(true, "tie_word_embeddings"), act: c.Activation("gelu_new", "hidden_act"),
			drop: c.Float(0, "hidden_dropout_prob"), attention: c.Float(0, "attention_probs_dropout_prob"), headDropout: c.Float(0.1, "classifier_dropout_prob"),
			classes: c.Classes(b), padding: c.Token(0, "pad_token_id"),
		},
		groups: c.IntOr(1, "num_hidden_groups"), inGroup: c.IntOr(1, "inner_group_num"),
	}
	c.Divides("num_attention_heads", "hidden_size", r.heads, r.hidden)
	c.OneOf("position_embedding_type", "absolute")
	return r
}

func newAlbert(c Config, b Build) (*Network, error) {
	r := readAlbert(&c, b)
	head := c.Head(b, r.class, maskedLM, sequenceClassification, questionAnswering)
	if err := c.Err(); err != nil {
		return nil, err
	}
	ctx := &bertContext{}
	base, words := albertModel(r, b, ctx, head == sequenceClassification)
	root := graph.NewModule(r.class + head)
	root.Child(r.attribute, base)
	net := &Network{Root: root, Embeddings: words, Uncheckpointed: true}
	e := encoderHead{base: base, batch: &ctx.batch}
	switch head {
	case maskedLM:
		e.steps = albertMaskedLM(root, r, b.DType, words)
		net.Head = e.steps[len(e.steps)-1]
	case sequenceClassification:
		e.pooled, e.inline = true, true
		e.steps = bertClassifier(root, r.bertConfig, b)
	default:
		e.steps = []*graph.Module{root.Child("qa_outputs", linear(b.DType, r.hidden, 2, true))}
	}
	e.put(net, b, head)
	root.Named("")
	return net, nil
}

// albertMaskedLM adds the language modelling head.
func albertMaskedLM(root *graph.Module, r albertConfig, d graph.DType, words *graph.Module) []*graph.Module {
	head := root.Child("predictions", graph.NewModule("AlbertMLMHead"))
	norm := head.Child("LayerNorm", layerNorm(d, r.embedding))
	bias := head.Param("bias", d, r.vocab)
	dense := head.Child("dense", linear(d, r.hidden, r.embedding, true))
	decoder := head.Child("decoder", linear(d, r.embedding, r.vocab, true))
	if r.tied {
		decoder.Params[0].Tied, decoder.Params[1].Tied = words.Params[0], bias
	}
	return []*graph.Module{dense, activation(r.act), norm, decoder}
}

// albertAttention is self-attention up to the norm behind it.
func albertAttention(r albertConfig, b Build, ctx *bertContext) *graph.Module {
	m := graph.NewModule("AlbertAttention")
	m.Child("attention_dropout", dropout(r.attention))
	drop := m.Child("output_dropout", dropout(r.drop))
	query := m.Child("query", linear(b.DType, r.hidden, r.hidden, true))
	key := m.Child("key", linear(b.DType, r.hidden, r.hidden, true))
	value := m.Child("value", linear(b.DType, r.hidden, r.hidden, true))
	dense := m.Child("dense", linear(b.DType, r.hidden, r.hidden, true))
	norm := m.Child("LayerNorm", layerNorm(b.DType, r.hidden))
	attend := encoderAttention(b, attentionShape{groups: 1, dropout: r.attention})
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		heads := func(t *graph.Tensor) *graph.Tensor {
			return f.Transpose(f.View(t, batch, tokens, r.heads, -1), 1, 2)
		}
		q := f.Let("query_layer", heads(f.Call1(query, in[0])))
		k := f.Let("key_layer", heads(f.Call1(key, in[0])))
		v := f.Let("value_layer", heads(f.Call1(value, in[0])))
		result := attend(f, q, k, v, ctx.mask)
		output := f.Let("attn_output", result[0])
		weights := f.Let("attn_weights", result[1])
		output = f.Let("attn_output", f.Contiguous(f.Reshape(output, batch, tokens, -1)))
		output = f.Let("attn_output", f.Call1(dense, output))
		output = f.Let("attn_output", f.Call1(drop, output))
		output = f.Let("attn_output", f.Call1(norm, f.Add(in[0], output)))
		return []*graph.Tensor{output, weights}
	}
	return m
}

// albertLayer is attention and MLP.
func albertLayer(r albertConfig, b Build, ctx *bertContext) *graph.Module {
	m := graph.NewModule("AlbertLayer")
	norm := m.Child("full_layer_layer_norm", layerNorm(b.DType, r.hidden))
	attention := m.Child("attention", albertAttention(r, b, ctx))
	ffn := m.Child("ffn", linear(b.DType, r.hidden, r.inner, true))
	output := m.Child("ffn_output", linear(b.DType, r.inner, r.hidden, true))
	act := m.Child("activation", activation(r.act))
	m.Child("dropout", dropout(r.drop))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		attended := f.Call(attention, in[0])
		result := f.Let("attention_output", attended[0])
		f.Let("_", attended[1])
		wide := f.Let("ffn_output", f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			wide := f.Let("ffn_output", f.Call1(ffn, in[0]))
			wide = f.Let("ffn_output", f.Call1(act, wide))
			return one(f.Let("ffn_output", f.Call1(output, wide)))
		}, result)[0])
		return one(f.Let("hidden_states", f.Call1(norm, f.Add(wide, result))))
	}
	return m
}

// albertEncoder runs each group of layers as often as its share of the depth.
func albertEncoder(r albertConfig, b Build, ctx *bertContext) *graph.Module {
	m := graph.NewModule("AlbertTransformer")
	mapping := m.Child("embedding_hidden_mapping_in", linear(b.DType, r.embedding, r.hidden, true))
	list := m.Child("albert_layer_groups", graph.NewModule("ModuleList"))
	var groups []*graph.Module
	for i := range r.groups {
		group := list.Child(strconv.FormatInt(i, 10), graph.NewModule("AlbertLayerGroup"))
		layers := group.Child("albert_layers", graph.NewModule("ModuleList"))
		for j := range r.inGroup {
			layers.Child(strconv.FormatInt(j, 10), albertLayer(r, b, ctx))
		}
		group.Forward = inTurn(layers.Children)
		groups = append(groups, group)
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Call1(mapping, in[0]))
		for i := range r.layers {
			hidden = f.Let("hidden_states", f.Call1(groups[i*r.groups/r.layers], hidden))
		}
		return one(hidden)
	}
	return m
}

// albertModel builds embeddings, encoder and perhaps the pooler.
func albertModel(r albertConfig, b Build, ctx *bertContext, pooled bool) (m, words *graph.Module) {
	m = graph.NewModule("AlbertModel")
	embeddings, words := bertEmbeddings(r.bertConfig, b)
	m.Child("embeddings", embeddings)
	encoder := m.Child("encoder", albertEncoder(r, b, ctx))
	var pooler *graph.Module
	if pooled {
		pooler = m.Child("pooler", linear(b.DType, r.hidden, r.hidden, true))
	}
	mask := encoderMask{padding: r.padding}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		mask.warn(f, b, in[0], in[1])
		embedded := f.Let("embedding_output", f.Call1(embeddings, in[0]))
		ctx.mask = f.Let("attention_mask", mask.build(f, b, in[0], embedded, in[1], ctx.batch.Padded))
		sequence := f.Let("sequence_output", f.Call1(encoder, embedded))
		if pooler == nil {
			return []*graph.Tensor{sequence, nil}
		}
		first := f.Select(f.SliceWhole(sequence, 1), 1)
		return []*graph.Tensor{sequence, f.Let("pooled_output", f.Tanh(f.Call1(pooler, first)))}
	}
	return m, words
}
