package catalog

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestModelCount(t *testing.T) {
	require.GreaterOrEqual(t, open(t).ModelCount(), 250)
}

// needed are the keys every config must give. What is missing of the others is
// what transformers fills in: no head_dim, no biases, no window.
var needed = map[string][]string{
	"llama":   {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "tie_word_embeddings", "rms_norm_eps", "max_position_embeddings", "hidden_act"},
	"mistral": {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "tie_word_embeddings", "rms_norm_eps", "max_position_embeddings", "hidden_act", "sliding_window", "rope_theta"},
	"qwen2":   {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "tie_word_embeddings", "rms_norm_eps", "max_position_embeddings", "hidden_act", "use_sliding_window", "rope_theta"},
	"gpt2":    {"n_embd", "n_layer", "n_head", "n_positions", "vocab_size", "activation_function", "attn_pdrop", "embd_pdrop", "resid_pdrop", "layer_norm_epsilon"},
}

func TestEveryConfigIsWhole(t *testing.T) {
	for _, m := range open(t).Models("", 0) {
		t.Run(m.ID, func(t *testing.T) {
			require.NotEmpty(t, m.Family)
			for _, key := range needed[m.Family] { // what others need, their programs say
				require.Contains(t, m.Config, key)
			}
			require.NotEmpty(t, m.Source)
			require.NotContains(t, m.Source, "recalled")
			require.Contains(t, []string{"", "float32", "float16", "bfloat16"}, m.CheckpointDType)
			require.Equal(t, m.ParametersPublished > 0, m.ParametersSource != "")
			if heads, ok := m.Config["num_attention_heads"].(float64); ok {
				if groups, ok := m.Config["num_key_value_heads"].(float64); ok {
					require.Zero(t, math.Mod(heads, groups))
				}
			}
		})
	}
}

func TestEveryModelIsFoundByEverySpelling(t *testing.T) {
	c := open(t)
	for _, m := range c.Models("", 0) {
		for _, spelling := range append([]string{m.ID, strings.ToUpper(m.ID), m.ID + "@main", strings.ReplaceAll(m.ID, "-", " ")}, m.Aliases...) {
			found, ok := c.Model(spelling)
			require.True(t, ok, spelling)
			require.Equal(t, m.ID, found.ID, spelling)
		}
	}
}

func TestModel(t *testing.T) {
	c := open(t)
	for _, test := range []struct{ name, typed, id string }{
		{"hub id", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"},
		{"revision", "Qwen/Qwen2.5-7B-Instruct@a09a354", "Qwen/Qwen2.5-7B-Instruct"},
		{"name without owner", "llama-3.1-8b", "meta-llama/Llama-3.1-8B"},
		{"loose spelling", "qwen2.5 7b instruct", "Qwen/Qwen2.5-7B-Instruct"},
		{"old name of the same weights", "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B"},
		{"new name of the organisation", "openai-community/gpt2-xl", "gpt2-xl"},
		{"unknown", "acme/Llama-9-8B", ""},
		{"empty", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, ok := c.Model(test.typed)
			require.Equal(t, test.id, m.ID)
			require.Equal(t, test.id != "", ok)
		})
	}
}

func TestModelsAreCopies(t *testing.T) {
	c := open(t)
	m, _ := c.Model("llama-3.1-8b")
	m.Config["hidden_size"] = 1.0
	m.Config["rope_scaling"].(map[string]any)["factor"] = 1.0
	again, _ := c.Model("meta-llama/Llama-3.1-8B-Instruct")
	require.Equal(t, 4096.0, again.Config["hidden_size"])
	require.Equal(t, 8.0, again.Config["rope_scaling"].(map[string]any)["factor"])
}

// TestParametersEqualTransformers holds the count of every config against what
// real transformers made of it.
func TestParametersEqualTransformers(t *testing.T) {
	text, err := os.ReadFile("testdata/parameters.json")
	require.NoError(t, err)
	var golden struct{ Parameters map[string]int64 }
	require.NoError(t, json.Unmarshal(text, &golden))

	c := open(t)
	require.GreaterOrEqual(t, len(golden.Parameters), 200, "configs")
	for id, want := range golden.Parameters {
		m, ok := c.Model(id)
		require.True(t, ok, id)
		require.Equal(t, want, m.Parameters, id)
	}
}

// TestParametersEqualPublished counts by formulas of its own, from the shapes,
// and compares with what others printed.
func TestParametersEqualPublished(t *testing.T) {
	published := 0
	for _, m := range open(t).Models("", 0) {
		if m.ParametersPublished == 0 {
			continue
		}
		published++
		require.Equal(t, m.ParametersPublished, decoderParameters(m.Config), m.ID)
		require.Equal(t, m.ParametersPublished, m.Parameters, m.ID)
	}
	require.GreaterOrEqual(t, published, 20)
}

// decoderParameters is the textbook count of a Llama-like decoder.
func decoderParameters(config map[string]any) int64 {
	at := func(key string) int64 { v, _ := config[key].(float64); return int64(v) }
	h, layers, kv := at("hidden_size"), at("num_hidden_layers"), at("num_key_value_heads")
	d := h / at("num_attention_heads")
	attention := h*h + 2*h*kv*d + h*h
	if config["model_type"] == "qwen2" {
		attention += h + 2*kv*d
	}
	mlp := 3 * h * at("intermediate_size")
	total := at("vocab_size")*h + layers*(attention+mlp+2*h) + h
	if config["tie_word_embeddings"] == false {
		total += at("vocab_size") * h
	}
	return total
}

func TestCountParameters(t *testing.T) {
	llama := func(change map[string]any) map[string]any {
		m := map[string]any{"model_type": "llama", "hidden_size": 8.0, "intermediate_size": 16.0, "num_hidden_layers": 1.0, "num_attention_heads": 2.0, "vocab_size": 10.0}
		for k, v := range change {
			m[k] = v
		}
		return m
	}
	const plain = 2*80 + (4*64 + 3*128 + 16) + 8
	for _, test := range []struct {
		name   string
		config map[string]any
		want   int64
		err    string
	}{
		{"plain", llama(nil), plain, ""},
		{"tied", llama(map[string]any{"tie_word_embeddings": true}), plain - 80, ""},
		{"grouped keys and values", llama(map[string]any{"num_key_value_heads": 1.0}), plain - 64, ""},
		{"wide heads", llama(map[string]any{"head_dim": 8.0}), plain + 4*64, ""},
		{"biases of attention", llama(map[string]any{"attention_bias": true}), plain + 32, ""},
		{"biases of the MLP", llama(map[string]any{"mlp_bias": true}), plain + 40, ""},
		{"qwen2 biases", llama(map[string]any{"model_type": "qwen2"}), plain + 24, ""},
		{"null key takes the default", llama(map[string]any{"num_key_value_heads": nil}), plain, ""},
		{"missing shape", llama(map[string]any{"vocab_size": nil}), 0, "vocab_size"},
		{"fraction", llama(map[string]any{"num_hidden_layers": 1.5}), 0, "num_hidden_layers"},
		{"other family", map[string]any{"model_type": "t5"}, 0, "model_type"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n, err := countParameters(test.config)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, n)
		})
	}
}

func TestSearch(t *testing.T) {
	c := open(t)
	for _, test := range []struct {
		name, query string
		first       []string
	}{
		{"family and size", "llama 8b", []string{"meta-llama/Llama-3.1-8B"}},
		{"words of an id", "qwen 7b instruct", []string{"Qwen/Qwen2.5-7B-Instruct"}},
		{"version", "qwen2.5 14b", []string{"Qwen/Qwen2.5-14B"}},
		{"variant", "qwen coder 32b", []string{"Qwen/Qwen2.5-Coder-32B"}},
		{"distilled", "r1 distill llama", []string{"deepseek-ai/DeepSeek-R1-Distill-Llama-8B"}},
		{"part of a word", "smol 135", []string{"HuggingFaceTB/SmolLM2-135M"}},
		{"family alone", "gpt2", []string{"gpt2"}},
		{"typing error", "mistrall-7b-v0.3", []string{"mistralai/Mistral-7B-v0.3"}},
		{"capitals", "MISTRAL NEMO", []string{"mistralai/Mistral-Nemo-Base-2407"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var ids []string
			for _, m := range c.Models(test.query, len(test.first)) {
				ids = append(ids, m.ID)
			}
			require.Equal(t, test.first, ids)
		})
	}
	require.Len(t, c.Models("llama", 4), 4)
	require.Len(t, c.Models("", 0), c.ModelCount())
}

func TestNearestModels(t *testing.T) {
	c := open(t)
	require.Equal(t, "meta-llama/Llama-3.1-8B", c.Nearest("meta-llama/Llama-3.1-8C")[0])
	require.Equal(t, "Qwen/Qwen2.5-7B", c.Nearest("Qwen/Qwen-2.5-7BB@main")[0])
	require.Len(t, c.Nearest("llama"), 3)
	require.Empty(t, c.Nearest(""))
	require.Empty(t, c.Nearest("nope"), "not one letter of it is near")
}

func TestOfSize(t *testing.T) {
	c := open(t)
	for _, test := range []struct {
		name       string
		parameters float64
		id         string
	}{
		{"7B", 7e9, "Qwen/Qwen2.5-7B"},
		{"8B", 8e9, "meta-llama/Llama-3.1-8B"},
		{"the exact count of one", 8030261248, "meta-llama/Llama-3.1-8B"},
		{"3B", 3e9, "Qwen/Qwen2.5-3B"},
		{"13B", 13e9, "meta-llama/Llama-2-13b-hf"},
		{"14B", 14e9, "Qwen/Qwen2.5-14B"},
		{"32B", 32e9, "Qwen/Qwen2.5-32B"},
		{"70B", 70e9, "meta-llama/Llama-3.1-70B"},
		{"405B", 405e9, "meta-llama/Llama-3.1-405B"},
		{"GPT-2", 124e6, "gpt2"},
		{"between the known", 20e9, ""},
		{"beyond the largest", 1e12, ""},
		{"below the smallest", 5e6, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, why, err := c.OfSize(test.parameters)
			require.NoError(t, err)
			require.Equal(t, test.id, m.ID)
			if test.id == "" {
				require.Contains(t, why, "scaled")
				require.InEpsilon(t, test.parameters, float64(m.Parameters), 0.02)
			} else {
				require.Contains(t, why, test.id)
				require.InEpsilon(t, test.parameters, float64(m.Parameters), 0.23)
			}
		})
	}
	for _, wrong := range []float64{0, -7e9, 1e5, 1e14, math.NaN(), math.Inf(1)} {
		_, _, err := c.OfSize(wrong)
		require.Error(t, err)
	}
}

func TestScaledIsWithinTwoPercent(t *testing.T) {
	c := open(t)
	rapid.Check(t, func(t *rapid.T) {
		asked := math.Exp(rapid.Float64Range(math.Log(1.001*minScaled), math.Log(0.999*maxScaled)).Draw(t, "log of parameters"))
		m, err := c.Scaled(asked)
		require.NoError(t, err)
		require.InEpsilon(t, asked, float64(m.Parameters), 0.02)
		n, err := countParameters(m.Config)
		require.NoError(t, err)
		require.Equal(t, m.Parameters, n)
		for _, key := range slices.Concat(needed["llama"], []string{"head_dim"}) {
			require.Contains(t, m.Config, key)
		}
		heads := m.Config["num_attention_heads"].(float64)
		require.Equal(t, m.Config["hidden_size"], heads*m.Config["head_dim"].(float64))
		require.Zero(t, math.Mod(heads, m.Config["num_key_value_heads"].(float64)))
	})
}
