package model

import (
	"slices"
	"strconv"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// debertaFamily is DeBERTa V2 and V3: scores of content against position and of
// position against content beside those of content. Written from transformers
// 5.24 and 4.49, models/deberta_v2/modeling_deberta_v2.py.
var debertaFamily = Family{
	Name:           "deberta-v2",
	ModelTypes:     []string{"deberta-v2"},
	Source:         "huggingface/transformers:src/transformers/models/deberta_v2/modeling_deberta_v2.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"query_proj", "value_proj"},
	New:            newDeberta,
}

// debertaConfig is what the program needs of a config.json beside BERT's.
type debertaConfig struct {
	bertConfig
	span                  int64 // half the table of relative positions
	placed, normalised    bool  // the input has positions; the table is normalised
	poolDrop, classesDrop float64
}

func readDeberta(c *Config, b Build) debertaConfig {
	r := debertaConfig{bertConfig: bertConfig{
		bertKind: bertKind{class: "DebertaV2", attribute: "deberta"},
		hidden:   c.Int("hidden_size"), inner: c.Int("intermediate_size"), layers: c.Int("num_hidden_layers"), heads: c.Int("num_attention_heads"),
		vocab: c.IntOr(128100, "vocab_size"), positions: c.IntOr(512, "max_position_embeddings"),
		tied: c.Bool(true, "tie_word_embeddings"), act: c.Activation("gelu", "hidden_act"),
		drop: c.Float(0.1, "hidden_dropout_prob"), attention: c.Float(0.1, "attention_probs_dropout_prob"),
		classes: c.Classes(b), padding: c.Token(0, "pad_token_id"),
	}}
	r.embedding = r.hidden
	r.span = r.positions
	if n, _ := c.values["max_relative_positions"].(float64); n > 0 {
		r.span = int64(n)
	}
	if n, _ := c.values["position_buckets"].(float64); n > 0 {
		r.span = int64(n)
	}
	r.placed, r.normalised = c.Bool(true, "position_biased_input"), c.Text("none", "norm_rel_ebd") == "layer_norm"
	r.poolDrop, r.classesDrop = c.Float(0, "pooler_dropout"), c.Float(r.drop, "cls_dropout")
	c.Divides("num_attention_heads", "hidden_size", r.heads, r.hidden)
	for _, key := range []string{"relative_attention", "share_att_key"} {
		if !c.Bool(false, key) {
			c.fields.Add("model.config."+key, c.values[key], "true: the other kind is not modelled", "true")
		}
	}
	for _, key := range []string{"conv_kernel_size", "type_vocab_size"} {
		if n, _ := c.values[key].(float64); n > 0 {
			c.fields.Add("model.config."+key, n, "0: more is not modelled", "0")
		}
	}
	if n := c.IntOr(r.hidden, "embedding_size"); n != r.hidden {
		c.fields.Add("model.config.embedding_size", n, "the hidden size: another is not modelled", strconv.FormatInt(r.hidden, 10))
	}
	return r
}

func newDeberta(c Config, b Build) (*Network, error) {
	if b.Attention.Kernel != "eager" {
		b.Attention = Attention{Kernel: c.eagerOr(b.Attention.Kernel)}
	}
	r := readDeberta(&c, b)
	head := c.Head(b, r.class, maskedLM, sequenceClassification, tokenClassification)
	if err := c.Err(); err != nil {
		return nil, err
	}
	base := newDebertaModel(r, b)
	root := graph.NewModule(r.class + head)
	root.Child(r.attribute, base.Module)
	net := &Network{Root: root, Embeddings: base.words, Blocks: base.layers}
	e := encoderHead{base: base.Module, batch: &base.batch, inline: head != maskedLM}
	classes := linear(b.DType, r.hidden, r.classes, true)
	switch head {
	case maskedLM:
		e.steps = bertMaskedLM(root, r.bertConfig, b, base.words)
		net.Head = e.steps[len(e.steps)-1]
	case sequenceClassification:
		pooler := root.Child("pooler", contextPooler(r, b.DType))
		e.steps = []*graph.Module{pooler, dropout(r.classesDrop), root.Child("classifier", classes)}
	default:
		e.steps = []*graph.Module{root.Child("dropout", dropout(r.drop)), root.Child("classifier", classes)}
	}
	e.put(net, b, head)
	root.Named("")
	return net, nil
}

// contextPooler looks at the first token through a dense layer.
func contextPooler(r debertaConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("ContextPooler")
	dense := m.Child("dense", linear(d, r.hidden, r.hidden, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		token := f.Let("context_token", f.Select(f.SliceWhole(in[0], 1), 1))
		token = f.Let("context_token", f.Dropout(token, r.poolDrop))
		pooled := f.Let("pooled_output", f.Call1(dense, token))
		return one(f.Let("pooled_output", f.Gelu(pooled)))
	}
	return m
}

// debertaModel is the encoder and what its layers share in a forward pass.
type debertaModel struct {
	*graph.Module
	words     *graph.Module
	layers    []*graph.Module
	batch     Batch
	mask      *graph.Tensor // [batch, 1, tokens, tokens]
	positions *graph.Tensor // the bucket of every pair of tokens
	table     *graph.Tensor // the embeddings of the buckets
}

// newDebertaModel builds the encoder. Its forward takes ids and mask and returns
// the last hidden states.
func newDebertaModel(r debertaConfig, b Build) *debertaModel {
	m := &debertaModel{Module: graph.NewModule("DebertaV2Model")}
	embeddings := m.Child("embeddings", debertaEmbeddings(r, b.DType))
	m.words = embeddings.Children[0]
	encoder := m.Child("encoder", m.encoder(r, b))
	padding := encoderMask{padding: r.padding}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		padding.look(f, in[0], in[1])
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		present := in[1]
		if present == nil {
			present = f.Let("attention_mask", f.Empty(graph.F32, batch, tokens))
		}
		f.Let("token_type_ids", f.Empty(graph.I64, batch, tokens))
		embedded := f.Let("embedding_output", f.Call1(embeddings, in[0], present))
		states := f.Call(encoder, embedded, present)
		for i, t := range states { // encoder_outputs
			f.Let("hidden_states["+strconv.Itoa(i)+"]", t)
		}
		return one(states[len(states)-1])
	}
	return m
}

// debertaEmbeddings are the words, normalised and hidden where there is padding.
func debertaEmbeddings(r debertaConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("DebertaV2Embeddings")
	words := m.Child("word_embeddings", embedding(d, r.vocab, r.hidden))
	var places *graph.Module
	if r.placed {
		places = m.Child("position_embeddings", embedding(d, r.positions, r.hidden))
	}
	norm := m.Child("LayerNorm", layerNorm(d, r.hidden))
	drop := m.Child("dropout", dropout(r.drop))
	ids := m.Buffer("position_ids", graph.I64, 1, r.positions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		place := f.Let("position_ids", f.Slice(ids.T(), 1, 0, in[0].Shape.D[1]))
		embeds := f.Let("inputs_embeds", f.Call1(words, in[0]))
		sum := f.Let("embeddings", embeds)
		if places != nil {
			sum = f.Let("embeddings", f.Add(embeds, f.Let("position_embeddings", f.Call1(places, place))))
		} else {
			f.Let("position_embeddings", f.Empty(embeds.DType, embeds.Shape.Slice()...))
		}
		sum = f.Let("embeddings", f.Call1(norm, sum))
		mask := f.Let("mask", f.To(f.Unsqueeze(in[1], 2), sum.DType))
		sum = f.Let("embeddings", f.Mul(sum, mask))
		return one(f.Let("embeddings", f.Call1(drop, sum)))
	}
	return m
}

// encoder runs the layers and returns the states before, between and after them:
// all are kept until the model returns.
func (m *debertaModel) encoder(r debertaConfig, b Build) *graph.Module {
	e := graph.NewModule("DebertaV2Encoder")
	list := e.Child("layer", graph.NewModule("ModuleList"))
	for i := range r.layers {
		m.layers = append(m.layers, list.Child(strconv.FormatInt(i, 10), m.layer(r, b)))
	}
	buckets := e.Child("rel_embeddings", embedding(b.DType, 2*r.span, r.hidden))
	var norm *graph.Module
	if r.normalised {
		norm = e.Child("LayerNorm", layerNorm(b.DType, r.hidden))
	}
	e.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		wide := f.Unsqueeze(f.Unsqueeze(in[1], 1), 2)
		wide = f.Let("extended_attention_mask", wide)
		m.mask = f.Let("attention_mask", f.Mul(wide, f.Unsqueeze(f.Squeeze(wide, -2), -1)))
		f.Del("extended_attention_mask")
		m.positions = f.Let("relative_pos", f.Func(relativeBuckets(b.Versions.Transformers.Before(debertaPlainSince)), in[0])[0])
		m.table = f.Let("rel_embeddings", buckets.Params[0].T())
		if norm != nil {
			m.table = f.Let("rel_embeddings", f.Call1(norm, m.table))
		}
		hidden := in[0]
		states := []*graph.Tensor{hidden}
		for i, layer := range m.layers {
			hidden = f.Let("all_hidden_states["+strconv.Itoa(i)+"]", f.Call1(layer, hidden))
			states = append(states, hidden)
		}
		return states
	}
	return e
}

// debertaPlainSince is when the function that makes buckets was a script no
// longer (read in 4.49 and 5.24; the older way is assumed in between).
var debertaPlainSince = spec.Version{5}

// relativeBuckets is build_relative_position: how far apart two tokens are, in
// buckets that widen with the distance. A script drops its values at their last
// use, not at its end.
func relativeBuckets(script bool) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		tokens := in[0].Shape.D[1]
		queries, keys := f.Let("q_ids", f.Arange(tokens)), f.Let("k_ids", f.Arange(tokens))
		apart := f.Let("rel_pos_ids", f.Sub(f.View(queries, tokens, 1), f.View(keys, 1, tokens)))
		apart = f.Let("rel_pos_ids", f.Func(logBuckets(script), apart)[0])
		apart = f.Let("rel_pos_ids", f.To(apart, graph.I64))
		return one(f.Unsqueeze(apart, 0))
	}
}

// logBuckets is make_log_bucket_position.
func logBuckets(script bool) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		done := func(names ...string) {
			if script {
				f.Del(names...)
			}
		}
		sign := f.Let("sign", f.Abs(in[0]))
		below := f.Compare(in[0], nil)
		near := f.And(below, f.Compare(in[0], nil))
		number := f.Empty(graph.I64)
		far := f.Abs(in[0])
		far = f.Let("abs_pos", f.Where(near, number, far))
		log := f.To(far, graph.F32)
		for range 5 { // its log, over the log of the range, times the buckets, rounded up, plus the middle
			log = f.MulScalar(log)
		}
		log = f.Let("log_pos", log)
		near = f.Compare(far, nil)
		done("abs_pos")
		linear := f.To(in[0], graph.F32)
		beyond := f.Mul(log, sign)
		done("log_pos", "sign")
		return one(f.Where(near, linear, beyond))
	}
}

// layer is one block.
func (m *debertaModel) layer(r debertaConfig, b Build) *graph.Module {
	l := graph.NewModule("DebertaV2Layer")
	attention := l.Child("attention", graph.NewModule("DebertaV2Attention"))
	self := attention.Child("self", m.disentangled(r, b))
	project := attention.Child("output", residualOutput("DebertaV2SelfOutput", r.bertConfig, b.DType, r.hidden))
	attention.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		attended := f.Let("self_output", f.Call1(self, in[0]))
		return one(f.Let("attention_output", f.Call1(project, attended, in[0])))
	}
	intermediate := l.Child("intermediate", bertIntermediate(r.bertConfig, b.DType))
	output := l.Child("output", residualOutput("DebertaV2Output", r.bertConfig, b.DType, r.inner))
	before := b.Versions.Transformers.Before(keywordsSince)
	l.Beside = func() (args, bound []*graph.Tensor) {
		args, bound = []*graph.Tensor{m.mask}, []*graph.Tensor{m.positions, m.table}
		if before {
			return slices.Concat(args, bound), nil
		}
		return args, bound
	}
	l.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		attended := f.Let("attention_output", f.Call1(attention, in[0]))
		wide := f.Let("intermediate_output", f.Call1(intermediate, attended))
		return one(f.Let("layer_output", f.Call1(output, wide, attended)))
	}
	return l
}

// disentangled is DisentangledSelfAttention.
func (m *debertaModel) disentangled(r debertaConfig, b Build) *graph.Module {
	s := graph.NewModule("DisentangledSelfAttention")
	query := s.Child("query_proj", linear(b.DType, r.hidden, r.hidden, true))
	key := s.Child("key_proj", linear(b.DType, r.hidden, r.hidden, true))
	value := s.Child("value_proj", linear(b.DType, r.hidden, r.hidden, true))
	heads := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // transpose_for_scores
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		x := f.Let("x", f.View(in[0], batch, tokens, r.heads, -1))
		return one(f.View(f.Contiguous(f.Permute(x, 0, 2, 1, 3)), -1, tokens, r.hidden/r.heads))
	}
	project := func(f *graph.Frame, layer *graph.Module, x *graph.Tensor) *graph.Tensor {
		return f.Func(heads, f.Call1(layer, x))[0]
	}
	s.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		q := f.Let("query_layer", project(f, query, in[0]))
		k := f.Let("key_layer", project(f, key, in[0]))
		v := f.Let("value_layer", project(f, value, in[0]))
		scores := f.Let("attention_scores", f.Bmm(q, f.MulScalar(f.Transpose(k, -1, -2)))) // over the scale
		table := f.Let("rel_embeddings", f.Dropout(m.table, r.drop))
		bias := f.Let("rel_att", f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			return one(disentangledBias(f, r, in, func(layer *graph.Module, x *graph.Tensor) *graph.Tensor { return project(f, layer, x) }, query, key))
		}, q, k, m.positions, table)[0])
		scores = f.Let("attention_scores", f.Add(scores, bias))
		scores = f.Let("attention_scores", f.View(scores, -1, r.heads, tokens, tokens))
		mask := f.Let("attention_mask", f.To(m.mask, graph.Bool))
		scores = f.Let("attention_scores", f.MaskedFill(scores, f.Not(mask)))
		probs := f.Let("attention_probs", f.Softmax(scores, scores.DType))
		probs = f.Let("attention_probs", f.Dropout(probs, r.attention))
		context := f.Let("context_layer", f.Bmm(f.View(probs, -1, tokens, tokens), v))
		context = f.View(context, -1, r.heads, tokens, r.hidden/r.heads)
		context = f.Let("context_layer", f.Contiguous(f.Permute(context, 0, 2, 1, 3)))
		return one(f.Let("context_layer", f.View(context, batch, tokens, -1)))
	}
	return s
}

// disentangledBias is disentangled_attention_bias: in are queries, keys, the
// buckets of the pairs and the embeddings of the buckets, which go through the
// projections of queries and keys.
func disentangledBias(f *graph.Frame, r debertaConfig, in []*graph.Tensor, project func(layer *graph.Module, x *graph.Tensor) *graph.Tensor, query, key *graph.Module) *graph.Tensor {
	q, k, tokens := in[0], in[1], in[0].Shape.D[1]
	times := q.Shape.D[0] / r.heads
	buckets := f.Let("relative_pos", f.Unsqueeze(in[2], 1))
	table := f.Let("rel_embeddings", f.Unsqueeze(f.SliceWhole(f.Slice(in[3], 0, 0, 2*r.span), 1), 0))
	posQuery := f.Let("pos_query_layer", f.RepeatFirst(project(query, table), times))
	posKey := f.Let("pos_key_layer", f.RepeatFirst(project(key, table), times))
	index := func(t *graph.Tensor) *graph.Tensor {
		return f.Expand(f.Squeeze(t, 0), q.Shape.D[0], tokens, tokens)
	}
	c2p := f.Let("c2p_att", f.Bmm(q, f.Transpose(posKey, -1, -2)))
	place := f.Let("c2p_pos", f.Clamp(f.AddScalar(buckets)))
	c2p = f.Let("c2p_att", f.GatherLast(c2p, index(place)))
	score := f.Let("score", f.AddScalar(f.MulScalar(c2p)))
	place = f.Let("p2c_pos", f.Clamp(f.AddScalar(f.Neg(buckets))))
	p2c := f.Let("p2c_att", f.Bmm(k, f.Transpose(posQuery, -1, -2)))
	p2c = f.Let("p2c_att", f.Transpose(f.GatherLast(p2c, index(place)), -1, -2))
	return f.Let("score", f.AddInPlace(score, f.MulScalar(p2c)))
}
