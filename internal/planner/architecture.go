package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// resolveArchitecture says explicit sizes as the configuration of the
// transformers model that has them.
func resolveArchitecture(r *prepared) error {
	a := r.asked.Architecture
	if model.OfSizes(a) != nil || r.job.Model.Implementation == model.Megatron || r.job.Runtime.Trainer == model.Megatron {
		return nil // the engine takes them as they are
	}
	family, _ := a["family"].(string)
	known := layouts()
	l, ok := known[family]
	if !ok {
		names := slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Keys(known)), model.ExplicitFamilies())))
		return fault.Fields{{Path: "model.architecture.family", Got: family, Want: "one of " + strings.Join(names, ", ") + " (others are not modelled)", Nearest: "llama"}}
	}
	config, err := l.config(a, r.job.Training)
	if err != nil {
		return err
	}
	r.assume("model.config.model_type", config["model_type"], true, "the transformers program of these sizes")
	r.useConfig(config)
	return nil
}

// config is the configuration of an architecture, or every key of it that the
// program has no room for.
func (l layout) config(a map[string]any, t spec.Training) (map[string]any, error) {
	c := maps.Clone(l.given)
	if c == nil {
		c = map[string]any{}
	}
	c["model_type"] = l.modelOf(a)
	if c["model_type"] == "qwen2_moe" && l.relatives {
		c["qkv_bias"] = a["qkv_bias"] == true
	}
	if to := l.sizes["max_position_embeddings"]; to != "" && t.SequenceLength > 0 {
		c[to] = float64(t.SequenceLength)
	}
	var wrong fault.Fields
	for _, key := range l.required {
		if a[key] == nil {
			wrong = append(wrong, fault.Field{Path: "model.architecture." + key, Want: "a size: family " + fmt.Sprint(a["family"]) + " has no default for it"})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(a)) {
		if want, ok := l.set(c, a, key); !ok {
			wrong.Add("model.architecture."+key, a[key], want, "")
		}
	}
	if nested, ok := a["moe"].(map[string]any); ok && len(l.mixtures) > 0 {
		wrong = append(wrong, l.mix(c, nested)...)
	}
	if nested, ok := a["mla"].(map[string]any); ok && l.latent {
		for _, key := range slices.Sorted(maps.Keys(nested)) {
			if !slices.Contains(latentSizes, key) {
				wrong.Add("model.architecture.mla."+key, nested[key], "one of "+strings.Join(latentSizes, ", "), "")
			}
			c[key] = nested[key]
		}
	}
	return c, wrong.Err()
}

// mix takes the sizes of a mixture of experts over.
func (l layout) mix(c, moe map[string]any) fault.Fields {
	var wrong fault.Fields
	to := l.mixtures[c["model_type"].(string)]
	for _, key := range []string{"num_experts", "num_experts_per_tok"} {
		if moe[key] == nil {
			wrong = append(wrong, fault.Field{Path: "model.architecture.moe." + key, Want: "a size"})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(moe)) {
		v := moe[key]
		size, _ := v.(float64)
		switch {
		case key == "dispatcher" || key == "grouped_gemm" || key == "permute_fusion": // how, not how much
		case to.sizes[key] != "":
			c[to.sizes[key]] = v
		case key == "first_dense_layers" && to.denseList:
			var dense []any
			for i := range int(size) {
				dense = append(dense, float64(i))
			}
			c["mlp_only_layers"] = dense
		case key == "shared_expert_intermediate_size" && to.sharedCount:
			inner, _ := moe["moe_intermediate_size"].(float64)
			if inner <= 0 || float64(int(size/inner))*inner != size {
				wrong.Add("model.architecture.moe."+key, v, "a multiple of moe_intermediate_size", "")
				continue
			}
			c["n_shared_experts"] = size / inner
		case v == nil || v == false || size == 0 && v == float64(0):
		default:
			wrong.Add("model.architecture.moe."+key, v, "nothing: it is not modelled for "+fmt.Sprint(c["model_type"]), "")
		}
	}
	return wrong
}

// set takes one key over, or says what it would have to be.
func (l layout) set(c, a map[string]any, key string) (want string, ok bool) {
	v := a[key]
	if fixed, is := l.fixed[key]; is {
		return fmt.Sprint(fixed, ": others are not modelled"), fmt.Sprint(v) == fmt.Sprint(fixed)
	}
	if to := l.sizes[key]; to != "" {
		c[to] = v
		return "", true
	}
	switch key {
	case "family", "parameters":
		return "", true
	case "qkv_bias", "qk_layernorm":
		if l.relatives || v == false {
			return "", true
		}
	case "moe":
		_, nested := v.(map[string]any)
		return "the sizes of a mixture; it is not modelled for family " + fmt.Sprint(a["family"]), nested && len(l.mixtures) > 0
	case "mla":
		_, nested := v.(map[string]any)
		return "the sizes of latent attention; it is not modelled for family " + fmt.Sprint(a["family"]), nested && l.latent
	case "untied":
		untied, is := v.(bool)
		c["tie_word_embeddings"] = !untied
		return "true or false", is
	case "hidden_dropout":
		for _, to := range l.dropout {
			c[to] = v
		}
		return "", true
	case "num_key_value_heads": // of a model that has one for every query head
		return "as many as num_attention_heads: fewer are not modelled", fmt.Sprint(v) == fmt.Sprint(a["num_attention_heads"])
	}
	return "nothing: it is not modelled for family " + fmt.Sprint(a["family"]), false
}

// modelOf is the model type: relatives of Llama differ in what stands before
// the attention, and in whether there is a mixture of experts.
func (l layout) modelOf(a map[string]any) string {
	if !l.relatives {
		return l.modelType
	}
	moe, mixed := a["moe"].(map[string]any)
	shared, _ := moe["shared_expert_intermediate_size"].(float64)
	switch {
	case mixed && a["qk_layernorm"] == true:
		return "qwen3_moe"
	case mixed && (shared > 0 || a["qkv_bias"] == true):
		return "qwen2_moe"
	case mixed:
		return "mixtral"
	case a["qk_layernorm"] == true:
		return "qwen3"
	case a["qkv_bias"] == true:
		return "qwen2"
	}
	return l.modelType
}
