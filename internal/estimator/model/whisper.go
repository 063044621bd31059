package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// whisperFamily is Whisper: an encoder of spectrograms and a decoder of text.
// Written from transformers 5.24, models/whisper/modeling_whisper.py.
var whisperFamily = Family{
	Name:           "whisper",
	ModelTypes:     []string{"whisper"},
	Source:         "huggingface/transformers:src/transformers/models/whisper/modeling_whisper.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newWhisper,
}

// whisperConfig is BART's and what is heard.
type whisperConfig struct {
	bartConfig
	mels, frames int64
}

func readWhisper(c *Config) whisperConfig {
	side := func(name string) bartSide {
		return bartSide{layers: c.IntOr(4, name+"_layers"), heads: c.IntOr(6, name+"_attention_heads"), inner: c.IntOr(1536, name+"_ffn_dim")}
	}
	r := whisperConfig{
		bartConfig: bartConfig{
			width: c.IntOr(384, "d_model"), vocab: c.IntOr(51865, "vocab_size"), positions: c.IntOr(448, "max_target_positions"),
			encoder: side("encoder"), decoder: side("decoder"), drop: c.Float(0, "dropout"), attention: c.Float(0, "attention_dropout"),
			activated: c.Float(0, "activation_dropout"), tied: c.Bool(true, "tie_word_embeddings"), act: c.Activation("gelu", "activation_function"),
		},
		mels: c.IntOr(80, "num_mel_bins"), frames: c.IntOr(1500, "max_source_positions"),
	}
	c.Divides("encoder_attention_heads", "d_model", r.encoder.heads, r.width)
	c.Divides("decoder_attention_heads", "d_model", r.decoder.heads, r.width)
	c.Refuses("apply_spec_augment")
	for _, key := range []string{"encoder_layerdrop", "decoder_layerdrop"} {
		if p := c.Float(0, key); p > 0 {
			c.fields.Add("model.config."+key, p, "0: layers that are left out at random are not modelled", "0")
		}
	}
	c.Head(Build{}, "Whisper", conditionalGeneration)
	return r
}

func newWhisper(c Config, b Build) (*Network, error) {
	r := readWhisper(&c)
	if err := c.Err(); err != nil {
		return nil, err
	}
	s := &seq2seq{build: b, shift: shiftRightZeros, shiftFirst: true}
	root := graph.NewModule("Whisper" + conditionalGeneration)
	base := root.Child("model", graph.NewModule("WhisperModel"))
	encoder, decoder := newWhisperEncoder(r, b, s), newWhisperDecoder(r, b, s)
	base.Child("encoder", encoder.Module)
	base.Child("decoder", decoder.Module)
	s.encoder, s.decoder = encoder.Module, decoder.Module
	head := root.Child("proj_out", linear(b.DType, r.width, r.vocab, false))
	if r.tied {
		head.Params[0].Tied = decoder.tokens.Params[0]
	}
	s.head = func(f *graph.Frame, hidden *graph.Tensor) *graph.Tensor {
		return f.Let("lm_logits", f.Call1(head, hidden))
	}
	net := s.network(root)
	net.Inputs = func(z Sizes) []Input { return whisperInputs(r, z) }
	net.Head, net.Embeddings, net.MoreEmbeddings = head, decoder.tokens, []*graph.Module{encoder.tokens}
	net.Blocks = append(append(net.Blocks, encoder.blocks...), decoder.blocks...)
	return net, nil
}

// whisperInputs are a spectrogram of as many frames as the job says and the
// labels.
func whisperInputs(r whisperConfig, s Sizes) []Input {
	labels := s.DecoderTokens
	if labels == 0 {
		labels = 128
	}
	return []Input{
		{"input_features", s.Continuous, graph.D(s.Batch, r.mels, s.Tokens)},
		{Labels, graph.I64, graph.D(s.Batch, labels)},
	}
}

// conv1D3 is nn.Conv1d with a kernel of 3 and one column of padding.
func conv1D3(d graph.DType, in, out, stride int64) *graph.Module {
	m := graph.NewModule("Conv1d")
	w, b := m.Param("weight", d, out, in, 3), m.Param("bias", d, out)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.Convolution(in[0], w.T(), b.T(), graph.Conv{Stride: graph.D(stride), Padding: graph.D(1), Dilation: graph.D(1), Groups: 1}))
	}
	return m
}

// whisperAttention scales its queries before the product and lays queries, keys
// and values out by heads.
func whisperAttention(r whisperConfig, b Build, s *seq2seq, heads int64, decoder, cross bool) *graph.Module {
	m := graph.NewModule("WhisperAttention")
	proj := func(name string) *graph.Module {
		return m.Child(name, linear(b.DType, r.width, r.width, name != "k_proj"))
	}
	key, value, query, out := proj("k_proj"), proj("v_proj"), proj("q_proj"), proj("out_proj")
	shape := attentionShape{groups: 1, dropout: r.attention, bidirectional: !decoder || cross}
	shape.eager = bertEagerAttention(shape)
	attend := attentionInterface(b, shape)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		split := func(t *graph.Tensor) *graph.Tensor {
			return f.Contiguous(f.Transpose(f.View(t, t.Shape.D[0], t.Shape.D[1], heads, -1), 1, 2))
		}
		states := in[0]
		if cross {
			states = in[1]
		}
		q := f.Let("query_states", split(f.MulScalar(f.Call1(query, in[0]))))
		k := f.Let("key_states", split(f.Call1(key, states)))
		v := f.Let("value_states", split(f.Call1(value, states)))
		if decoder {
			k, v = s.cache.update(f, "key_states", "value_states", k, v)
		}
		var mask *graph.Tensor
		if decoder && !cross {
			mask = s.decoderMask
		}
		result := attend(f, q, k, v, mask)
		output, weights := f.Let("attn_output", result[0]), f.Let("attn_weights", result[1])
		output = f.Let("attn_output", f.Contiguous(f.Reshape(output, output.Shape.D[0], output.Shape.D[1], -1)))
		return []*graph.Tensor{f.Let("attn_output", f.Call1(out, output)), weights}
	}
	return m
}

// whisperLayer is attention, in a decoder attention to the encoder, and MLP,
// each behind a norm and beside a residual. It takes states and the encoder's.
func whisperLayer(r whisperConfig, b Build, s *seq2seq, decoder bool) *graph.Module {
	class, side := "WhisperEncoderLayer", r.encoder
	if decoder {
		class, side = "WhisperDecoderLayer", r.decoder
	}
	m := graph.NewModule(class)
	norm := func(name string) *graph.Module { return m.Child(name, layerNorm(b.DType, r.width)) }
	self := m.Child("self_attn", whisperAttention(r, b, s, side.heads, decoder, false))
	selfNorm := norm("self_attn_layer_norm")
	var cross, crossNorm *graph.Module
	if decoder {
		cross = m.Child("encoder_attn", whisperAttention(r, b, s, side.heads, true, true))
		crossNorm = norm("encoder_attn_layer_norm")
	}
	fc1 := m.Child("fc1", linear(b.DType, r.width, side.inner, true))
	fc2 := m.Child("fc2", linear(b.DType, side.inner, r.width, true))
	last, act := norm("final_layer_norm"), activation(r.act)
	m.Beside = func() (args, bound []*graph.Tensor) {
		if decoder {
			return []*graph.Tensor{s.decoderMask}, nil
		}
		return nil, nil
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", in[0])
		attend := func(attention, norm *graph.Module) {
			residual := f.Let("residual", hidden)
			hidden = f.Let("hidden_states", f.Call1(norm, hidden))
			result := f.Call(attention, hidden, in[1])
			hidden = f.Let("hidden_states", result[0])
			f.Let("_", result[1])
			hidden = f.Let("hidden_states", f.Dropout(hidden, r.drop))
			hidden = f.Let("hidden_states", f.Add(residual, hidden))
		}
		attend(self, selfNorm)
		if cross != nil {
			attend(cross, crossNorm)
		}
		residual := f.Let("residual", hidden)
		hidden = f.Let("hidden_states", f.Call1(last, hidden))
		hidden = f.Let("hidden_states", f.Call1(act, f.Call1(fc1, hidden)))
		hidden = f.Let("hidden_states", f.Dropout(hidden, r.activated))
		hidden = f.Let("hidden_states", f.Call1(fc2, hidden))
		hidden = f.Let("hidden_states", f.Dropout(hidden, r.drop))
		hidden = f.Let("hidden_states", f.Add(residual, hidden))
		if !decoder && hidden.DType == graph.F16 {
			hidden = f.Let("hidden_states", f.ClampBetween(hidden))
		}
		return one(hidden)
	}
	return m
}

// layersOf adds a list of layers.
func (m *bartStack) layersOf(n int64, layer func() *graph.Module) {
	list := m.Child("layers", graph.NewModule("ModuleList"))
	for i := range n {
		m.blocks = append(m.blocks, list.Child(strconv.FormatInt(i, 10), layer()))
	}
}

// newWhisperEncoder builds the encoder: two convolutions, fixed positions, the
// layers. Its forward takes the spectrogram.
func newWhisperEncoder(r whisperConfig, b Build, s *seq2seq) *bartStack {
	m := &bartStack{Module: graph.NewModule("WhisperEncoder")}
	conv1 := m.Child("conv1", conv1D3(b.DType, r.mels, r.width, 1))
	conv2 := m.Child("conv2", conv1D3(b.DType, r.width, r.width, 2))
	places := m.Child("embed_positions", embedding(b.DType, r.frames, r.width))
	places.Params[0].Trained = false
	m.tokens = conv1
	m.layersOf(r.encoder.layers, func() *graph.Module { return whisperLayer(r, b, s, false) })
	norm := m.Child("layer_norm", layerNorm(b.DType, r.width))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		embeds := f.Let("inputs_embeds", f.Gelu(f.Call1(conv1, in[0])))
		embeds = f.Let("inputs_embeds", f.Gelu(f.Call1(conv2, embeds)))
		embeds = f.Let("inputs_embeds", f.Permute(embeds, 0, 2, 1))
		all := f.Let("all_positions", f.Arange(r.frames))
		hidden := f.Let("hidden_states", f.Add(embeds, f.Call1(places, all)))
		hidden = f.Let("hidden_states", f.Dropout(hidden, r.drop))
		for _, block := range m.blocks {
			hidden = f.Let("hidden_states", f.Call1(block, hidden, nil))
		}
		return one(f.Let("hidden_states", f.Call1(norm, hidden)))
	}
	return m
}

// newWhisperDecoder builds the decoder. Its forward takes ids and the encoder's
// states.
func newWhisperDecoder(r whisperConfig, b Build, s *seq2seq) *bartStack {
	m := &bartStack{Module: graph.NewModule("WhisperDecoder")}
	m.tokens = m.Child("embed_tokens", embedding(b.DType, r.vocab, r.width))
	places := m.Child("embed_positions", embedding(b.DType, r.positions, r.width))
	m.layersOf(r.decoder.layers, func() *graph.Module { return whisperLayer(r, b, s, true) })
	norm := m.Child("layer_norm", layerNorm(b.DType, r.width))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		embeds := f.Let("inputs_embeds", f.Call1(m.tokens, in[0]))
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		ids := f.Let("position_ids", f.AddScalar(f.Arange(tokens)))
		ids = f.Let("position_ids", f.Repeat(f.Unsqueeze(ids, 0), batch, tokens))
		positions := f.Let("positions", f.IndexRows(places.Params[0].T(), ids))
		hidden := f.Let("hidden_states", f.Add(embeds, positions))
		hidden = f.Let("hidden_states", f.Dropout(hidden, r.drop))
		own := maskInputs{embeds: embeds, positions: ids, cached: s.cache != nil}
		s.decoderMask = f.Let("causal_mask", createCausalMask(f, b, own))
		for _, block := range m.blocks {
			hidden = f.Let("hidden_states", f.Call1(block, hidden, in[2]))
		}
		return one(f.Let("hidden_states", f.Call1(norm, hidden)))
	}
	return m
}
