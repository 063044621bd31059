package model

import (
	"fmt"

	"memplan/internal/estimator/graph"
)

// Megatron names the library of this file.
const Megatron = "megatron"

// Ranks is how a model is spread over ranks, and which of them is built.
type Ranks struct {
	Tensor   int64 // ranks that share every weight
	Sequence bool  // between the products they share the tokens too
	Stage    int64 // of the pipeline, counted from 0
	Stages   int64
	// FusedAccumulation says that the products of weights' gradients add to the
	// main gradients by themselves.
	FusedAccumulation bool
	// Recompute is the method of full recomputation, empty for none: uniform
	// recomputes groups of RecomputeLayers layers, block the first so many of
	// them one by one.
	Recompute       string
	RecomputeLayers int64
	// RecomputeCore says that the core of attention is recomputed (selective).
	RecomputeCore bool
}

func (r Ranks) first() bool { return r.Stage == 0 }
func (r Ranks) last() bool  { return r.Stage == r.Stages-1 }

// sequence is over how many ranks tokens are split between products.
func (r Ranks) sequence() int64 {
	if r.Sequence {
		return r.Tensor
	}
	return 1
}

// Layers are the first layer of the stage and the one after its last.
func (r Ranks) Layers(layers int64) (from, to int64) {
	each := layers / r.Stages
	return r.Stage * each, (r.Stage + 1) * each
}

// megatronFamily is GPTModel of Megatron-core in its local transformer
// implementation. Written from core_v0.16.1.
var megatronFamily = Family{
	Name:           Megatron,
	Implementation: Megatron,
	Source:         "NVIDIA/Megatron-LM:megatron/core/models/gpt/gpt_model.py@core_v0.16.1",
	New:            newMegatron,
}

// megatronConfig is TransformerConfig.
type megatronConfig struct {
	hidden, inner, layers, heads, groups, headDim int64
	vocab, positions                              int64
	learned, rope                                 bool
	rotaryPart                                    float64
	swiglu, bias, qkvBias, rms, untied, qkNorm    bool
	hiddenDropout, attentionDropout               float64
}

func readMegatron(c *Config) megatronConfig {
	m := megatronConfig{
		hidden: c.Int("hidden_size"), inner: c.Int("intermediate_size", "ffn_hidden_size"), layers: c.Int("num_hidden_layers"),
		heads: c.Int("num_attention_heads"), vocab: c.Int("vocab_size"),
	}
	m.groups = c.IntOr(m.heads, "num_key_value_heads")
	m.headDim = c.IntOr(m.hidden/max(m.heads, 1), "head_dim")
	m.positions = c.IntOr(4096, "max_position_embeddings")
	llama := c.Text("", "model_type") != ""
	m.swiglu, m.bias = c.Bool(llama, "swiglu"), c.Bool(!llama, "bias")
	m.qkvBias = c.Bool(false, "qkv_bias") || m.bias
	m.rms = llama || c.Text("layernorm", "norm") != "layernorm"
	m.untied = c.Bool(llama && !c.Bool(false, "tie_word_embeddings"), "untied")
	m.qkNorm = c.Bool(false, "qk_layernorm")
	m.hiddenDropout, m.attentionDropout = c.Float(0, "hidden_dropout"), c.Float(0, "attention_dropout")
	position := "rope"
	if !llama {
		position = c.Text("learned", "position_embedding")
	}
	m.learned, m.rope = position == "learned", position == "rope"
	m.rotaryPart = c.Float(1, "rotary_percent")
	c.Divides("num_key_value_heads", "num_attention_heads", m.groups, m.heads)
	return m
}

func newMegatron(c Config, b Build) (*Network, error) {
	m := readMegatron(&c)
	r := b.Ranks
	for _, key := range []string{"num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"} {
		if n := c.IntOr(r.Tensor, key); n%r.Tensor != 0 {
			c.fields.Add("parallelism.tensor", r.Tensor, fmt.Sprintf("a divisor of %s, which is %d", key, n), "1")
		}
	}
	if m.layers%r.Stages != 0 {
		c.fields.Add("parallelism.pipeline", r.Stages, fmt.Sprintf("a divisor of the %d layers", m.layers), "1")
	}
	c.Refuses("moe", "num_decoder_layers")
	if err := c.Err(); err != nil {
		return nil, err
	}
	g := newGPTModel(m, b)
	from, to := r.Layers(m.layers)
	return &Network{Root: g.Module, Blocks: g.layers, Uncheckpointed: true, Stage: &Stage{Run: g.run, Receive: g.receive, From: from, To: to, Hidden: m.hidden, Shared: !m.untied && r.Stages > 1}}, nil
}

// gptModel is GPTModel: what this rank's stage of the pipeline has of the
// embedding, the layers, and the output layer with its loss.
type gptModel struct {
	*graph.Module
	c      megatronConfig
	b      Build
	buffer graph.SharedBuffer

	embedding, words, places, finalNorm, output *graph.Module
	decoder                                     *graph.Module
	layers                                      []*graph.Module
	rotary                                      *graph.Tensor // the angles, kept from the first call on
	input                                       *graph.Tensor // what the stage before sent
	mask                                        *graph.Tensor // of the batch in hand
}

func newGPTModel(c megatronConfig, b Build) *gptModel {
	g := &gptModel{Module: graph.NewModule("GPTModel"), c: c, b: b}
	if b.Ranks.first() {
		g.embed()
	}
	if c.rope {
		g.Child("rotary_pos_emb", graph.NewModule("RotaryEmbedding")).Buffer("inv_freq", graph.F32, int64(float64(c.headDim)*c.rotaryPart)/2)
	}
	decoder := g.Child("decoder", graph.NewModule("TransformerBlock"))
	g.decoder = decoder
	decoder.Beside = func() (args, bound []*graph.Tensor) { return []*graph.Tensor{g.mask, g.rotary}, nil }
	list := decoder.Child("layers", graph.NewModule("ModuleList"))
	from, to := b.Ranks.Layers(c.layers)
	for i := range to - from {
		g.layers = append(g.layers, list.Child(fmt.Sprint(i), g.layer()))
	}
	if b.Ranks.last() {
		g.finalNorm = decoder.Child("final_layernorm", g.norm(c.hidden))
		g.output = g.Child("output_layer", g.column(c.hidden, c.vocab, false))
		if !c.untied && b.Ranks.first() {
			g.output.Params[0].Tied = g.words.Params[0]
		}
	}
	return g
}

// embed makes LanguageModelEmbedding.
func (g *gptModel) embed() {
	c, r, d := g.c, g.b.Ranks, g.b.DType
	g.embedding = g.Child("embedding", graph.NewModule("LanguageModelEmbedding"))
	g.words = g.embedding.Child("word_embeddings", graph.NewModule("VocabParallelEmbedding"))
	weight := g.words.Param("weight", d, c.vocab/r.Tensor, c.hidden)
	scatters := r.Sequence && !c.learned
	g.words.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		tokens := in[0]
		if r.Tensor == 1 {
			return one(f.Embedding(tokens, weight.T()))
		}
		mask := f.Let("input_mask", f.And(f.Compare(tokens, nil), f.Compare(tokens, nil)))
		masked := f.Let("masked_input", f.AddScalar(f.Clone(tokens)))
		out := f.Let("output_parallel", f.PutRows(f.Embedding(masked, weight.T()), mask))
		if scatters {
			out = f.Let("output_parallel", f.Contiguous(f.Transpose(out, 0, 1)))
			return one(f.ReduceScatter(out, r.Tensor))
		}
		return one(f.SumRanks(out))
	}
	if c.learned {
		g.places = g.embedding.Child("position_embeddings", embedding(graph.F32, c.positions, c.hidden))
	}
	g.embedding.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		embeddings := f.Let("word_embeddings", f.Call1(g.words, in[0]))
		if c.learned {
			embeddings = f.Let("embeddings", f.Add(embeddings, f.Let("position_embeddings", f.Call1(g.places, in[1]))))
		} else {
			embeddings = f.Let("embeddings", embeddings)
		}
		if !scatters {
			embeddings = f.Let("embeddings", f.Contiguous(f.Transpose(embeddings, 0, 1)))
		}
		if r.Sequence {
			if !scatters { // a view of this rank's tokens
				embeddings = f.Let("embeddings", f.ScatterFirst(embeddings, r.Tensor))
			}
			embeddings = f.Let("embeddings", f.Clone(embeddings))
		}
		return one(f.Let("embeddings", f.Dropout(embeddings, c.hiddenDropout)))
	}
}

// receive says what the stage before sent (set_input_tensor), which the caller
// holds.
func (g *gptModel) receive(t *graph.Tensor) { g.input = t }

// run is GPTModel.forward: hidden states, or on the last stage a loss for each
// token.
func (g *gptModel) run(f *graph.Frame, tokens, positions, mask, labels *graph.Tensor) *graph.Tensor {
	g.mask = mask
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		var hidden *graph.Tensor
		if g.embedding != nil {
			hidden = f.Let("decoder_input", f.Call1(g.embedding, in[0], in[1]))
		} else {
			hidden = g.input
		}
		if g.c.rope && g.rotary == nil {
			g.rotary = f.Own(f.Func(g.angles)[0])
		}
		hidden = f.Let("hidden_states", f.Func(g.decode, hidden)[0])
		if g.output == nil {
			return one(hidden)
		}
		logits := f.Let("logits", f.Call1(g.output, hidden))
		return f.Func(languageModelLoss, in[2], logits)
	}, tokens, positions, labels)[0]
}

// decode is TransformerBlock.forward.
func (g *gptModel) decode(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	hidden := f.Let("hidden_states", in[0])
	if g.b.Ranks.Recompute != "" {
		hidden = f.Let("hidden_states", f.Func(g.decodeAgain, hidden)[0])
	} else {
		for layer := range f.Layers(g.layers) {
			hidden = f.Let("hidden_states", f.Call1(layer, hidden))
		}
	}
	if g.finalNorm != nil {
		hidden = f.Let("hidden_states", f.Call1(g.finalNorm, hidden))
	}
	return one(hidden)
}

// decodeAgain is _checkpointed_forward: groups of layers run without a graph,
// and again in backward. Mask and angles are kept with the inputs of each.
func (g *gptModel) decodeAgain(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	hidden := f.Let("hidden_states", in[0])
	n := max(1, int(g.b.Ranks.RecomputeLayers))
	for i := 0; i < len(g.layers); {
		group := g.layers[i : i+1]
		if g.b.Ranks.Recompute == "uniform" {
			group = g.layers[i:min(i+n, len(g.layers))]
		}
		run := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			hidden := f.Let("hidden_states", in[0])
			for _, layer := range group {
				hidden = f.Let("hidden_states", f.Call1(layer, hidden))
			}
			return one(hidden)
		}
		if g.b.Ranks.Recompute == "uniform" || i < n {
			hidden = f.Let("hidden_states", f.CheckpointFunc(true, g.decoder, run, hidden)[0])
		} else {
			hidden = f.Let("hidden_states", f.Func(run, hidden)[0])
		}
		i += len(group)
	}
	return one(hidden)
}

// languageModelLoss is compute_language_model_loss.
func languageModelLoss(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	labels := f.Let("labels", f.Contiguous(f.Transpose(in[0], 0, 1)))
	loss := f.Let("loss", f.ParallelCrossEntropy(in[1], labels))
	return one(f.Let("loss", f.Contiguous(f.Transpose(loss, 0, 1))))
}

// angles is RotaryEmbedding.forward: of every position, the angles of each
// pair of dimensions, twice. They stay in a cache.
func (g *gptModel) angles(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
	half := int64(float64(g.c.headDim)*g.c.rotaryPart) / 2
	tokens := g.b.Tokens
	seq := f.Let("seq", f.AddScalar(f.Empty(graph.F32, tokens)))
	f.Let("freqs", f.Empty(graph.F32, tokens, half))
	_ = seq
	f.Del("seq")
	freqs := f.Empty(graph.F32, tokens, 1, 1, 2*half)
	return one(freqs)
}
