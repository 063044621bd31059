package model

import "memplan/internal/estimator/graph"

// qwen3Family is Qwen 3, dense: Llama with a norm on every head of queries and
// keys. Written from transformers 5.24, models/qwen3/modeling_qwen3.py.
var qwen3Family = Family{
	Name:           "qwen3",
	ModelTypes:     []string{"qwen3"},
	Source:         "huggingface/transformers:src/transformers/models/qwen3/modeling_qwen3.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newQwen3,
}

func newQwen3(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.mlpBias = "Qwen3", false
	l.headDim = c.IntOr(128, "head_dim")
	l.qkNorm = &qkNorm{names: [2]string{"q_norm", "k_norm"}, place: eachHead, make: func(int64) *graph.Module { return llamaRMSNorm(b.DType, l.headDim) }}
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModel(l, b, llamaDecoderLayer)
	return m.network(m.causalLM("Qwen3ForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), nil
}
