package model

import "memplan/internal/estimator/graph"

// graniteFamily is Granite 3, dense, and PowerLM: Llama with multipliers.
// Written from transformers 5.24 and 4.49, models/granite/modeling_granite.py.
var graniteFamily = Family{
	Name:           "granite",
	ModelTypes:     []string{"granite"},
	Source:         "huggingface/transformers:src/transformers/models/granite/modeling_granite.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newGranite,
}

func newGranite(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.scaledResidual = "Granite", true
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModel(l, b, llamaDecoderLayer)
	m.scaled = (*graph.Frame).MulScalar // embedding_multiplier
	lm := m.causalLM("GraniteForCausalLM", "model", b, l.hidden, l.vocab, l.tied)
	lm.scores = (*graph.Frame).MulScalar // 1 / logits_scaling
	return m.network(lm), nil
}
