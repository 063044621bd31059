package model

import (
	"slices"

	"memplan/internal/estimator/graph"
)

// qwen3MoeFamily is Qwen 3 30B-A3B and 235B-A22B: Qwen 3 with a mixture of
// experts. Written from transformers 5.24,
// models/qwen3_moe/modeling_qwen3_moe.py.
var qwen3MoeFamily = Family{
	Name:           "qwen3_moe",
	ModelTypes:     []string{"qwen3_moe"},
	Source:         "huggingface/transformers:src/transformers/models/qwen3_moe/modeling_qwen3_moe.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newQwen3Moe,
}

func newQwen3Moe(c Config, b Build) (*Network, error) {
	l := readQwen3(&c, b, c.IntOr(2048, "hidden_size")/c.IntOr(32, "num_attention_heads"))
	l.class = "Qwen3Moe"
	e := readQwenMoe(&c, b, l)
	sparse := c.sparseLayers(l.layers)
	c.Refuses("use_sliding_window")
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModelOf(l, b, func(i int64, ctx *llamaContext) *graph.Module {
		if !sparse[i] {
			return llamaBlock(l, b, ctx, llamaMLP(l, b.DType))
		}
		return llamaBlock(l, b, ctx, sparseBlock(e, b.DType, false))
	})
	m.compared = true
	m.mixed = slices.Contains(sparse, false)
	return e.in(m.network(m.causalLM("Qwen3MoeForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), count(sparse)), nil
}
