package throughput

import (
	"maps"

	"memplan/internal/estimator/spec"
)

// standIn is the job with a model that the engine runs in place of one it may
// not: another code of the same network, or a network whose products have the
// same sizes. It is for time alone, never for memory.
func standIn(m spec.Model) spec.Model {
	c := m.Config
	kind, _ := c["model_type"].(string)
	switch kind {
	case "mpt":
		m.Config = mptAsGPT2(c)
	case "qwen":
		m.Config = withType(c, "llama", map[string]any{"intermediate_size": half(c["intermediate_size"])})
	case "mixtral", "qwen2_moe", "qwen3_moe":
		m.Config = withType(c, "llama", map[string]any{"intermediate_size": activeWidth(c)})
	}
	if kind != "" {
		m.Implementation, m.ImplementationVersion = "", ""
	}
	return m
}

// withType is a configuration under another type, with some values set.
func withType(c map[string]any, kind string, set map[string]any) map[string]any {
	out := maps.Clone(c)
	out["model_type"] = kind
	for k, v := range set {
		if v != nil {
			out[k] = v
		}
	}
	return out
}

// mptAsGPT2 gives MPT's sizes to GPT-2, whose blocks multiply the same.
func mptAsGPT2(c map[string]any) map[string]any {
	return map[string]any{
		"model_type": "gpt2", "n_embd": c["d_model"], "n_layer": c["n_layers"], "n_head": c["n_heads"],
		"n_positions": c["max_seq_len"], "vocab_size": c["vocab_size"], "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
	}
}

// half is half a number: the first Qwen writes both halves of its gated MLP as
// one size.
func half(v any) any {
	if n, ok := v.(float64); ok {
		return n / 2
	}
	return nil
}

// activeWidth is the width of an MLP that does what a token's experts do.
func activeWidth(c map[string]any) any {
	width, ok := c["moe_intermediate_size"].(float64)
	if !ok {
		width, ok = c["intermediate_size"].(float64)
	}
	experts, each := c["num_experts_per_tok"].(float64)
	if !ok || !each {
		return nil
	}
	return width * experts
}
