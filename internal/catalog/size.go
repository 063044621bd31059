package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"memplan/internal/units"
)

// What OfSize calls near, as a natural logarithm of a ratio of counts.
const (
	sameSize  = 0.20 // a known model may stand for a count within 22 % of its own
	preferred = 0.15 // and one that much farther than the nearest wins when it is used more
)

// The counts that can be scaled to.
const (
	minScaled = 1e6
	maxScaled = 5e12
	small     = 1e8 // below it the vocabulary takes up what whole layers leave
)

// OfSize is the most likely architecture of a model of which only the number of
// parameters is known, and a sentence that says which and why. It is
// deterministic:
//
//   - Of the known dense decoders like Llama and GPT-2 within 22 % of the count, those are compared whose
//     ratio to the count is at most 16 % worse than the nearest one's; the one
//     with the highest preference wins, then the nearest, then the earlier in
//     the table. 7e9 is Qwen2.5-7B, 8e9 is Llama-3.1-8B.
//   - Where no known model is that near, between the sizes and beyond the
//     largest, it is Scaled(parameters).
//
// An error means that the count is no model's: below 1e6, above 5e12, not a number.
func (c *Catalog) OfSize(parameters float64) (m Model, why string, err error) {
	if err := checkScaled(parameters); err != nil {
		return Model{}, "", err
	}
	far := func(m Model) float64 { return math.Abs(math.Log(float64(m.Parameters) / parameters)) }
	known := slices.DeleteFunc(slices.Clone(c.models), func(m Model) bool { return !m.scalable })
	closest := slices.MinFunc(known, func(a, b Model) int { return cmp.Compare(far(a), far(b)) })
	if far(closest) > sameSize {
		m, err := c.Scaled(parameters)
		why := fmt.Sprintf("no known model has about %s parameters: a Llama shape scaled to %s (%s)",
			units.FormatCount(parameters), units.FormatCount(float64(m.Parameters)), m.Source)
		return m, why, err
	}
	limit := min(sameSize, far(closest)+preferred)
	best := slices.MinFunc(known, func(a, b Model) int {
		return cmp.Or(compareBool(far(a) > limit, far(b) > limit), cmp.Compare(b.preference, a.preference), cmp.Compare(far(a), far(b)))
	})
	why = fmt.Sprintf("%s is the likeliest known architecture of about that size: %s parameters, %+.1f %% of the %s asked for",
		best.ID, units.FormatCount(float64(best.Parameters)), 100*(float64(best.Parameters)/parameters-1), units.FormatCount(parameters))
	return best.clone(), why, nil
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func checkScaled(parameters float64) error {
	if !(parameters >= minScaled && parameters <= maxScaled) {
		return errors.New("want between 1M and 5T parameters")
	}
	return nil
}

// Scaled is a Llama-shaped config whose count is within 2 % of parameters. Its
// proportions are those of Llama 3: heads of 128 (64 below a hidden size of
// 2048), 8 key and value heads, an inner size of 3.5 × hidden, a hidden size of
// about 110 × layers (128 at 8B, 102 at 70B) and preferably a multiple of 512,
// a vocabulary of 128,256. As in real models of those sizes the head is tied
// below 4e9 and the vocabulary smaller below 1e9; below 1e8 the vocabulary is
// also what closes the gap to the count.
func (c *Catalog) Scaled(parameters float64) (Model, error) {
	if err := checkScaled(parameters); err != nil {
		return Model{}, err
	}
	vocabulary := vocabularyOf(parameters)
	tolerance := 0.0195
	if parameters < small {
		tolerance = 0.1
	}
	bestScore, best := math.Inf(1), map[string]any(nil)
	for hidden := int64(64); hidden <= 65536; hidden += 64 {
		if hidden >= 2048 && hidden%128 != 0 {
			continue
		}
		config := llamaShape(hidden, 1, vocabulary, parameters < 4e9)
		one, err := countParameters(config)
		if err != nil {
			return Model{}, err
		}
		config["num_hidden_layers"] = 2.0
		two, _ := countParameters(config)
		layers := math.Round((parameters-float64(one))/float64(two-one)) + 1
		if layers < 1 {
			break
		}
		off := math.Abs(math.Log((float64(one) + (layers-1)*float64(two-one)) / parameters))
		score := math.Abs(math.Log(float64(hidden)/layers/110)) + 20*off
		if hidden%512 != 0 {
			score += 0.3
		}
		if off < tolerance && score < bestScore {
			config["num_hidden_layers"] = layers
			bestScore, best = score, config
		}
	}
	if best == nil {
		return Model{}, fmt.Errorf("no Llama shape has about %s parameters", units.FormatCount(parameters))
	}
	n, err := countParameters(best)
	if parameters < small {
		// One layer more or less is too coarse a step here, one word is not.
		best["vocab_size"] = float64(vocabulary) + math.Round((parameters-float64(n))/best["hidden_size"].(float64))
		n, err = countParameters(best)
	}
	return Model{
		Family: "llama", Config: best, CheckpointDType: "bfloat16", Parameters: n,
		Source: fmt.Sprintf("scaled: hidden size %.0f, %.0f layers in the proportions of Llama 3", best["hidden_size"], best["num_hidden_layers"]),
	}, err
}

// vocabularyOf is the usual vocabulary of a model of that size.
func vocabularyOf(parameters float64) int64 {
	switch {
	case parameters >= 1e9:
		return 128256
	case parameters >= 1e8:
		return 49152
	case parameters >= 2e7:
		return 32000
	}
	return 2048
}

// llamaShape is a config in the proportions of Llama 3.
func llamaShape(hidden, layers, vocabulary int64, tied bool) map[string]any {
	width := int64(64)
	if hidden >= 2048 {
		width = 128
	}
	heads := hidden / width
	groups := min(8, heads)
	for heads%groups != 0 {
		groups--
	}
	return map[string]any{
		"model_type": "llama", "hidden_act": "silu", "torch_dtype": "bfloat16",
		"hidden_size": float64(hidden), "intermediate_size": float64(units.Bytes(hidden * 7 / 2).RoundUp(64)),
		"num_hidden_layers": float64(layers), "num_attention_heads": float64(heads), "num_key_value_heads": float64(groups),
		"head_dim": float64(width), "vocab_size": float64(vocabulary), "tie_word_embeddings": tied,
		"rms_norm_eps": 1e-5, "max_position_embeddings": 131072.0, "rope_theta": 500000.0,
		"attention_bias": false, "mlp_bias": false,
	}
}
