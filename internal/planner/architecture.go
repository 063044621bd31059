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

// layout is a family of model.architecture: how its sizes are said in the
// configuration of the transformers model that has them.
type layout struct {
	modelType string
	sizes     map[string]string // key of the architecture: key of the configuration
	required  []string
	fixed     map[string]any // keys that the program has one value of
	tied      bool           // unless untied is said
	dropout   []string       // keys that hidden_dropout sets
}

// layouts are the families whose programs the engine has.
func layouts() map[string]layout {
	sizes := func(pairs ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	return map[string]layout{
		"llama": {
			modelType: "llama",
			sizes: sizes("hidden_size", "hidden_size", "num_hidden_layers", "num_hidden_layers", "num_attention_heads", "num_attention_heads",
				"num_key_value_heads", "num_key_value_heads", "head_dim", "head_dim", "intermediate_size", "intermediate_size",
				"vocab_size", "vocab_size", "max_position_embeddings", "max_position_embeddings", "attention_dropout", "attention_dropout"),
			required: []string{"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"},
			fixed:    map[string]any{"norm": "rmsnorm", "swiglu": true, "bias": false, "position_embedding": "rope", "hidden_dropout": 0.0, "rotary_percent": 1.0},
		},
		"gpt": {
			modelType: "gpt2",
			sizes: sizes("hidden_size", "n_embd", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head",
				"intermediate_size", "n_inner", "vocab_size", "vocab_size", "max_position_embeddings", "n_positions", "attention_dropout", "attn_pdrop"),
			required: []string{"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"},
			fixed:    map[string]any{"norm": "layernorm", "swiglu": false, "bias": true, "qkv_bias": true, "position_embedding": "learned", "activation": "gelu", "qk_layernorm": false},
			tied:     true,
			dropout:  []string{"embd_pdrop", "resid_pdrop"},
		},
	}
}

// resolveArchitecture says explicit sizes as the configuration of the
// transformers model that has them.
func resolveArchitecture(r *prepared) error {
	a := r.asked.Architecture
	if model.OfSizes(a) != nil {
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
	c := map[string]any{"model_type": l.modelOf(a), "tie_word_embeddings": l.tied}
	if t.SequenceLength > 0 {
		c[l.sizes["max_position_embeddings"]] = float64(t.SequenceLength)
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
	return c, wrong.Err()
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
	case "family", "parameters", "qkv_bias", "qk_layernorm":
		return "", true
	case "untied":
		untied, is := v.(bool)
		c["tie_word_embeddings"] = !untied
		return "true or false", is
	case "hidden_dropout":
		for _, to := range l.dropout {
			c[to] = v
		}
		return "", true
	case "num_key_value_heads":
		return "as many as num_attention_heads: fewer are not modelled", fmt.Sprint(v) == fmt.Sprint(a["num_attention_heads"])
	}
	return "nothing: it is not modelled for family " + fmt.Sprint(a["family"]), false
}

// modelOf is the model type: relatives of Llama differ in what stands before
// the attention.
func (l layout) modelOf(a map[string]any) string {
	switch {
	case l.modelType == "llama" && a["qk_layernorm"] == true:
		return "qwen3"
	case l.modelType == "llama" && a["qkv_bias"] == true:
		return "qwen2"
	}
	return l.modelType
}
