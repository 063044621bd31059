package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// bartFamily is BART. Written from transformers 5.24,
// models/bart/modeling_bart.py.
var bartFamily = Family{
	Name:           "bart",
	ModelTypes:     []string{"bart"},
	Source:         "huggingface/transformers:src/transformers/models/bart/modeling_bart.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newBart,
}

// bartConfig is what the program needs of a config.json.
type bartConfig struct {
	width, vocab, positions    int64
	encoder, decoder           bartSide
	drop, attention, activated float64
	tied                       bool
	act                        string
}

// bartSide is the shape of encoder or decoder.
type bartSide struct{ layers, heads, inner int64 }

// bartOffset is how many rows its table of positions has in front.
const bartOffset = 2

func readBart(c *Config) bartConfig {
	side := func(name string) bartSide {
		return bartSide{layers: c.IntOr(12, name+"_layers"), heads: c.IntOr(16, name+"_attention_heads"), inner: c.IntOr(4096, name+"_ffn_dim")}
	}
	r := bartConfig{
		width: c.IntOr(1024, "d_model"), vocab: c.Int("vocab_size"), positions: c.IntOr(1024, "max_position_embeddings"),
		encoder: side("encoder"), decoder: side("decoder"), drop: c.Float(0.1, "dropout"), attention: c.Float(0, "attention_dropout"),
		activated: c.Float(0, "activation_dropout"), tied: c.Bool(true, "tie_word_embeddings"), act: c.Activation("gelu", "activation_function"),
	}
	c.Divides("encoder_attention_heads", "d_model", r.encoder.heads, r.width)
	c.Divides("decoder_attention_heads", "d_model", r.decoder.heads, r.width)
	for _, key := range []string{"encoder_layerdrop", "decoder_layerdrop"} {
		if p := c.Float(0, key); p > 0 {
			c.fields.Add("model.config."+key, p, "0: layers that are left out at random are not modelled", "0")
		}
	}
	c.Head(Build{}, "Bart", conditionalGeneration)
	return r
}

func newBart(c Config, b Build) (*Network, error) {
	r := readBart(&c)
	if err := c.Err(); err != nil {
		return nil, err
	}
	b.UseCache = false // labels turn it off
	s := &seq2seq{build: b, shift: shiftRightZeros, shiftFirst: true, onesMask: true}
	root := graph.NewModule("Bart" + conditionalGeneration)
	base := root.Child("model", graph.NewModule("BartModel"))
	shared := base.Child("shared", scaledEmbedding(b.DType, r.vocab, r.width))
	encoder := newBartStack(r, b, s, shared, false)
	decoder := newBartStack(r, b, s, shared, true)
	base.Child("encoder", encoder.Module)
	base.Child("decoder", decoder.Module)
	s.encoder, s.decoder = encoder.Module, decoder.Module
	bias := root.Buffer("final_logits_bias", b.DType, 1, r.vocab)
	head := root.Child("lm_head", linear(b.DType, r.width, r.vocab, false))
	if r.tied {
		head.Params[0].Tied = shared.Params[0]
	}
	s.head = func(f *graph.Frame, hidden *graph.Tensor) *graph.Tensor {
		logits := f.Let("lm_logits", f.Call1(head, hidden))
		return f.Let("lm_logits", f.Add(logits, bias.T()))
	}
	net := s.network(root)
	net.Head, net.Embeddings, net.MoreEmbeddings = head, shared, []*graph.Module{encoder.tokens, decoder.tokens}
	net.Blocks = append(append(net.Blocks, encoder.blocks...), decoder.blocks...)
	return net, nil
}

// scaledEmbedding is BartScaledWordEmbedding: the rows times a number.
func scaledEmbedding(d graph.DType, rows, width int64) *graph.Module {
	m := embedding(d, rows, width)
	m.Class = "BartScaledWordEmbedding"
	look := m.Forward
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.MulScalar(look(f, in...)[0]))
	}
	return m
}

// bartAttention attends to the states themselves or, given the encoder's, to
// those.
func bartAttention(r bartConfig, b Build, s *seq2seq, heads int64, decoder, cross bool) *graph.Module {
	m := graph.NewModule("BartAttention")
	proj := func(name string) *graph.Module { return m.Child(name, linear(b.DType, r.width, r.width, true)) }
	key, value, query, out := proj("k_proj"), proj("v_proj"), proj("q_proj"), proj("out_proj")
	shape := attentionShape{groups: 1, dropout: r.attention, bidirectional: !decoder || cross}
	shape.eager = bertEagerAttention(shape)
	attend := attentionInterface(b, shape)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		split := func(t *graph.Tensor) *graph.Tensor {
			return f.Transpose(f.View(t, t.Shape.D[0], t.Shape.D[1], heads, -1), 1, 2)
		}
		states := in[0]
		if cross {
			states = in[1]
		}
		q := f.Let("query_states", split(f.Call1(query, in[0])))
		k, v := f.Let("key_states", f.Call1(key, states)), f.Let("value_states", f.Call1(value, states))
		k, v = f.Let("key_states", split(k)), f.Let("value_states", split(v))
		if decoder {
			k, v = s.cache.update(f, "key_states", "value_states", k, v)
		}
		result := attend(f, q, k, v, s.maskOf(decoder, cross))
		output, weights := f.Let("attn_output", result[0]), f.Let("attn_weights", result[1])
		output = f.Let("attn_output", f.Contiguous(f.Reshape(output, output.Shape.D[0], output.Shape.D[1], -1)))
		return []*graph.Tensor{f.Let("attn_output", f.Call1(out, output)), weights}
	}
	return m
}

// bartPositions is the forward of BartLearnedPositionalEmbedding: the decoder
// numbers its tokens itself.
func bartPositions(table *graph.Module) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		ids := in[1]
		if ids == nil {
			batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
			ids = f.Let("position_ids", f.Expand(f.Arange(tokens), batch, tokens))
		} else {
			ids = f.Let("position_ids", f.Unsqueeze(ids, 0))
		}
		return one(f.Call1(table, f.AddScalar(ids)))
	}
}

// bartLayer is attention, in a decoder attention to the encoder, and MLP, each
// beside a residual and before a norm. It takes states and the encoder's.
func bartLayer(r bartConfig, b Build, s *seq2seq, decoder bool) *graph.Module {
	class, side := "BartEncoderLayer", r.encoder
	if decoder {
		class, side = "BartDecoderLayer", r.decoder
	}
	m := graph.NewModule(class)
	norm := func(name string) *graph.Module { return m.Child(name, layerNorm(b.DType, r.width)) }
	self := m.Child("self_attn", bartAttention(r, b, s, side.heads, decoder, false))
	selfNorm := norm("self_attn_layer_norm")
	var cross, crossNorm *graph.Module
	if decoder {
		cross = m.Child("encoder_attn", bartAttention(r, b, s, side.heads, true, true))
		crossNorm = norm("encoder_attn_layer_norm")
	}
	fc1 := m.Child("fc1", linear(b.DType, r.width, side.inner, true))
	fc2 := m.Child("fc2", linear(b.DType, side.inner, r.width, true))
	last, act := norm("final_layer_norm"), activation(r.act)
	m.Beside = func() (args, bound []*graph.Tensor) {
		if decoder {
			return []*graph.Tensor{s.decoderMask}, []*graph.Tensor{s.crossMask}
		}
		return []*graph.Tensor{s.encoderMask}, nil
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", in[0])
		attend := func(attention, norm *graph.Module) {
			residual := f.Let("residual", hidden)
			result := f.Call(attention, hidden, in[1])
			hidden = f.Let("hidden_states", result[0])
			f.Let("_", result[1])
			hidden = f.Let("hidden_states", f.Dropout(hidden, r.drop))
			hidden = f.Let("hidden_states", f.Add(residual, hidden))
			hidden = f.Let("hidden_states", f.Call1(norm, hidden))
		}
		attend(self, selfNorm)
		if cross != nil {
			attend(cross, crossNorm)
		}
		residual := f.Let("residual", hidden)
		hidden = f.Let("hidden_states", f.Call1(act, f.Call1(fc1, hidden)))
		hidden = f.Let("hidden_states", f.Dropout(hidden, r.activated))
		hidden = f.Let("hidden_states", f.Call1(fc2, hidden))
		hidden = f.Let("hidden_states", f.Dropout(hidden, r.drop))
		hidden = f.Let("hidden_states", f.Add(residual, hidden))
		return one(f.Let("hidden_states", f.Call1(last, hidden)))
	}
	return m
}

type bartStack struct {
	*graph.Module
	tokens *graph.Module
	blocks []*graph.Module
}

// newBartStack builds the encoder or the decoder. Its forward takes ids, the
// attention mask of the encoder's tokens and the encoder's states, nil there.
func newBartStack(r bartConfig, b Build, s *seq2seq, shared *graph.Module, decoder bool) *bartStack {
	class, layers := "BartEncoder", r.encoder.layers
	if decoder {
		class, layers = "BartDecoder", r.decoder.layers
	}
	m := &bartStack{Module: graph.NewModule(class)}
	m.tokens = m.Child("embed_tokens", scaledEmbedding(b.DType, r.vocab, r.width))
	m.tokens.Params[0].Tied = shared.Params[0]
	places := m.Child("embed_positions", embedding(b.DType, r.positions+bartOffset, r.width))
	list := m.Child("layers", graph.NewModule("ModuleList"))
	for i := range layers {
		m.blocks = append(m.blocks, list.Child(strconv.FormatInt(i, 10), bartLayer(r, b, s, decoder)))
	}
	norm := m.Child("layernorm_embedding", layerNorm(b.DType, r.width))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		embeds := f.Let("inputs_embeds", f.Call1(m.tokens, in[0]))
		var ids *graph.Tensor
		if decoder {
			ids = f.Let("position_ids", f.AddScalar(f.Arange(in[0].Shape.D[1])))
			s.makeMasks(f, embeds, in[1], true)
		}
		positions := f.Let("positions", f.Func(bartPositions(places), in[0], ids)[0])
		hidden := f.Let("hidden_states", f.Add(embeds, positions))
		hidden = f.Let("hidden_states", f.Call1(norm, hidden))
		hidden = f.Let("hidden_states", f.Dropout(hidden, r.drop))
		if !decoder {
			s.makeMasks(f, embeds, in[1], false)
		}
		for _, block := range m.blocks {
			hidden = f.Let("hidden_states", f.Call1(block, hidden, in[2]))
		}
		return one(hidden)
	}
	return m
}
