package model

import "memplan/internal/estimator/graph"

// cohere2Family is Command R7B and Command A: Cohere with windows and positions
// in three of four layers, and neither in the fourth. Written from transformers
// 5.24, models/cohere2/modeling_cohere2.py.
var cohere2Family = Family{
	Name:           "cohere2",
	ModelTypes:     []string{"cohere2"},
	Source:         "huggingface/transformers:src/transformers/models/cohere2/modeling_cohere2.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newCohere2,
}

func newCohere2(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.mlpBias, l.tied = "Cohere2", false, c.Bool(true, "tie_word_embeddings")
	l.norm = func(d graph.DType, width int64) *graph.Module { return cohereLayerNorm(d, width) }
	l.table, l.rotary = cohereRotaryEmbedding, called(applyNeighbourRotary)
	sliding, window := c.Sliding(l.layers, c.IntOr(4, "sliding_window_pattern")), c.IntOr(4096, "sliding_window")
	c.needsTransformers(b, maskingUtilsSince, "its layers cut their own masks before")
	if err := c.Err(); err != nil {
		return nil, err
	}
	local := &llamaContext{}
	m := newLlamaModelOf(l, b, func(i int64, ctx *llamaContext) *graph.Module {
		if sliding[i] {
			return cohereDecoderLayer(l, b, local)
		}
		l := l
		l.rotary = nil
		return cohereDecoderLayer(l, b, ctx)
	})
	m.local, m.window = local, window
	lm := m.causalLM("Cohere2ForCausalLM", "model", b, l.hidden, l.vocab, l.tied)
	lm.scores = (*graph.Frame).MulScalar // logit_scale
	return m.network(lm), nil
}
