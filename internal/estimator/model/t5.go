package model

import (
	"strconv"
	"strings"

	"memplan/internal/estimator/graph"
)

// t5Family is T5, Flan-T5 and mT5: encoder and decoder whose attention has a
// bias by relative position. Written from transformers 5.24 and 4.49,
// models/t5/modeling_t5.py, models/mt5/modeling_mt5.py.
var t5Family = Family{
	Name:           "t5",
	ModelTypes:     []string{"t5", "mt5"},
	Source:         "huggingface/transformers:src/transformers/models/t5/modeling_t5.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"q", "v"},
	New:            newT5,
}

// t5Config is what the program needs of a config.json.
type t5Config struct {
	class                    string
	model, key, inner, heads int64
	layers, decoderLayers    int64
	vocab, buckets           int64
	drop                     float64
	gated, tied, scaled      bool
	act                      string
}

func readT5(c *Config) t5Config {
	r := t5Config{
		class: "T5", model: c.Int("d_model"), key: c.IntOr(64, "d_kv"), inner: c.Int("d_ff"), heads: c.Int("num_heads"),
		layers: c.Int("num_layers"), vocab: c.Int("vocab_size"), buckets: c.IntOr(32, "relative_attention_num_buckets"), drop: c.Float(0.1, "dropout_rate"),
	}
	mt5 := c.Text("t5", "model_type") == "mt5"
	r.decoderLayers = c.IntOr(r.layers, "num_decoder_layers")
	r.tied = c.Bool(!mt5, "tie_word_embeddings")
	r.scaled = r.tied && !mt5
	projection := "relu"
	if mt5 {
		r.class, projection = "MT5", "gated-gelu"
	}
	projection = c.Text(projection, "feed_forward_proj")
	r.act, r.gated = strings.CutPrefix(projection, "gated-")
	if projection == "gated-gelu" { // the name is older than the formula
		r.act = "gelu_new"
	}
	if activations[r.act] == nil {
		c.fields.Add("model.config.feed_forward_proj", projection, "relu, gated-gelu or another activation", "relu")
	}
	c.Head(Build{}, r.class, conditionalGeneration)
	return r
}

func newT5(c Config, b Build) (*Network, error) {
	r := readT5(&c)
	if b.Versions.Transformers.Before(maskingUtilsSince) {
		b.Attention = Attention{Kernel: c.eagerOr(b.Attention.Kernel)}
	}
	// The stacks copy the config when they are built: nobody's switch reaches
	// the decoder's cache, only checkpointing goes without it.
	b.UseCache = !b.Checkpointed
	if b.DType == graph.F16 {
		c.fields.Add("training.weights_dtype", "fp16", "bf16 or fp32: clamping of fp16 states is not modelled", "bf16")
	}
	if b.Attention.Kernel == "flash" {
		c.fields.Add("training.attention", "flash", "sdpa or eager: this family has no flash attention", "sdpa")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := graph.NewModule(r.class + conditionalGeneration)
	shared := root.Child("shared", embedding(b.DType, r.vocab, r.model))
	s := &seq2seq{build: b}
	encoder := newT5Stack(r, b, s, shared, false)
	decoder := newT5Stack(r, b, s, shared, true)
	root.Child("encoder", encoder.Module)
	root.Child("decoder", decoder.Module)
	head := root.Child("lm_head", linear(b.DType, r.model, r.vocab, false))
	if r.tied {
		head.Params[0].Tied = shared.Params[0]
	}
	s.encoder, s.decoder = encoder.Module, decoder.Module
	s.shift = shiftRightZeros
	s.head = func(f *graph.Frame, hidden *graph.Tensor) *graph.Tensor {
		if r.scaled {
			hidden = f.Let("sequence_output", f.MulScalar(hidden))
		}
		return f.Let("lm_logits", f.Call1(head, hidden))
	}
	net := s.network(root)
	net.Head, net.Embeddings, net.MoreEmbeddings = head, shared, []*graph.Module{encoder.tokens, decoder.tokens}
	net.Blocks = append(append(net.Blocks, encoder.blocks...), decoder.blocks...)
	return net, nil
}

// t5LayerNorm only scales.
func t5LayerNorm(d graph.DType, width int64) *graph.Module {
	m := graph.NewModule("T5LayerNorm")
	weight := m.Param("weight", d, width)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		variance := f.Let("variance", f.MeanLast(f.Pow(f.To(in[0], graph.F32))))
		hidden := f.Let("hidden_states", f.Mul(in[0], f.Rsqrt(f.AddScalar(variance))))
		if d != graph.F32 {
			hidden = f.Let("hidden_states", f.To(hidden, d))
		}
		return one(f.Mul(weight.T(), hidden))
	}
	return m
}

// t5Dense is the MLP, gated or not. Its last layer is given its input in the
// type of its weight.
func t5Dense(r t5Config, d graph.DType) *graph.Module {
	if r.gated {
		return t5GatedDense(r, d)
	}
	m := graph.NewModule("T5DenseActDense")
	wi := m.Child("wi", linear(d, r.model, r.inner, false))
	wo := m.Child("wo", linear(d, r.inner, r.model, false))
	drop := m.Child("dropout", dropout(r.drop))
	act := m.Child("act", activation(r.act))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Call1(wi, in[0]))
		hidden = f.Let("hidden_states", f.Call1(act, hidden))
		hidden = f.Let("hidden_states", f.Call1(drop, hidden))
		hidden = f.Let("hidden_states", f.To(hidden, d))
		return one(f.Let("hidden_states", f.Call1(wo, hidden)))
	}
	return m
}

func t5GatedDense(r t5Config, d graph.DType) *graph.Module {
	m := graph.NewModule("T5DenseGatedActDense")
	wi0 := m.Child("wi_0", linear(d, r.model, r.inner, false))
	wi1 := m.Child("wi_1", linear(d, r.model, r.inner, false))
	wo := m.Child("wo", linear(d, r.inner, r.model, false))
	drop := m.Child("dropout", dropout(r.drop))
	act := m.Child("act", activation(r.act))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		gelu := f.Let("hidden_gelu", f.Call1(act, f.Call1(wi0, in[0])))
		line := f.Let("hidden_linear", f.Call1(wi1, in[0]))
		hidden := f.Let("hidden_states", f.Mul(gelu, line))
		hidden = f.Let("hidden_states", f.Call1(drop, hidden))
		hidden = f.Let("hidden_states", f.To(hidden, d))
		return one(f.Let("hidden_states", f.Call1(wo, hidden)))
	}
	return m
}

// t5LayerFF is the MLP behind a norm and beside a residual.
func t5LayerFF(r t5Config, d graph.DType) *graph.Module {
	m := graph.NewModule("T5LayerFF")
	dense := m.Child("DenseReluDense", t5Dense(r, d))
	norm := m.Child("layer_norm", t5LayerNorm(d, r.model))
	drop := m.Child("dropout", dropout(r.drop))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		forwarded := f.Let("forwarded_states", f.Call1(norm, in[0]))
		forwarded = f.Let("forwarded_states", f.Call1(dense, forwarded))
		return one(f.Let("hidden_states", f.Add(in[0], f.Call1(drop, forwarded))))
	}
	return m
}

// t5LayerAttention is attention behind a norm and beside a residual: of the
// states with themselves or with the encoder's. It takes states, the encoder's
// (or nil) and the position bias, and returns states, bias and weights.
func t5LayerAttention(class, name string, r t5Config, d graph.DType, attention *graph.Module) *graph.Module {
	m := graph.NewModule(class)
	m.Child(name, attention)
	norm := m.Child("layer_norm", t5LayerNorm(d, r.model))
	drop := m.Child("dropout", dropout(r.drop))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		normed := f.Let("normed_hidden_states", f.Call1(norm, in[0]))
		result := f.Call(attention, normed, in[1], in[2])
		output := f.Let("attention_output", result[0])
		bias, weights := f.Let("position_bias", result[1]), f.Let("attn_weights", result[2])
		output = f.Let("attention_output", f.Add(in[0], f.Call1(drop, output)))
		return []*graph.Tensor{output, bias, weights}
	}
	return m
}

// t5Block is self-attention, in a decoder attention to the encoder, and MLP. It
// takes and returns states and the two position biases.
func t5Block(r t5Config, b Build, s *seq2seq, decoder, first bool) *graph.Module {
	m := graph.NewModule("T5Block")
	list := m.Child("layer", graph.NewModule("ModuleList"))
	self := list.Child("0", t5LayerAttention("T5LayerSelfAttention", "SelfAttention", r, b.DType, t5Attention(r, b, s, t5Place{decoder: decoder, bias: first, block: m})))
	var cross *graph.Module
	if decoder {
		cross = list.Child("1", t5LayerAttention("T5LayerCrossAttention", "EncDecAttention", r, b.DType, t5Attention(r, b, s, t5Place{decoder: true, cross: true, block: m})))
	}
	ff := list.Child(strconv.Itoa(len(list.Children)), t5LayerFF(r, b.DType))
	m.Beside = func() (args, bound []*graph.Tensor) { return s.masksOf(decoder), nil }
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		result := f.Call(self, in[0], nil, in[1])
		hidden, bias := f.Let("hidden_states", result[0]), f.Let("self_attn_position_bias", result[1])
		f.Let("_", result[2])
		var crossBias *graph.Tensor
		if cross != nil {
			result = f.Call(cross, hidden, in[2], in[3])
			hidden, crossBias = f.Let("hidden_states", result[0]), f.Let("cross_attn_position_bias", result[1])
			f.Let("_", result[2])
		}
		return []*graph.Tensor{f.Let("hidden_states", f.Call1(ff, hidden)), bias, crossBias}
	}
	return m
}

type t5Stack struct {
	*graph.Module
	tokens *graph.Module
	blocks []*graph.Module
}

// newT5Stack builds the encoder or the decoder. Its forward takes ids, the
// attention mask of the encoder's tokens and the encoder's states, nil there.
func newT5Stack(r t5Config, b Build, s *seq2seq, shared *graph.Module, decoder bool) *t5Stack {
	m := &t5Stack{Module: graph.NewModule("T5Stack")}
	tokens := m.Child("embed_tokens", embedding(b.DType, r.vocab, r.model))
	tokens.Params[0].Tied, m.tokens = shared.Params[0], tokens
	list := m.Child("block", graph.NewModule("ModuleList"))
	n := r.layers
	if decoder {
		n = r.decoderLayers
	}
	for i := range n {
		m.blocks = append(m.blocks, list.Child(strconv.FormatInt(i, 10), t5Block(r, b, s, decoder, i == 0)))
	}
	norm := m.Child("final_layer_norm", t5LayerNorm(b.DType, r.model))
	drop := m.Child("dropout", dropout(r.drop))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		embeds := f.Let("inputs_embeds", f.Call1(tokens, in[0]))
		s.makeMasks(f, embeds, in[1], decoder)
		hidden := f.Let("hidden_states", f.Call1(drop, embeds))
		var bias, crossBias *graph.Tensor
		for _, block := range m.blocks {
			result := f.Call(block, hidden, bias, in[2], crossBias)
			hidden = f.Let("hidden_states", result[0])
			bias, crossBias = f.Let("self_attention_position_bias", result[1]), f.Let("cross_attention_position_bias", result[2])
			bias, crossBias = f.Let("position_bias", bias), f.Let("encoder_decoder_position_bias", crossBias)
		}
		hidden = f.Let("hidden_states", f.Call1(norm, hidden))
		return one(f.Let("hidden_states", f.Call1(drop, hidden)))
	}
	return m
}
