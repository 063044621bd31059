package model

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// gptNeoXFamily is GPT-NeoX, Pythia, Dolly 2, RedPajama: attention and MLP side
// by side behind a norm each, partly rotary heads. Written from transformers
// 5.24 and 4.49, models/gpt_neox/modeling_gpt_neox.py.
var gptNeoXFamily = Family{
	Name:           "gpt_neox",
	ModelTypes:     []string{"gpt_neox"},
	Source:         "huggingface/transformers:src/transformers/models/gpt_neox/modeling_gpt_neox.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"query_key_value"},
	New:            newGPTNeoX,
}

// gptNeoXConfig is what the program needs beside Llama's numbers.
type gptNeoXConfig struct {
	llamaConfig
	turned   int64 // columns of a head that are turned
	parallel bool
	drop     float64
}

func readGPTNeoX(c *Config) gptNeoXConfig {
	g := gptNeoXConfig{llamaConfig: readLlama(c)}
	g.rotary = called(applyPartialRotary)
	g.kvHeads, g.headDim = g.heads, g.hidden/g.heads
	g.act = c.Activation("gelu", "hidden_act")
	g.qkvBias = c.Bool(true, "attention_bias")
	g.turned = c.RotaryPart(c.Float(0.25, "rotary_pct"), "partial_rotary_factor", g.headDim)
	g.parallel, g.drop = c.Bool(true, "use_parallel_residual"), c.Float(0, "hidden_dropout")
	return g
}

// embedOutUntil is when the head was renamed to lm_head (measured: not in 4.49,
// in 5.24; the older name is assumed in between).
var embedOutUntil = spec.Version{5}

func newGPTNeoX(c Config, b Build) (*Network, error) {
	g := readGPTNeoX(&c)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newDecoder("GPTNeoXModel")
	m.embedTokens = m.Child("embed_in", embedding(b.DType, g.vocab, g.hidden))
	drop := m.Child("emb_dropout", dropout(g.drop))
	m.dropped = func(f *graph.Frame, embeds *graph.Tensor) *graph.Tensor { return f.Call1(drop, embeds) }
	m.stack("layers", g.layers, func(int64) *graph.Module { return gptNeoXLayer(g, b, m.ctx) })
	m.norm = m.Child("final_layer_norm", layerNorm(b.DType, g.hidden))
	m.rotary = m.Child("rotary_emb", rotaryEmbedding(b, "GPTNeoXRotaryEmbedding", g.turned))
	lm := m.causalLM("GPTNeoXForCausalLM", "gpt_neox", b, g.hidden, g.vocab, g.tied)
	if b.Versions.Transformers.Before(embedOutUntil) {
		lm.head.Name = "embed_out"
	}
	lm.takesOwnLoss()
	return m.network(lm), nil
}

// gptNeoXAttention cuts every head of one product in three.
func gptNeoXAttention(g gptNeoXConfig, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule("GPTNeoXAttention")
	qkv := m.Child("query_key_value", linear(b.DType, g.hidden, 3*g.hidden, g.qkvBias))
	dense := m.Child("dense", linear(b.DType, g.hidden, g.hidden, g.qkvBias))
	attend := g.attend(b, ctx)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		heads := f.View(f.Call1(qkv, in[0]), batch, tokens, -1, 3*g.headDim)
		states := f.Split(f.Let("qkv", f.Transpose(heads, 1, 2)), 3, -1)
		query, key, value := f.Let("query_states", states[0]), f.Let("key_states", states[1]), f.Let("value_states", states[2])
		return attend(f, query, key, value, dense)
	}
	return m
}

// gptNeoXLayer is one block: MLP beside attention, or behind it.
func gptNeoXLayer(g gptNeoXConfig, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule("GPTNeoXLayer")
	inputNorm := m.Child("input_layernorm", layerNorm(b.DType, g.hidden))
	postNorm := m.Child("post_attention_layernorm", layerNorm(b.DType, g.hidden))
	attentionDrop := m.Child("post_attention_dropout", dropout(g.drop))
	mlpDrop := m.Child("post_mlp_dropout", dropout(g.drop))
	attention := m.Child("attention", gptNeoXAttention(g, b, ctx))
	mlp := m.Child("mlp", plainMLP("GPTNeoXMLP", b.DType, g.hidden, g.inner, g.act, true, [2]string{"dense_h_to_4h", "dense_4h_to_h"}))
	m.Beside = ctx.beside(b.Versions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := in[0]
		attended := f.Call(attention, f.Call1(inputNorm, hidden))
		output := f.Let("attn_output", attended[0])
		f.Let("_", attended[1])
		output = f.Let("attn_output", f.Call1(attentionDrop, output))
		if g.parallel {
			forward := f.Let("mlp_output", f.Call1(mlp, f.Call1(postNorm, hidden)))
			forward = f.Let("mlp_output", f.Call1(mlpDrop, forward))
			return one(f.Let("hidden_states", f.Add(f.Add(forward, output), hidden)))
		}
		output = f.Let("attn_output", f.Add(output, hidden))
		forward := f.Let("mlp_output", f.Call1(mlp, f.Call1(postNorm, output)))
		forward = f.Let("mlp_output", f.Call1(mlpDrop, forward))
		return one(f.Let("hidden_states", f.Add(forward, output)))
	}
	return m
}
