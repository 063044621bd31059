package model

import "memplan/internal/estimator/graph"

// olmoeFamily is OLMoE: norms over the whole width of queries and keys, and a
// mixture of experts in every layer. Written from transformers 5.24,
// models/olmoe/modeling_olmoe.py.
var olmoeFamily = Family{
	Name:           "olmoe",
	ModelTypes:     []string{"olmoe"},
	Source:         "huggingface/transformers:src/transformers/models/olmoe/modeling_olmoe.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newOlmoe,
}

func newOlmoe(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.mlpBias, l.viewsLate = "Olmoe", false, true
	l.qkNorm = &qkNorm{names: [2]string{"q_norm", "k_norm"}, place: wholeWidth, make: func(heads int64) *graph.Module {
		return l.norm(b.DType, heads*l.headDim)
	}}
	e := moeConfig{
		class: l.class, hidden: l.hidden, inner: l.inner, act: l.act, normalised: c.Bool(false, "norm_topk_prob"),
		experts: c.IntOr(64, "num_experts", "num_local_experts"), chosen: c.IntOr(8, "num_experts_per_tok"),
	}
	e.check(&c, b)
	c.Refuses("clip_qkv")
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModel(l, b, func(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
		return llamaBlock(l, b, ctx, sparseBlock(e, b.DType, true))
	})
	return e.in(m.network(m.causalLM("OlmoeForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), l.layers), nil
}
