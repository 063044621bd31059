package model

import "memplan/internal/estimator/graph"

// olmoFamily is OLMo 1: Llama with norms that have no parameters. Written from
// transformers 5.24 and 4.49, models/olmo/modeling_olmo.py.
var olmoFamily = Family{
	Name:           "olmo",
	ModelTypes:     []string{"olmo"},
	Source:         "huggingface/transformers:src/transformers/models/olmo/modeling_olmo.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newOlmo,
}

func newOlmo(c Config, b Build) (*Network, error) {
	c.Refuses("clip_qkv")
	l := readLlama(&c)
	l.class, l.mlpBias, l.norm, l.rotary, l.table = "Olmo", false, olmoLayerNorm, rotaryInType(b), floatTable
	l.viewsLate = true
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModel(l, b, llamaDecoderLayer)
	return m.network(m.causalLM("OlmoForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), nil
}

// olmoLayerNorm is a layer norm in fp32 without weight or bias.
func olmoLayerNorm(_ graph.DType, _ int64) *graph.Module {
	m := graph.NewModule("OlmoLayerNorm")
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.To(f.LayerNorm(f.To(in[0], graph.F32), nil, nil), in[0].DType))
	}
	return m
}
