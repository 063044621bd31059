package model

import (
	"slices"

	"memplan/internal/estimator/graph"
)

// exaone4Family is EXAONE 4: norms behind attention and MLP and on every head,
// and, in the large model, windows and positions in three of four layers.
// Written from transformers 5.24, models/exaone4/modeling_exaone4.py.
var exaone4Family = Family{
	Name:           "exaone4",
	ModelTypes:     []string{"exaone4"},
	Source:         "huggingface/transformers:src/transformers/models/exaone4/modeling_exaone4.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newExaone4,
}

func newExaone4(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.qkvBias, l.outBias, l.mlpBias = "Exaone4", false, false, false
	l.qkNorm = &qkNorm{names: [2]string{"q_norm", "k_norm"}, place: headsFirst, make: func(int64) *graph.Module { return l.norm(b.DType, l.headDim) }}
	window := c.Window(4096, "sliding_window")
	sliding := make([]bool, l.layers)
	if window > 0 {
		sliding = c.Sliding(l.layers, c.pattern(4, "sliding_window_pattern"))
	}
	c.needsTransformers(b, maskingUtilsSince, "the model came with it")
	if err := c.Err(); err != nil {
		return nil, err
	}
	local := &llamaContext{}
	m := newLlamaModelOf(l, b, func(i int64, ctx *llamaContext) *graph.Module {
		switch {
		case sliding[i]:
			return olmo2DecoderLayer(l, b, local)
		case window > 0:
			l := l
			l.rotary = nil
			return olmo2DecoderLayer(l, b, ctx)
		}
		return olmo2DecoderLayer(l, b, ctx)
	})
	if slices.Contains(sliding, true) {
		m.local, m.window = local, window
	}
	return m.network(m.causalLM("Exaone4ForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), nil
}

// pattern is a number of layers, or the length of a word with a letter for each.
func (c *Config) pattern(fallback int64, key string) int64 {
	if word, ok := c.values[key].(string); ok && word != "" {
		return int64(len(word))
	}
	return c.IntOr(fallback, key)
}
