package model

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// stablelmFamily is StableLM 2 and StableLM 3B: Llama with layer norms and
// partly rotary heads. Written from transformers 5.24 and 4.49,
// models/stablelm/modeling_stablelm.py.
var stablelmFamily = Family{
	Name:           "stablelm",
	ModelTypes:     []string{"stablelm"},
	Source:         "huggingface/transformers:src/transformers/models/stablelm/modeling_stablelm.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newStableLM,
}

func newStableLM(c Config, b Build) (*Network, error) {
	c.Refuses("qk_layernorm")
	l := readLlama(&c)
	l.class, l.mlpBias, l.norm, l.rotary, l.viewsLate = "StableLm", false, layerNorm, turnFirst, true
	l.qkvBias, l.outBias = c.Bool(false, "use_qkv_bias"), false
	if b.Versions.Transformers.Before(keywordsSince) && b.Attention.Kernel != "flash" {
		l.attention = stablelmAttention(l, b)
	}
	turned := c.RotaryPart(0.25, "partial_rotary_factor", l.headDim)
	parallel, drop := c.Bool(false, "use_parallel_residual"), c.Float(0, "hidden_dropout")
	l.table = func(b Build, class string, _ int64) *graph.Module { return rotaryEmbedding(b, class, turned) }
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModel(l, b, func(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
		return stablelmDecoderLayer(l, b, ctx, parallel, drop)
	})
	lm := m.causalLM("StableLmForCausalLM", "model", b, l.hidden, l.vocab, l.tied)
	lm.takesOwnLoss()
	return m.network(lm), nil
}

// stablelmAttention is how the module attended itself, before there was an
// interface: the weights are not returned.
func stablelmAttention(l llamaConfig, b Build) attentionFunc {
	groups, kernel := l.heads/l.kvHeads, kernelItself(b, l.attentionDropout)
	return func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor {
		key = f.Let("key_states", repeatKV(f, key, groups))
		value = f.Let("value_states", repeatKV(f, value, groups))
		if b.Attention.Kernel != "eager" {
			if mask != nil { // works around a bug with masks in older kernels
				query = f.Let("query_states", f.Contiguous(query))
				key = f.Let("key_states", f.Contiguous(key))
				value = f.Let("value_states", f.Contiguous(value))
			}
			return kernel(f, query, key, value, mask)
		}
		weights := f.Let("attn_weights", f.MulScalar(f.Matmul(query, f.Transpose(key, 2, 3))))
		if mask != nil {
			weights = f.Let("attn_weights", f.AddInPlace(weights, f.Slice(mask, 3, 0, key.Shape.At(-2))))
		}
		weights = f.Let("attn_weights", f.To(f.Softmax(weights, graph.F32), query.DType))
		weights = f.Let("attn_weights", f.Dropout(weights, l.attentionDropout))
		output := f.Let("attn_output", f.Matmul(weights, value))
		return []*graph.Tensor{f.Let("attn_output", f.Contiguous(f.Transpose(output, 1, 2))), nil}
	}
}

// stablelmDecoderLayer is one block: MLP behind attention, or beside it.
func stablelmDecoderLayer(l llamaConfig, b Build, ctx *llamaContext, parallel bool, drop float64) *graph.Module {
	m := graph.NewModule("StableLmDecoderLayer")
	attention := m.Child("self_attn", llamaAttention(l, b, ctx))
	if b.Versions.Transformers.Before(spec.Version{5}) { // a table that nobody asks
		attention.Child("rotary_emb", l.table(b, "StableLmRotaryEmbedding", l.headDim))
	}
	mlp := m.Child("mlp", llamaMLP(l, b.DType))
	inputNorm := m.Child("input_layernorm", l.norm(b.DType, l.hidden))
	var postNorm *graph.Module
	if !parallel {
		postNorm = m.Child("post_attention_layernorm", l.norm(b.DType, l.hidden))
	}
	dropped := m.Child("dropout", dropout(drop))
	m.Beside = ctx.beside(b.Versions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		residual := f.Let("residual", in[0])
		hidden := f.Let("hidden_states", f.Call1(inputNorm, in[0]))
		attended := f.Call(attention, hidden)
		output := f.Let("self_attn_output", attended[0])
		f.Let("_", attended[1])
		if parallel {
			forward := f.Let("mlp_output", f.Call1(mlp, hidden))
			forward = f.Let("mlp_output", f.Call1(dropped, forward))
			return one(f.Let("hidden_states", f.Add(f.Add(residual, output), forward)))
		}
		residual = f.Let("residual", f.Add(residual, output))
		forward := f.Let("mlp_output", f.Call1(mlp, f.Call1(postNorm, residual)))
		forward = f.Let("mlp_output", f.Call1(dropped, forward))
		return one(f.Let("hidden_states", f.Add(residual, forward)))
	}
	return m
}
