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
	l := readQwen3(&c, b, 128)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModel(l, b, llamaDecoderLayer)
	return m.network(m.causalLM("Qwen3ForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), nil
}

// readQwen3 reads the attention of Qwen 3; width is a head's where the config
// does not say.
func readQwen3(c *Config, b Build, width int64) llamaConfig {
	l := readLlama(c)
	l.class, l.mlpBias = "Qwen3", false
	l.headDim = c.IntOr(width, "head_dim")
	l.qkNorm = &qkNorm{names: [2]string{"q_norm", "k_norm"}, place: eachHead, make: func(int64) *graph.Module { return llamaRMSNorm(b.DType, l.headDim) }}
	return l
}
