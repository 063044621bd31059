package model

import "memplan/internal/estimator/graph"

// smollm3Family is SmolLM 3: Llama whose every fourth layer has no positions.
// Written from transformers 5.24, models/smollm3/modeling_smollm3.py.
var smollm3Family = Family{
	Name:           "smollm3",
	ModelTypes:     []string{"smollm3"},
	Source:         "huggingface/transformers:src/transformers/models/smollm3/modeling_smollm3.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newSmolLM3,
}

func newSmolLM3(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.tied = "SmolLM3", c.Bool(true, "tie_word_embeddings")
	turns := c.turningLayers(l.layers)
	c.Refuses("use_sliding_window")
	c.needsTransformers(b, maskingUtilsSince, "the model came with it")
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModelOf(l, b, func(i int64, ctx *llamaContext) *graph.Module {
		l := l
		if !turns[i] {
			l.rotary = nil
		}
		return llamaDecoderLayer(l, b, ctx)
	})
	m.mixed = true
	return m.network(m.causalLM("SmolLM3ForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), nil
}

// turningLayers says which layers have rotary positions: those no_rope_layers
// marks with 1, else all but every so many-th.
func (c *Config) turningLayers(layers int64) []bool {
	every := c.IntOr(4, "no_rope_layer_interval")
	marks, _ := c.values["no_rope_layers"].([]any)
	turns := make([]bool, layers)
	for i := range turns {
		turns[i] = int64(i+1)%every != 0
		if i < len(marks) {
			turns[i] = marks[i] == float64(1) || marks[i] == 1
		}
	}
	return turns
}
