package model

import (
	"slices"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// gemma3Family is the text model of Gemma 3: Gemma 2 with norms of queries and
// keys, and a table of positions for each kind of layer. Written from
// transformers 5.24, models/gemma3/modeling_gemma3.py.
var gemma3Family = Family{
	Name:           "gemma3_text",
	ModelTypes:     []string{"gemma3_text"},
	Source:         "huggingface/transformers:src/transformers/models/gemma3/modeling_gemma3.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newGemma3,
}

func newGemma3(c Config, b Build) (*Network, error) {
	l := readGemma(&c, "Gemma3")
	l.qkNorm = &qkNorm{names: [2]string{"q_norm", "k_norm"}, place: headsFirst, make: func(int64) *graph.Module { return gemmaRMSNorm(b.DType, l.headDim) }}
	c.Refuses("use_bidirectional_attention")
	window := c.Window(4096, "sliding_window")
	sliding := c.Sliding(l.layers, c.IntOr(6, "sliding_window_pattern"))
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newGemmaModel(l, b, window, sliding)
	m.ownTable = true
	m.rotary = m.Child("rotary_emb", gemma3RotaryEmbedding(b, l.headDim, sliding))
	lm := m.causalLM("Gemma3ForCausalLM", "model", b, l.hidden, l.vocab, l.tied)
	if !c.Null("final_logit_softcapping") && c.Float(0, "final_logit_softcapping") > 0 {
		lm.scores = softcapped
	}
	return m.network(lm), nil
}

// gemma3RotaryEmbedding holds frequencies for each kind of layer that occurs,
// which differ only in their values.
func gemma3RotaryEmbedding(b Build, width int64, sliding []bool) *graph.Module {
	m := graph.NewModule("Gemma3RotaryEmbedding")
	var invFreq *graph.Param
	for i, kind := range []string{"full_attention", "sliding_attention"} {
		if slices.Contains(sliding, i == 1) {
			invFreq = m.Buffer(kind+"_inv_freq", b.DType, width/2)
			m.Buffer(kind+"_original_inv_freq", b.DType, width/2)
		}
	}
	table := rotaryTable
	if b.Versions.Transformers.Before(spec.Version{5}) {
		table = rotaryTableBefore5
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return castTable(f, in[0].DType, func() (cos, sin *graph.Tensor) { return table(f, invFreq.T(), in[1], doubled) })
	}
	return m
}
