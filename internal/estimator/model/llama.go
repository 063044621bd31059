package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

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

// llamaConfig is what the program needs of a config.json.
type llamaConfig struct {
	hidden, inner, layers           int64
	heads, kvHeads, headDim         int64
	vocab                           int64
	tied, qkvBias, outBias, mlpBias bool
	act                             string
	attentionDropout                float64
}

func readLlama(c *Config) llamaConfig {
	l := llamaConfig{
		hidden: c.Int("hidden_size"), inner: c.Int("intermediate_size"), layers: c.Int("num_hidden_layers"),
		heads: c.Int("num_attention_heads"), vocab: c.Int("vocab_size"), act: c.Text("silu", "hidden_act"),
		tied: c.Bool(false, "tie_word_embeddings"), attentionDropout: c.Float(0, "attention_dropout"),
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
	base := newLlamaModel(l, b)
	lm := newCausalLM("LlamaForCausalLM", "model", base.Module, base.embedTokens, &base.ctx.decoderContext, b, l.hidden, l.vocab, l.tied)
	lm.slices = b.Versions.Transformers.Before(spec.Version{5})
	net := &Network{Root: lm.Module, Embeddings: base.embedTokens, Head: lm.head, Blocks: base.layers, Forward: lm.run}
	lm.Named("")
	return net, nil
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

// llamaRotaryEmbedding gives the cosines and sines of the positions, computed
// in fp32.
func llamaRotaryEmbedding(b Build, headDim int64) *graph.Module {
	m := graph.NewModule("LlamaRotaryEmbedding")
	invFreq := m.Buffer("inv_freq", b.DType, headDim/2)
	table := rotaryTableBefore5
	if b.Versions.Transformers.AtLeast(spec.Version{5}) {
		m.Buffer("original_inv_freq", b.DType, headDim/2)
		table = rotaryTable
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		var cos, sin *graph.Tensor
		f.NoGrad(func() {
			cos, sin = table(f, invFreq.T(), in[1])
			cos, sin = f.To(cos, in[0].DType), f.To(sin, in[0].DType)
		})
		return []*graph.Tensor{cos, sin}
	}
	return m
}

// rotaryTable multiplies positions and frequencies elementwise.
func rotaryTable(f *graph.Frame, invFreq, positions *graph.Tensor) (cos, sin *graph.Tensor) {
	position := f.To(f.Unsqueeze(positions, -1), graph.F32)
	freqs := f.Let("freqs", f.Mul(position, f.To(invFreq, graph.F32)))
	emb := f.Let("emb", f.Cat(-1, freqs, freqs))
	cos = f.Let("cos", f.MulScalar(f.Cos(emb)))
	return cos, f.Let("sin", f.MulScalar(f.Sin(emb)))
}

// rotaryTableBefore5 multiplied matrices, outside autocast.
func rotaryTableBefore5(f *graph.Frame, invFreq, positions *graph.Tensor) (cos, sin *graph.Tensor) {
	frequencies := f.Let("inv_freq_expanded", f.To(f.View(invFreq, 1, -1, 1), graph.F32))
	expanded := f.Let("position_ids_expanded", f.To(f.Unsqueeze(positions, 1), graph.F32))
	var freqs *graph.Tensor
	f.NoAutocast(func() { freqs = f.Let("freqs", f.Transpose(f.Matmul(frequencies, expanded), 1, 2)) })
	emb := f.Let("emb", f.Cat(-1, freqs, freqs))
	cos, sin = f.Let("cos", f.Cos(emb)), f.Let("sin", f.Sin(emb))
	cos = f.Let("cos", f.MulScalar(cos))
	return cos, f.Let("sin", f.MulScalar(sin))
}

// rotateHalf is cat(-second half, first half).
func rotateHalf(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	x := in[0]
	half := x.Shape.At(-1) / 2
	x1 := f.Let("x1", f.Slice(x, -1, 0, half))
	x2 := f.Let("x2", f.Slice(x, -1, half, 2*half))
	return one(f.Cat(-1, f.Neg(x2), x1))
}

// applyRotaryPosEmb turns queries and keys by their positions.
func applyRotaryPosEmb(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	q, k := in[0], in[1]
	cos := f.Let("cos", f.Unsqueeze(in[2], 1))
	sin := f.Let("sin", f.Unsqueeze(in[3], 1))
	turn := func(x *graph.Tensor) *graph.Tensor {
		straight := f.Mul(x, cos)
		return f.Add(straight, f.Mul(f.Func(rotateHalf, x)[0], sin))
	}
	qEmbed := f.Let("q_embed", turn(q))
	kEmbed := f.Let("k_embed", turn(k))
	return []*graph.Tensor{qEmbed, kEmbed}
}

// llamaMLP is the gated MLP.
func llamaMLP(l llamaConfig, d graph.DType) *graph.Module {
	m := graph.NewModule("LlamaMLP")
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

// llamaContext is what every layer of one forward pass shares: mask, position
// embeddings and cache, which Python passes as keyword arguments.
type llamaContext struct {
	decoderContext
	cos, sin *graph.Tensor
}

// keywordsSince is when checkpointed layers began to be called with keywords,
// bound into the function (transformers/modeling_layers.py).
var keywordsSince = spec.Version{4, 53}

// beside is what a layer is called with beside the hidden states. Cosines and
// sines are a tuple, which checkpointing does not look into.
func (c *llamaContext) beside(v spec.Versions) func() (args, bound []*graph.Tensor) {
	return func() (args, bound []*graph.Tensor) {
		args, bound = []*graph.Tensor{c.mask, c.positions}, []*graph.Tensor{c.cos, c.sin}
		if v.Transformers.AtLeast(keywordsSince) {
			return nil, append(bound, args...)
		}
		return args, bound
	}
}

// llamaAttention is multi-head attention with grouped keys and values.
func llamaAttention(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule("LlamaAttention")
	q := m.Child("q_proj", linear(b.DType, l.hidden, l.heads*l.headDim, l.qkvBias))
	k := m.Child("k_proj", linear(b.DType, l.hidden, l.kvHeads*l.headDim, l.qkvBias))
	v := m.Child("v_proj", linear(b.DType, l.hidden, l.kvHeads*l.headDim, l.qkvBias))
	o := m.Child("o_proj", linear(b.DType, l.heads*l.headDim, l.hidden, l.outBias))
	shape := attentionShape{groups: l.heads / l.kvHeads, dropout: l.attentionDropout}
	shape.eager = eagerAttention(shape)
	shape.positions = func() *graph.Tensor { return ctx.positions }
	attend := attentionInterface(b, shape)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		batch, tokens := x.Shape.D[0], x.Shape.D[1]
		heads := func(t *graph.Tensor) *graph.Tensor {
			return f.Transpose(f.View(t, batch, tokens, -1, l.headDim), 1, 2)
		}
		query := f.Let("query_states", heads(f.Call1(q, x)))
		key := f.Let("key_states", heads(f.Call1(k, x)))
		value := f.Let("value_states", heads(f.Call1(v, x)))
		turned := f.Func(applyRotaryPosEmb, query, key, ctx.cos, ctx.sin)
		query, key = f.Let("query_states", turned[0]), f.Let("key_states", turned[1])
		key, value = ctx.cache.update(f, "key_states", "value_states", key, value)
		result := attend(f, query, key, value, ctx.mask)
		output := f.Let("attn_output", result[0])
		weights := result[1]
		if weights != nil {
			weights = f.Let("attn_weights", weights)
		}
		output = f.Let("attn_output", f.Contiguous(f.Reshape(output, batch, tokens, -1)))
		output = f.Let("attn_output", f.Call1(o, output))
		return []*graph.Tensor{output, weights}
	}
	return m
}

// llamaDecoderLayer is one block: attention and MLP, each behind a norm and
// beside a residual.
func llamaDecoderLayer(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule("LlamaDecoderLayer")
	attention := m.Child("self_attn", llamaAttention(l, b, ctx))
	mlp := m.Child("mlp", llamaMLP(l, b.DType))
	inputNorm := m.Child("input_layernorm", llamaRMSNorm(b.DType, l.hidden))
	postNorm := m.Child("post_attention_layernorm", llamaRMSNorm(b.DType, l.hidden))
	m.Beside = ctx.beside(b.Versions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", in[0])
		residual := f.Let("residual", hidden)
		hidden = f.Let("hidden_states", f.Call1(inputNorm, hidden))
		attended := f.Call(attention, hidden)
		hidden = f.Let("hidden_states", attended[0])
		f.Let("_", attended[1])
		hidden = f.Let("hidden_states", f.Add(residual, hidden))

		residual = f.Let("residual", hidden)
		hidden = f.Let("hidden_states", f.Call1(postNorm, hidden))
		hidden = f.Let("hidden_states", f.Call1(mlp, hidden))
		hidden = f.Let("hidden_states", f.Add(residual, hidden))
		return one(hidden)
	}
	return m
}

type llamaModel struct {
	*graph.Module
	embedTokens *graph.Module
	layers      []*graph.Module
	norm        *graph.Module
	rotary      *graph.Module
	ctx         *llamaContext
}

func newLlamaModel(l llamaConfig, b Build) *llamaModel {
	m := &llamaModel{Module: graph.NewModule("LlamaModel"), ctx: &llamaContext{}}
	m.embedTokens = m.Child("embed_tokens", embedding(b.DType, l.vocab, l.hidden))
	list := m.Child("layers", graph.NewModule("ModuleList"))
	for i := range l.layers {
		m.layers = append(m.layers, list.Child(strconv.FormatInt(i, 10), llamaDecoderLayer(l, b, m.ctx)))
	}
	m.norm = m.Child("norm", llamaRMSNorm(b.DType, l.hidden))
	m.rotary = m.Child("rotary_emb", llamaRotaryEmbedding(b, l.headDim))
	m.Forward = m.forward(b)
	return m
}

// forward takes input ids and an attention mask and returns the last hidden
// states.
func (m *llamaModel) forward(b Build) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	before5 := b.Versions.Transformers.Before(spec.Version{5})
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		embeds := f.Let("inputs_embeds", f.Call1(m.embedTokens, in[0]))
		positions := f.Let("position_ids", f.Arange(embeds.Shape.D[1]))
		if !before5 {
			positions = f.Let("position_ids", f.AddScalar(positions))
		}
		positions = f.Let("position_ids", f.Unsqueeze(positions, 0))
		m.ctx.positions = positions
		inputs := maskInputs{embeds: embeds, attention: in[1], positions: positions, padded: m.ctx.batch.Padded, cached: m.ctx.cache != nil}
		m.ctx.mask = f.Let("causal_mask", causalMask(f, b, inputs))

		hidden := f.Let("hidden_states", embeds)
		table := f.Call(m.rotary, hidden, positions)
		m.ctx.cos, m.ctx.sin = f.Let("cos", table[0]), f.Let("sin", table[1])
		for _, layer := range m.layers {
			hidden = f.Let("hidden_states", f.Call1(layer, hidden))
			if before5 {
				f.Let("layer_outputs", hidden)
			}
		}
		hidden = f.Let("hidden_states", f.Call1(m.norm, hidden))
		return one(hidden)
	}
}
