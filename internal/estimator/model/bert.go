package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// bertFamily is BERT and what shares its layers: RoBERTa and XLM-RoBERTa (other
// positions and heads), ELECTRA (narrow embeddings). Written from transformers
// 5.24 and 4.49, models/{bert,roberta,xlm_roberta,electra}.
var bertFamily = Family{
	Name:           "bert",
	ModelTypes:     []string{"bert", "roberta", "xlm-roberta", "electra"},
	Source:         "huggingface/transformers:src/transformers/models/bert/modeling_bert.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"query", "value"},
	New:            newBert,
}

// bertKind is what the members of the family do differently.
type bertKind struct {
	class, attribute string // BertModel is the child bert of BertForMaskedLM
	positionsOfIDs   bool   // positions are counted from the ids that are no padding
	pooled           bool   // the classifier looks at the pooler's output
	headActivation   string // of the classifier without pooler
	headFirst        bool   // since transformers 5 heads are defined before the model
}

var bertKinds = map[string]bertKind{
	"bert":        {class: "Bert", attribute: "bert", pooled: true},
	"roberta":     {class: "Roberta", attribute: "roberta", positionsOfIDs: true, headActivation: "tanh"},
	"xlm-roberta": {class: "XLMRoberta", attribute: "roberta", positionsOfIDs: true, headActivation: "tanh", headFirst: true},
	"electra":     {class: "Electra", attribute: "electra", headActivation: "gelu"},
}

// bertPadding are the padding tokens of the kinds' config classes.
var bertPadding = map[string]int64{"bert": 0, "roberta": 1, "xlm-roberta": 1, "electra": 0}

// bertConfig is what the program needs of a config.json.
type bertConfig struct {
	bertKind
	hidden, inner, layers, heads int64
	embedding                    int64 // width of the embeddings
	vocab, positions, types      int64
	tied                         bool
	act                          string
	drop, attention, headDropout float64
	classes                      int64
	padding                      int64 // the padding token's id, -1 for none
}

func readBert(c *Config, b Build) bertConfig {
	r := bertConfig{
		bertKind: bertKinds[c.Text("bert", "model_type")],
		hidden:   c.Int("hidden_size"), inner: c.Int("intermediate_size"), layers: c.Int("num_hidden_layers"), heads: c.Int("num_attention_heads"),
		vocab: c.Int("vocab_size"), positions: c.IntOr(512, "max_position_embeddings"), types: c.IntOr(2, "type_vocab_size"),
		tied: c.Bool(true, "tie_word_embeddings"), act: c.Activation("gelu", "hidden_act"),
		drop: c.Float(0.1, "hidden_dropout_prob"), attention: c.Float(0.1, "attention_probs_dropout_prob"),
		classes: c.Classes(b), padding: c.Token(bertPadding[c.Text("bert", "model_type")], "pad_token_id"),
	}
	r.embedding = r.hidden
	if r.class == "Electra" {
		r.embedding = c.IntOr(128, "embedding_size")
	}
	r.headDropout = c.Float(r.drop, "classifier_dropout")
	c.Divides("num_attention_heads", "hidden_size", r.heads, r.hidden)
	c.Refuses("is_decoder", "add_cross_attention")
	c.OneOf("position_embedding_type", "absolute")
	return r
}

func newBert(c Config, b Build) (*Network, error) {
	if c.Text("bert", "model_type") == "electra" && b.Versions.Transformers.Before(maskingUtilsSince) {
		b.Attention = Attention{Kernel: c.eagerOr(b.Attention.Kernel)}
	}
	r := readBert(&c, b)
	head := c.Head(b, r.class, maskedLM, sequenceClassification, questionAnswering, tokenClassification)
	if err := c.Err(); err != nil {
		return nil, err
	}
	base := newBertModel(r, b, r.pooled && head == sequenceClassification)
	root := graph.NewModule(r.class + head)
	headFirst := r.headFirst && b.Versions.Transformers.AtLeast(maskingUtilsSince)
	if !headFirst {
		root.Child(r.attribute, base.Module)
	}
	net := &Network{Root: root, Embeddings: base.words, Blocks: base.layers}
	e := encoderHead{base: base.Module, batch: &base.ctx.batch}
	switch head {
	case maskedLM:
		e.steps = bertMaskedLM(root, r, b, base.words)
		net.Head = e.steps[len(e.steps)-1]
	case sequenceClassification:
		e.steps = bertClassifier(root, r, b)
		e.pooled, e.inline, e.first = r.pooled, r.pooled, !r.pooled
	case tokenClassification:
		e.inline = true
		e.steps = []*graph.Module{root.Child("dropout", dropout(r.headDropout)), root.Child("classifier", linear(b.DType, r.hidden, r.classes, true))}
	default:
		e.steps = []*graph.Module{root.Child("qa_outputs", linear(b.DType, r.hidden, 2, true))}
	}
	if headFirst {
		root.Child(r.attribute, base.Module)
	}
	e.put(net, b, head)
	root.Named("")
	return net, nil
}

// bertContext is what every layer of one forward pass shares.
type bertContext struct {
	batch Batch
	mask  *graph.Tensor
}

// bertEmbeddings adds words, token types and positions.
func bertEmbeddings(r bertConfig, b Build) (m, words *graph.Module) {
	m = graph.NewModule(r.class + "Embeddings")
	words = m.Child("word_embeddings", embedding(b.DType, r.vocab, r.embedding))
	before5 := b.Versions.Transformers.Before(maskingUtilsSince)
	places := embedding(b.DType, r.positions, r.embedding)
	last := r.positionsOfIDs && !before5
	if !last {
		m.Child("position_embeddings", places)
	}
	types := m.Child("token_type_embeddings", embedding(b.DType, r.types, r.embedding))
	norm := m.Child("LayerNorm", layerNorm(b.DType, r.embedding))
	drop := m.Child("dropout", dropout(r.drop))
	if last {
		m.Child("position_embeddings", places)
	}
	ids := m.Buffer("position_ids", graph.I64, 1, r.positions)
	kinds := m.Buffer("token_type_ids", graph.I64, 1, r.positions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		place := f.Let("position_ids", f.Slice(ids.T(), 1, 0, tokens))
		if r.positionsOfIDs {
			place = f.Let("position_ids", positionsFromIDs(f, in[0]))
		}
		kind := f.Let("token_type_ids", tokenTypes(f, kinds.T(), place, before5))
		kind = f.Let("token_type_ids", f.Expand(kind, batch, tokens))
		embeds := f.Let("inputs_embeds", f.Call1(words, in[0]))
		kindEmbeds := f.Let("token_type_embeddings", f.Call1(types, kind))
		sum := f.Let("embeddings", f.Add(embeds, kindEmbeds))
		placeEmbeds := f.Let("position_embeddings", f.Call1(places, place))
		if before5 {
			sum = f.Let("embeddings", f.AddInPlace(sum, placeEmbeds))
		} else {
			sum = f.Let("embeddings", f.Add(sum, placeEmbeds))
		}
		sum = f.Let("embeddings", f.Call1(norm, sum))
		return one(f.Let("embeddings", f.Call1(drop, sum)))
	}
	return m, words
}

// tokenTypes are the zeros of the buffer: gathered by position since 5, cut to
// length before.
func tokenTypes(f *graph.Frame, buffer, positions *graph.Tensor, before5 bool) *graph.Tensor {
	if before5 {
		return f.Slice(buffer, 1, 0, positions.Shape.D[1])
	}
	return f.GatherDim(f.Expand(buffer, positions.Shape.D[0], buffer.Shape.D[1]), positions)
}

// positionsFromIDs is create_position_ids_from_input_ids.
func positionsFromIDs(f *graph.Frame, ids *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		mask := f.Let("mask", f.To(f.Compare(ids, nil), graph.I32))
		counted := f.AddScalar(f.To(f.Cumsum(mask), graph.I32))
		counted = f.Let("incremental_indices", f.Mul(counted, mask))
		return one(f.AddScalar(f.To(counted, graph.I64)))
	})[0]
}

// bertSelfAttention projects queries, keys and values and attends.
func bertSelfAttention(r bertConfig, b Build, ctx *bertContext) *graph.Module {
	m := graph.NewModule(r.class + "SelfAttention")
	query := m.Child("query", linear(b.DType, r.hidden, r.hidden, true))
	key := m.Child("key", linear(b.DType, r.hidden, r.hidden, true))
	value := m.Child("value", linear(b.DType, r.hidden, r.hidden, true))
	m.Child("dropout", dropout(r.attention))
	attend := encoderAttention(b, attentionShape{groups: 1, dropout: r.attention})
	// The eager module turned its queries last.
	late := b.Attention.Kernel == "eager" && b.Versions.Transformers.Before(maskingUtilsSince)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		heads := func(t *graph.Tensor) *graph.Tensor {
			return f.Transpose(f.View(t, batch, tokens, r.heads, -1), 1, 2)
		}
		q := f.Let("query_layer", f.Call1(query, in[0]))
		if !late {
			q = f.Let("query_layer", heads(q))
		}
		k := f.Let("key_layer", heads(f.Call1(key, in[0])))
		v := f.Let("value_layer", heads(f.Call1(value, in[0])))
		if late {
			q = f.Let("query_layer", heads(q))
		}
		result := attend(f, q, k, v, ctx.mask)
		output := f.Let("attn_output", result[0])
		weights := f.Let("attn_weights", result[1])
		output = f.Let("attn_output", f.Contiguous(f.Reshape(output, batch, tokens, -1)))
		return []*graph.Tensor{output, weights}
	}
	return m
}

// residualOutput is the dense layer behind attention or MLP: dropout, residual
// and norm.
func residualOutput(class string, r bertConfig, d graph.DType, in int64) *graph.Module {
	m := graph.NewModule(class)
	dense := m.Child("dense", linear(d, in, r.hidden, true))
	norm := m.Child("LayerNorm", layerNorm(d, r.hidden))
	drop := m.Child("dropout", dropout(r.drop))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Call1(dense, in[0]))
		hidden = f.Let("hidden_states", f.Call1(drop, hidden))
		return one(f.Let("hidden_states", f.Call1(norm, f.Add(hidden, in[1]))))
	}
	return m
}

// bertAttention is self-attention and its output layer.
func bertAttention(r bertConfig, b Build, ctx *bertContext) *graph.Module {
	m := graph.NewModule(r.class + "Attention")
	self := m.Child("self", bertSelfAttention(r, b, ctx))
	output := m.Child("output", residualOutput(r.class+"SelfOutput", r, b.DType, r.hidden))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		attended := f.Call(self, in[0])
		result := f.Let("attention_output", attended[0])
		weights := f.Let("attn_weights", attended[1])
		result = f.Let("attention_output", f.Call1(output, result, in[0]))
		return []*graph.Tensor{result, weights}
	}
	return m
}

// bertIntermediate is the widening half of the MLP.
func bertIntermediate(r bertConfig, d graph.DType) *graph.Module {
	m := graph.NewModule(r.class + "Intermediate")
	dense := m.Child("dense", linear(d, r.hidden, r.inner, true))
	act := m.Child("intermediate_act_fn", activation(r.act))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Call1(dense, in[0]))
		return one(f.Let("hidden_states", f.Call1(act, hidden)))
	}
	return m
}

// bertLayer is one block.
func bertLayer(r bertConfig, b Build, ctx *bertContext) *graph.Module {
	m := graph.NewModule(r.class + "Layer")
	attention := m.Child("attention", bertAttention(r, b, ctx))
	intermediate := m.Child("intermediate", bertIntermediate(r, b.DType))
	output := m.Child("output", residualOutput(r.class+"Output", r, b.DType, r.inner))
	m.Beside = func() (args, bound []*graph.Tensor) { return []*graph.Tensor{ctx.mask}, nil }
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		attended := f.Call(attention, in[0])
		result := f.Let("self_attention_output", attended[0])
		f.Let("_", attended[1])
		return one(f.Let("layer_output", f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			wide := f.Let("intermediate_output", f.Call1(intermediate, in[0]))
			return one(f.Let("layer_output", f.Call1(output, wide, in[0])))
		}, result)[0]))
	}
	return m
}

// bertEncoder runs the layers one after the other.
func bertEncoder(r bertConfig, b Build, ctx *bertContext) (m *graph.Module, layers []*graph.Module) {
	m = graph.NewModule(r.class + "Encoder")
	list := m.Child("layer", graph.NewModule("ModuleList"))
	for i := range r.layers {
		layers = append(layers, list.Child(strconv.FormatInt(i, 10), bertLayer(r, b, ctx)))
	}
	before5 := b.Versions.Transformers.Before(maskingUtilsSince)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", in[0])
		for layer := range f.Layers(layers) {
			hidden = f.Let("hidden_states", f.Call1(layer, hidden))
			if before5 {
				f.Let("layer_outputs", hidden)
			}
		}
		return one(hidden)
	}
	return m, layers
}

// bertPooler looks at the first token through a dense layer.
func bertPooler(r bertConfig, d graph.DType) *graph.Module {
	m := graph.NewModule(r.class + "Pooler")
	dense := m.Child("dense", linear(d, r.hidden, r.hidden, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		first := f.Let("first_token_tensor", f.Select(f.SliceWhole(in[0], 1), 1))
		pooled := f.Let("pooled_output", f.Call1(dense, first))
		return one(f.Let("pooled_output", f.Tanh(pooled)))
	}
	return m
}

type bertModel struct {
	*graph.Module
	words  *graph.Module
	layers []*graph.Module
	ctx    *bertContext
}

// newBertModel builds the encoder. Its forward takes ids and mask and returns
// the last hidden states and, with a pooler, the pooled first token.
func newBertModel(r bertConfig, b Build, pooled bool) *bertModel {
	m := &bertModel{Module: graph.NewModule(r.class + "Model"), ctx: &bertContext{}}
	embeddings, words := bertEmbeddings(r, b)
	m.words = words
	m.Child("embeddings", embeddings)
	var project, pooler *graph.Module
	mask := encoderMask{padding: r.padding}
	maskFirst := r.class == "Electra" && b.Versions.Transformers.Before(maskingUtilsSince)
	if r.embedding != r.hidden {
		project = m.Child("embeddings_project", linear(b.DType, r.embedding, r.hidden, true))
	}
	encoder, layers := bertEncoder(r, b, m.ctx)
	m.Child("encoder", encoder)
	m.layers = layers
	if pooled {
		pooler = m.Child("pooler", bertPooler(r, b.DType))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		makeMask := func(embedded *graph.Tensor) {
			m.ctx.mask = f.Let("attention_mask", mask.build(f, b, in[0], embedded, in[1], m.ctx.batch.Padded))
		}
		mask.warn(f, b, in[0], in[1])
		if maskFirst {
			makeMask(nil)
		}
		embedded := f.Let("embedding_output", f.Call1(embeddings, in[0]))
		if !maskFirst {
			makeMask(embedded)
		}
		if project != nil {
			embedded = f.Let("embedding_output", f.Call1(project, embedded))
		}
		sequence := f.Let("sequence_output", f.Call1(encoder, embedded))
		if pooler == nil {
			return []*graph.Tensor{sequence, nil}
		}
		return []*graph.Tensor{sequence, f.Let("pooled_output", f.Call1(pooler, sequence))}
	}
	return m
}

// bertMaskedLM adds the language modelling head of the kind and returns its
// modules in the order they run, the output layer last.
func bertMaskedLM(root *graph.Module, r bertConfig, b Build, words *graph.Module) []*graph.Module {
	act := activation(r.act)
	dense, norm := linear(b.DType, r.hidden, r.embedding, true), layerNorm(b.DType, r.embedding)
	decoder := linear(b.DType, r.embedding, r.vocab, true)
	if r.tied {
		decoder.Params[0].Tied = words.Params[0]
	}
	var head *graph.Module
	switch {
	case r.class == "Electra":
		act = activation("gelu")
		transform := root.Child("generator_predictions", graph.NewModule("ElectraGeneratorPredictions"))
		transform.Child("LayerNorm", norm)
		transform.Child("dense", dense)
		return []*graph.Module{dense, act, norm, root.Child("generator_lm_head", decoder)}
	case r.positionsOfIDs:
		act = activation("gelu")
		head = root.Child("lm_head", graph.NewModule(r.class+"LMHead"))
		head.Child("dense", dense)
		head.Child("layer_norm", norm)
	default:
		head = root.Child("cls", graph.NewModule("BertOnlyMLMHead")).Child("predictions", graph.NewModule("BertLMPredictionHead"))
		transform := head.Child("transform", graph.NewModule("BertPredictionHeadTransform"))
		transform.Child("dense", dense)
		transform.Child("LayerNorm", norm)
	}
	bias := head.Param("bias", b.DType, r.vocab)
	if r.tied {
		decoder.Params[1].Tied = bias
	}
	return []*graph.Module{dense, act, norm, head.Child("decoder", decoder)}
}

// bertClassifier adds the classifier of the kind and returns its modules in the
// order they run.
func bertClassifier(root *graph.Module, r bertConfig, b Build) []*graph.Module {
	drop := dropout(r.headDropout)
	if r.pooled {
		return []*graph.Module{root.Child("dropout", drop), root.Child("classifier", linear(b.DType, r.hidden, r.classes, true))}
	}
	head := root.Child("classifier", graph.NewModule(r.class+"ClassificationHead"))
	dense := head.Child("dense", linear(b.DType, r.hidden, r.hidden, true))
	head.Child("dropout", drop)
	return []*graph.Module{drop, dense, activation(r.headActivation), drop, head.Child("out_proj", linear(b.DType, r.hidden, r.classes, true))}
}
