package model

import "memplan/internal/estimator/graph"

// mixtralFamily is Mixtral: Mistral with a mixture of experts in every layer.
// Written from transformers 5.24, models/mixtral/modeling_mixtral.py.
var mixtralFamily = Family{
	Name:           "mixtral",
	ModelTypes:     []string{"mixtral"},
	Source:         "huggingface/transformers:src/transformers/models/mixtral/modeling_mixtral.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newMixtral,
}

func newMixtral(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class = "Mixtral"
	e := moeConfig{
		class: l.class, hidden: l.hidden, inner: l.inner, act: l.act, normalised: true, probsFloat: true,
		experts: c.IntOr(8, "num_local_experts"), chosen: c.IntOr(2, "num_experts_per_tok"),
	}
	e.check(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModel(l, b, func(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
		return llamaBlock(l, b, ctx, sparseBlock(e, b.DType, true))
	})
	m.window, m.compared = c.Window(0, "sliding_window"), true
	return e.in(m.network(m.causalLM("MixtralForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), l.layers), nil
}
