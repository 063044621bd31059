package model

import "memplan/internal/estimator/graph"

// glm4MoeFamily is GLM-4.5 and 4.6: part of every head turned by position,
// DeepSeek's mixture. Written from transformers 5.24,
// models/glm4_moe/modeling_glm4_moe.py.
var glm4MoeFamily = Family{
	Name:           "glm4_moe",
	ModelTypes:     []string{"glm4_moe"},
	Source:         "huggingface/transformers:src/transformers/models/glm4_moe/modeling_glm4_moe.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newGlm4Moe,
}

func newGlm4Moe(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.outBias, l.mlpBias, l.rotary = "Glm4Moe", false, false, called(applyPartialRotary)
	turned := c.RotaryPart(0.5, "partial_rotary_factor", l.headDim)
	l.table = func(b Build, class string, _ int64) *graph.Module { return rotaryEmbedding(b, class, turned) }
	if c.Bool(false, "use_qk_norm") {
		l.qkNorm = &qkNorm{names: [2]string{"q_norm", "k_norm"}, place: tokensFirst, make: func(int64) *graph.Module { return l.norm(b.DType, l.headDim) }}
	}
	e := readDeepseekMoe(&c, b, l)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModelOf(l, b, func(i int64, ctx *llamaContext) *graph.Module {
		if i < e.dense {
			return llamaBlock(l, b, ctx, llamaMLP(l, b.DType))
		}
		return llamaBlock(l, b, ctx, deepseekMoE(l, e, groupedSigmoidRouter, b.DType))
	})
	m.mixed = e.dense > 0
	return e.in(m.network(m.causalLM("Glm4MoeForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), max(0, l.layers-e.dense)), nil
}
