package catalog

import "fmt"

// reader reads whole numbers and flags of a config and collects what is missing.
type reader struct {
	config map[string]any
	err    error
}

// size reads a positive whole number; a missing or null key takes fallback, and
// is an error where fallback is 0.
func (r *reader) size(key string, fallback int64) int64 {
	v, ok := r.config[key]
	if (!ok || v == nil) && fallback > 0 {
		return fallback
	}
	n, ok := v.(float64)
	if (!ok || n < 1 || n != float64(int64(n))) && r.err == nil {
		r.err = fmt.Errorf("config: %s is %v, want a positive whole number", key, v)
		return 1
	}
	return int64(n)
}

func (r *reader) flag(key string, fallback bool) bool {
	if v, ok := r.config[key].(bool); ok {
		return v
	}
	return fallback
}

// countParameters counts the elements of the parameters that transformers makes
// from a config of the families in the table, a head tied to the embedding once.
// It fails on another family and on a config without its shapes.
func countParameters(config map[string]any) (int64, error) {
	r := &reader{config: config}
	var n int64
	switch family := config["model_type"]; family {
	case "llama", "mistral", "qwen2":
		n = countGated(r, family == "qwen2")
	case "gpt2":
		n = countGPT2(r)
	default:
		return 0, fmt.Errorf("config: model_type is %v, want llama, mistral, qwen2 or gpt2", family)
	}
	return n, r.err
}

// countGated counts a decoder with rotary positions, RMS norms and a gated MLP:
// per layer query, key, value and output projections, gate, up and down, and
// two norms; one more norm at the end. Qwen2 has biases on query, key and value
// alone; Llama's attention_bias and mlp_bias put one on every projection.
func countGated(r *reader, qkvBias bool) int64 {
	hidden, inner := r.size("hidden_size", 0), r.size("intermediate_size", 0)
	heads := r.size("num_attention_heads", 0)
	width := r.size("head_dim", hidden/heads)
	q, kv := heads*width, r.size("num_key_value_heads", heads)*width

	layer := 2*hidden*q + 2*hidden*kv + 3*hidden*inner + 2*hidden
	if allBias := r.flag("attention_bias", false); qkvBias || allBias {
		layer += q + 2*kv
		if allBias {
			layer += hidden
		}
	}
	if r.flag("mlp_bias", false) {
		layer += 2*inner + hidden
	}
	embedding := r.size("vocab_size", 0) * hidden
	if !r.flag("tie_word_embeddings", false) {
		embedding *= 2
	}
	return embedding + r.size("num_hidden_layers", 0)*layer + hidden
}

// countGPT2 counts GPT-2: learned positions, biases everywhere, layer norms
// with weight and bias, a head tied to the embedding.
func countGPT2(r *reader) int64 {
	width := r.size("n_embd", 0)
	inner := r.size("n_inner", 4*width)
	attention := 4*width*width + 4*width
	mlp := 2*width*inner + inner + width
	norms := 4 * width
	embeddings := (r.size("vocab_size", 0) + r.size("n_positions", 0)) * width
	return embeddings + r.size("n_layer", 0)*(attention+mlp+norms) + 2*width
}
