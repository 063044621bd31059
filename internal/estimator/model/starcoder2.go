package model

import "memplan/internal/estimator/graph"

// starcoder2Family is StarCoder 2: Llama's attention with biases and dropout,
// layer norms, a plain MLP, a window. Written from transformers 5.24 and 4.49,
// models/starcoder2/modeling_starcoder2.py. The loop over the layers did not ask
// for checkpointing before the layers did it themselves.
var starcoder2Family = Family{
	Name:           "starcoder2",
	ModelTypes:     []string{"starcoder2"},
	Source:         "huggingface/transformers:src/transformers/models/starcoder2/modeling_starcoder2.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newStarcoder2,
}

func newStarcoder2(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.norm, l.act = "Starcoder2", layerNorm, c.Activation("gelu_pytorch_tanh", "hidden_act")
	l.kvHeads = c.IntOr(2, "num_key_value_heads")
	l.tied = c.Bool(true, "tie_word_embeddings")
	bias := c.Bool(true, "use_bias")
	l.qkvBias, l.outBias, l.mlpBias = bias, bias, bias
	l.residualDropout = c.Float(0, "residual_dropout")
	embedded, window := c.Float(0, "embedding_dropout"), c.Window(0, "sliding_window")
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModel(l, b, starcoder2DecoderLayer)
	m.window, m.compared = window, true
	m.dropped = func(f *graph.Frame, embeds *graph.Tensor) *graph.Tensor { return f.Dropout(embeds, embedded) }
	net := m.network(m.causalLM("Starcoder2ForCausalLM", "model", b, l.hidden, l.vocab, l.tied))
	net.Uncheckpointed = b.Versions.Transformers.Before(keywordsSince)
	return net, nil
}

// starcoder2MLP is the feed-forward part.
func starcoder2MLP(l llamaConfig, d graph.DType) *graph.Module {
	m := plainMLP("Starcoder2MLP", d, l.hidden, l.inner, l.act, l.mlpBias, [2]string{"c_fc", "c_proj"})
	plain := m.Forward
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.Dropout(plain(f, in...)[0], l.residualDropout))
	}
	return m
}

func starcoder2DecoderLayer(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
	return llamaBlock(l, b, ctx, starcoder2MLP(l, b.DType))
}
