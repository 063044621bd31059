package planner

import "maps"

// layout is a family of model.architecture: how its sizes are said in the
// configuration of the transformers model that has them.
type layout struct {
	modelType string
	sizes     map[string]string // key of the architecture: key of the configuration
	required  []string
	fixed     map[string]any // keys that the program has one value of
	given     map[string]any // keys of the configuration that are set unless the sizes set them
	dropout   []string       // keys that hidden_dropout sets
	// relatives says that biases, norms and mixtures choose among the model types
	// of Llama's kin.
	relatives bool
	// mixtures is how a mixture of experts is said, by model type.
	mixtures map[string]mixture
	latent   bool // it has latent attention
}

// mixture is how the sizes under moe are said in a configuration.
type mixture struct {
	sizes       map[string]string
	denseList   bool // layers without a mixture are listed
	sharedCount bool // experts that every token visits are counted
}

// latentSizes are the keys of mla, the same in a configuration.
var latentSizes = []string{"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}

// pairs makes a map of keys and values in turn.
func pairs(list ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(list); i += 2 {
		m[list[i]] = list[i+1]
	}
	return m
}

// same maps keys to themselves.
func same(keys ...string) map[string]string {
	m := map[string]string{}
	for _, k := range keys {
		m[k] = k
	}
	return m
}

// with joins maps.
func with(ms ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range ms {
		maps.Copy(all, m)
	}
	return all
}

var (
	decoderSizes = same("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
		"vocab_size", "max_position_embeddings", "attention_dropout")
	decoderNeeds = []string{"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"}

	localExperts = mixture{sizes: pairs("num_experts", "num_local_experts", "num_experts_per_tok", "num_experts_per_tok", "moe_intermediate_size", "intermediate_size")}
	qwenExperts  = mixture{denseList: true, sizes: same("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")}
	deepExperts  = mixture{sharedCount: true, sizes: pairs("num_experts", "n_routed_experts", "num_experts_per_tok", "num_experts_per_tok",
		"moe_intermediate_size", "moe_intermediate_size", "first_dense_layers", "first_k_dense_replace")}
)

// layouts are the families whose sizes can be said: those of the vocabulary, and
// every language model of transformers by its model_type.
func layouts() map[string]layout {
	all := map[string]layout{
		"llama": {
			modelType: "llama", relatives: true, sizes: decoderSizes, required: decoderNeeds,
			fixed:    map[string]any{"norm": "rmsnorm", "swiglu": true, "bias": false, "position_embedding": "rope", "hidden_dropout": 0.0, "rotary_percent": 1.0},
			given:    map[string]any{"tie_word_embeddings": false},
			mixtures: map[string]mixture{"mixtral": localExperts, "qwen2_moe": qwenExperts, "qwen3_moe": qwenExperts},
		},
		"deepseek": {
			modelType: "deepseek_v3", latent: true, sizes: decoderSizes, required: append([]string{"moe", "mla"}, decoderNeeds...),
			fixed:    map[string]any{"norm": "rmsnorm", "swiglu": true, "bias": false, "position_embedding": "rope", "hidden_dropout": 0.0, "rotary_percent": 1.0, "qk_layernorm": false},
			given:    map[string]any{"tie_word_embeddings": false, "n_group": 1.0, "topk_group": 1.0, "n_shared_experts": 1.0},
			mixtures: map[string]mixture{"deepseek_v3": deepExperts},
		},
		"gpt": {
			modelType: "gpt2",
			sizes: pairs("hidden_size", "n_embd", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head",
				"intermediate_size", "n_inner", "vocab_size", "vocab_size", "max_position_embeddings", "n_positions", "attention_dropout", "attn_pdrop"),
			required: []string{"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"},
			fixed:    map[string]any{"norm": "layernorm", "swiglu": false, "bias": true, "qkv_bias": true, "position_embedding": "learned", "activation": "gelu", "qk_layernorm": false},
			given:    map[string]any{"tie_word_embeddings": true},
			dropout:  []string{"embd_pdrop", "resid_pdrop"},
		},
	}
	for _, name := range []string{
		"mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "granite", "olmo", "olmo2", "cohere", "cohere2", "phi", "phi3",
		"stablelm", "starcoder2", "smollm3", "glm", "glm4", "nemotron", "exaone4", "gpt_neox",
	} {
		all[name] = layout{modelType: name, sizes: decoderSizes, required: decoderNeeds}
	}
	for name, m := range map[string]mixture{
		"mixtral": localExperts, "gpt_oss": localExperts, "olmoe": {sizes: pairs("num_experts", "num_experts", "num_experts_per_tok", "num_experts_per_tok", "moe_intermediate_size", "intermediate_size")},
		"qwen2_moe": qwenExperts, "qwen3_moe": qwenExperts, "glm4_moe": deepExperts,
	} {
		all[name] = layout{modelType: name, sizes: decoderSizes, required: append([]string{"moe"}, decoderNeeds...), mixtures: map[string]mixture{name: m}}
	}
	for _, name := range []string{"bert", "roberta", "xlm-roberta"} {
		sizes := with(same("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "max_position_embeddings"),
			pairs("attention_dropout", "attention_probs_dropout_prob"))
		all[name] = layout{modelType: name, sizes: sizes, required: decoderNeeds, dropout: []string{"hidden_dropout_prob"}}
	}
	all["modernbert"] = layout{
		modelType: "modernbert", required: decoderNeeds,
		sizes: same("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "max_position_embeddings", "attention_dropout"),
	}
	all["opt"] = layout{modelType: "opt", required: decoderNeeds, sizes: with(
		same("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings", "attention_dropout"), pairs("intermediate_size", "ffn_dim"))}
	all["bloom"] = layout{
		modelType: "bloom", required: []string{"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"},
		sizes: pairs("hidden_size", "hidden_size", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head", "vocab_size", "vocab_size", "attention_dropout", "attention_dropout"),
	}
	return all
}
