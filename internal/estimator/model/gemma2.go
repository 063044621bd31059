package model

import "memplan/internal/estimator/graph"

// gemma2Family is Gemma 2: windows in every other layer, four norms a layer,
// capped scores. Written from transformers 5.24 and 4.49,
// models/gemma2/modeling_gemma2.py.
var gemma2Family = Family{
	Name:           "gemma2",
	ModelTypes:     []string{"gemma2"},
	Source:         "huggingface/transformers:src/transformers/models/gemma2/modeling_gemma2.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newGemma2,
}

func newGemma2(c Config, b Build) (*Network, error) {
	l := readGemma(&c, "Gemma2")
	l.softcap = !c.Null("attn_logit_softcapping")
	window := c.Window(4096, "sliding_window")
	sliding := c.Sliding(l.layers, 2)
	if err := c.Err(); err != nil {
		return nil, err
	}
	if b.Versions.Transformers.Before(maskingUtilsSince) {
		b.UseCache = false // its cache was not made in training
	}
	m := newGemmaModel(l, b, window, sliding)
	if b.Versions.Transformers.Before(maskingUtilsSince) {
		m.ownMask = gemma2Mask
	}
	m.rotary = m.Child("rotary_emb", rotaryEmbedding(b, "Gemma2RotaryEmbedding", l.headDim))
	lm := m.causalLM("Gemma2ForCausalLM", "model", b, l.hidden, l.vocab, l.tied)
	if !c.Null("final_logit_softcapping") {
		lm.scores = softcapped
	}
	return m.network(lm), nil
}

// softcapped is scores / cap, its tanh, times cap.
func softcapped(f *graph.Frame, logits *graph.Tensor) *graph.Tensor {
	logits = f.Let("logits", f.MulScalar(logits))
	logits = f.Let("logits", f.Tanh(logits))
	return f.MulScalar(logits)
}

// newGemmaModel is the decoder of Gemma 2 and 3, without its rotary table.
func newGemmaModel(l llamaConfig, b Build, window int64, sliding []bool) *decoder {
	m := newDecoder(l.class + "Model")
	m.local, m.window = &llamaContext{}, window
	m.embedTokens = m.Child("embed_tokens", embedding(b.DType, l.vocab, l.hidden))
	m.scaleEmbeddings(l, b)
	m.stack("layers", l.layers, func(i int64) *graph.Module {
		if sliding[i] {
			return gemma2DecoderLayer(l, b, m.local, true)
		}
		return gemma2DecoderLayer(l, b, m.ctx, false)
	})
	m.norm = m.Child("norm", l.norm(b.DType, l.hidden))
	return m
}

// gemma2DecoderLayer is one block: attention and MLP, each between two norms
// and beside a residual.
func gemma2DecoderLayer(l llamaConfig, b Build, ctx *llamaContext, sliding bool) *graph.Module {
	m := graph.NewModule(l.class + "DecoderLayer")
	attention := m.Child("self_attn", llamaAttention(l, b, ctx))
	mlp := m.Child("mlp", llamaMLP(l, b.DType))
	norm := func(name string) *graph.Module { return m.Child(name, l.norm(b.DType, l.hidden)) }
	input, postAttention := norm("input_layernorm"), norm("post_attention_layernorm")
	preForward, postForward := norm("pre_feedforward_layernorm"), norm("post_feedforward_layernorm")
	m.Beside = ctx.beside(b.Versions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		if sliding {
			defer ctx.hideDistant(f, b)()
		}
		residual := f.Let("residual", in[0])
		hidden := f.Let("hidden_states", f.Call1(input, in[0]))
		attended := f.Call(attention, hidden)
		hidden = f.Let("hidden_states", attended[0])
		f.Let("_", attended[1])
		hidden = f.Let("hidden_states", f.Call1(postAttention, hidden))
		hidden = f.Let("hidden_states", f.Add(residual, hidden))

		residual = f.Let("residual", hidden)
		hidden = f.Let("hidden_states", f.Call1(preForward, hidden))
		hidden = f.Let("hidden_states", f.Call1(mlp, hidden))
		hidden = f.Let("hidden_states", f.Call1(postForward, hidden))
		return one(f.Let("hidden_states", f.Add(residual, hidden)))
	}
	return m
}

// gemma2Mask is Gemma2Model._update_causal_mask: an additive mask in any case,
// none for flash attention.
func gemma2Mask(f *graph.Frame, b Build, in maskInputs) *graph.Tensor {
	if b.Attention.Kernel == "flash" {
		return nil
	}
	in.exact = true
	return additiveCausalMask(f, in)
}

// hideDistant masks what lies outside the window, in the layer itself, as it
// was done before there was a mask for every kind of layer. It returns what
// puts the shared mask back.
func (c *llamaContext) hideDistant(f *graph.Frame, b Build) func() {
	shared := c.mask
	if shared != nil && b.Versions.Transformers.Before(maskingUtilsSince) {
		ones := f.Empty(graph.Bool, shared.Shape.Slice()...)
		distant := f.Let("sliding_window_mask", f.Triu(ones)) // tril
		c.mask = f.Let("attention_mask", f.Override(distant, shared))
	}
	return func() { c.mask = shared }
}
