package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// distilbertFamily is DistilBERT. Written from transformers 5.24,
// models/distilbert/modeling_distilbert.py.
var distilbertFamily = Family{
	Name:           "distilbert",
	ModelTypes:     []string{"distilbert"},
	Source:         "huggingface/transformers:src/transformers/models/distilbert/modeling_distilbert.py@v5.24.0",
	AdapterTargets: []string{"q_lin", "v_lin"},
	New:            newDistilbert,
}

// distilbertConfig is what the program needs of a config.json.
type distilbertConfig struct {
	dim, inner, layers, heads    int64
	vocab, positions, classes    int64
	act                          string
	tied                         bool
	drop, attention, classifying float64
	padding                      int64
}

func readDistilbert(c *Config, b Build) distilbertConfig {
	r := distilbertConfig{
		dim: c.IntOr(768, "dim", "hidden_size"), inner: c.IntOr(3072, "hidden_dim"), layers: c.IntOr(6, "n_layers", "num_hidden_layers"),
		heads: c.IntOr(12, "n_heads", "num_attention_heads"), vocab: c.Int("vocab_size"), positions: c.IntOr(512, "max_position_embeddings"),
		act: c.Activation("gelu", "activation"), tied: c.Bool(true, "tie_word_embeddings"), drop: c.Float(0.1, "dropout"),
		attention: c.Float(0.1, "attention_dropout"), classifying: c.Float(0.2, "seq_classif_dropout"), classes: c.Classes(b),
		padding: c.Token(0, "pad_token_id"),
	}
	c.Divides("n_heads", "dim", r.heads, r.dim)
	return r
}

func newDistilbert(c Config, b Build) (*Network, error) {
	r := readDistilbert(&c, b)
	head := c.Head(b, "DistilBert", maskedLM, sequenceClassification, tokenClassification)
	if err := c.Err(); err != nil {
		return nil, err
	}
	ctx := &bertContext{}
	base, words, blocks := distilbertModel(r, b, ctx)
	root := graph.NewModule("DistilBert" + head)
	root.Child("distilbert", base)
	net := &Network{Root: root, Embeddings: words, Blocks: blocks}
	e := encoderHead{base: base, batch: &ctx.batch}
	dense := func(out int64) *graph.Module { return linear(b.DType, r.dim, out, true) }
	switch head {
	case maskedLM:
		transform := root.Child("vocab_transform", dense(r.dim))
		norm := root.Child("vocab_layer_norm", layerNorm(b.DType, r.dim))
		net.Head = root.Child("vocab_projector", dense(r.vocab))
		if r.tied {
			net.Head.Params[0].Tied = words.Params[0]
		}
		e.steps = []*graph.Module{transform, activation(r.act), norm, net.Head}
	case sequenceClassification:
		e.first, e.inline = true, true
		before := root.Child("pre_classifier", dense(r.dim))
		classifier := root.Child("classifier", dense(r.classes))
		e.steps = []*graph.Module{before, activation("relu"), root.Child("dropout", dropout(r.classifying)), classifier}
	default:
		e.inline = true
		drop := root.Child("dropout", dropout(r.drop))
		e.steps = []*graph.Module{drop, root.Child("classifier", dense(r.classes))}
	}
	e.put(net, b, head)
	root.Named("")
	return net, nil
}

// distilbertEmbeddings adds words and positions.
func distilbertEmbeddings(r distilbertConfig, d graph.DType) (m, words *graph.Module) {
	m = graph.NewModule("Embeddings")
	words = m.Child("word_embeddings", embedding(d, r.vocab, r.dim))
	places := m.Child("position_embeddings", embedding(d, r.positions, r.dim))
	norm := m.Child("LayerNorm", layerNorm(d, r.dim))
	drop := m.Child("dropout", dropout(r.drop))
	ids := m.Buffer("position_ids", graph.I64, 1, r.positions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		embeds := f.Let("inputs_embeds", f.Call1(words, in[0]))
		place := f.Let("position_ids", f.Slice(ids.T(), 1, 0, embeds.Shape.D[1]))
		sum := f.Let("embeddings", f.Add(embeds, f.Let("position_embeddings", f.Call1(places, place))))
		sum = f.Let("embeddings", f.Call1(norm, sum))
		return one(f.Let("embeddings", f.Call1(drop, sum)))
	}
	return m, words
}

// distilbertAttention is self-attention with its output projection.
func distilbertAttention(r distilbertConfig, b Build, ctx *bertContext) *graph.Module {
	m := graph.NewModule("DistilBertSelfAttention")
	query := m.Child("q_lin", linear(b.DType, r.dim, r.dim, true))
	key := m.Child("k_lin", linear(b.DType, r.dim, r.dim, true))
	value := m.Child("v_lin", linear(b.DType, r.dim, r.dim, true))
	out := m.Child("out_lin", linear(b.DType, r.dim, r.dim, true))
	m.Child("dropout", dropout(r.attention))
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
		return []*graph.Tensor{f.Let("attn_output", f.Call1(out, output)), weights}
	}
	return m
}

// distilbertFFN is the MLP.
func distilbertFFN(r distilbertConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("FFN")
	drop := m.Child("dropout", dropout(r.drop))
	lin1 := m.Child("lin1", linear(d, r.dim, r.inner, true))
	lin2 := m.Child("lin2", linear(d, r.inner, r.dim, true))
	act := m.Child("activation", activation(r.act))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(lin1, in[0]))
		x = f.Let("x", f.Call1(act, x))
		x = f.Let("x", f.Call1(lin2, x))
		return one(f.Let("x", f.Call1(drop, x)))
	}
	return m
}

// distilbertBlock is one block.
func distilbertBlock(r distilbertConfig, b Build, ctx *bertContext) *graph.Module {
	m := graph.NewModule("TransformerBlock")
	attention := m.Child("attention", distilbertAttention(r, b, ctx))
	norm := m.Child("sa_layer_norm", layerNorm(b.DType, r.dim))
	ffn := m.Child("ffn", distilbertFFN(r, b.DType))
	last := m.Child("output_layer_norm", layerNorm(b.DType, r.dim))
	m.Beside = func() (args, bound []*graph.Tensor) { return []*graph.Tensor{ctx.mask}, nil }
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		attended := f.Call(attention, in[0])
		result := f.Let("attention_output", attended[0])
		f.Let("_", attended[1])
		result = f.Let("attention_output", f.Call1(norm, f.Add(result, in[0])))
		wide := f.Let("ffn_output", f.Call1(ffn, result))
		return one(f.Let("ffn_output", f.Call1(last, f.Add(wide, result))))
	}
	return m
}

// distilbertModel builds embeddings and blocks.
func distilbertModel(r distilbertConfig, b Build, ctx *bertContext) (m, words *graph.Module, blocks []*graph.Module) {
	m = graph.NewModule("DistilBertModel")
	embeddings, words := distilbertEmbeddings(r, b.DType)
	m.Child("embeddings", embeddings)
	transformer := m.Child("transformer", graph.NewModule("Transformer"))
	list := transformer.Child("layer", graph.NewModule("ModuleList"))
	for i := range r.layers {
		blocks = append(blocks, list.Child(strconv.FormatInt(i, 10), distilbertBlock(r, b, ctx)))
	}
	transformer.Forward = inTurn(blocks)
	mask := encoderMask{padding: r.padding}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		mask.warn(f, b, in[0], in[1])
		embedded := f.Let("embeddings", f.Call1(embeddings, in[0]))
		ctx.mask = f.Let("attention_mask", mask.build(f, b, in[0], embedded, in[1], ctx.batch.Padded))
		return one(f.Call1(transformer, embedded))
	}
	return m, words, blocks
}

// inTurn is the forward of modules that run one after the other under the name
// hidden_states.
func inTurn(modules []*graph.Module) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", in[0])
		for m := range f.Layers(modules) {
			hidden = f.Let("hidden_states", f.Call1(m, hidden))
		}
		return one(hidden)
	}
}
