package planner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/planner"
)

func TestModelByID(t *testing.T) {
	p, e := newPlanner(t, planner.Config{})
	for _, id := range []string{"meta-llama/Llama-3.1-8B", "META-LLAMA/llama_3.1_8b", "Llama-3.1-8B@main"} {
		job := gpt2()
		job.Model = spec.Model{ID: id, Implementation: "hf"}
		est, err := p.Estimate(t.Context(), job)
		require.NoError(t, err, id)
		got := e.last().job.Model
		require.Empty(t, got.ID)
		require.Equal(t, "llama", got.Config["model_type"])
		require.Equal(t, 4096.0, got.Config["hidden_size"])
		require.Equal(t, "bfloat16", got.Config["torch_dtype"], "what the weights are loaded as")
		require.Equal(t, job.Model, est.Job.Model, "the answer names the model as the user did")
	}
}

func TestModelGivenByItself(t *testing.T) {
	m := spec.Model{Config: map[string]any{"model_type": "llama"}}
	p, e := newPlanner(t, planner.Config{})
	_, err := p.Estimate(t.Context(), spec.Job{Model: m})
	require.NoError(t, err)
	require.Equal(t, m, e.last().job.Model)
}

func TestModelByItsSizes(t *testing.T) {
	sizes := func(more string) string {
		return "{hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, vocab_size: 512" + more + "}"
	}
	for _, test := range []struct {
		name, architecture, modelType string
		wrong                         []string
	}{
		{name: "llama", architecture: sizes(", family: llama, intermediate_size: 128, num_key_value_heads: 2, norm: rmsnorm, swiglu: true, untied: true"), modelType: "llama"},
		{name: "biases on queries, keys and values", architecture: sizes(", family: llama, intermediate_size: 128, qkv_bias: true"), modelType: "qwen2"},
		{name: "norms on queries and keys", architecture: sizes(", family: llama, intermediate_size: 128, head_dim: 16, qk_layernorm: true"), modelType: "qwen3"},
		{name: "gpt", architecture: sizes(", family: gpt, max_position_embeddings: 256, num_key_value_heads: 4, activation: gelu, hidden_dropout: 0.0"), modelType: "gpt2"},
		{name: "a family without a program", architecture: sizes(", family: t5"), wrong: []string{"model.architecture.family"}},
		{name: "sizes missing", architecture: "{family: llama, hidden_size: 64}", wrong: []string{
			"model.architecture.num_hidden_layers", "model.architecture.num_attention_heads", "model.architecture.intermediate_size", "model.architecture.vocab_size",
		}},
		{name: "a mixture", architecture: sizes(", family: llama, intermediate_size: 128, moe: {num_experts: 8, num_experts_per_tok: 2}"), modelType: "mixtral"},
		{name: "a mixture beside a shared expert", architecture: sizes(", family: llama, intermediate_size: 128, moe: {num_experts: 8, num_experts_per_tok: 2, moe_intermediate_size: 32, shared_expert_intermediate_size: 64, first_dense_layers: 1}"), modelType: "qwen2_moe"},
		{name: "deepseek", architecture: sizes(", family: deepseek, intermediate_size: 128, moe: {num_experts: 8, num_experts_per_tok: 2, moe_intermediate_size: 32, shared_expert_intermediate_size: 64, first_dense_layers: 1, dispatcher: alltoall}, mla: {q_lora_rank: null, kv_lora_rank: 32, qk_nope_head_dim: 16, qk_rope_head_dim: 8, v_head_dim: 16}"), modelType: "deepseek_v3"},
		{name: "deepseek without its parts", architecture: sizes(", family: deepseek, intermediate_size: 128"), wrong: []string{"model.architecture.moe", "model.architecture.mla"}},
		{name: "a model type", architecture: sizes(", family: gemma2, intermediate_size: 128, head_dim: 16"), modelType: "gemma2"},
		{name: "an encoder", architecture: sizes(", family: roberta, intermediate_size: 128, hidden_dropout: 0.1"), modelType: "roberta"},
		{name: "what the program has no room for", architecture: sizes(", family: llama, intermediate_size: 128, norm: layernorm, moe: {num_experts: 8, capacity_factor: 1.0}"), wrong: []string{
			"model.architecture.norm", "model.architecture.moe.num_experts_per_tok", "model.architecture.moe.capacity_factor",
		}},
		{name: "grouped queries of gpt", architecture: sizes(", family: gpt, num_key_value_heads: 2"), wrong: []string{"model.architecture.num_key_value_heads"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			job := decode(t, "{model: {architecture: "+test.architecture+"}, training: {micro_batch_size: 1, sequence_length: 128}, target: {gpu: T4}}")
			est, err := real(t, planner.Config{}).Estimate(t.Context(), job)
			var wrong []string
			for _, f := range fault.FieldsOf(err) {
				wrong = append(wrong, f.Path)
			}
			require.Equal(t, test.wrong, wrong, "%v", err)
			if test.wrong != nil {
				return
			}
			require.Equal(t, test.modelType, est.Assumptions[0].Value)
			require.Equal(t, job.Model.Architecture, est.Job.Model.Architecture, "the answer names the model as the user did")
			require.Empty(t, est.Job.Model.Config)
		})
	}
}

func TestAGraphGoesToTheEngineAsItIs(t *testing.T) {
	g := map[string]any{"format": "memplan-graph", "version": 1.0}
	p, e := newPlanner(t, planner.Config{})
	_, err := p.Estimate(t.Context(), spec.Job{Model: spec.Model{Graph: g}})
	require.NoError(t, err)
	require.Equal(t, spec.Model{Graph: g}, e.calls[0].job.Model)
}

func TestModelIsNamedOnce(t *testing.T) {
	for _, test := range []struct {
		name  string
		model spec.Model
		got   string
	}{
		{"not at all", spec.Model{}, ""},
		{"twice", spec.Model{ID: "gpt2", Parameters: 1e9}, "id and parameters"},
	} {
		p, _ := newPlanner(t, planner.Config{})
		_, err := p.Estimate(t.Context(), spec.Job{Model: test.model})
		require.Equal(t, fault.Fields{{Path: "model", Got: test.got, Want: "exactly one of id, config, architecture, parameters and graph"}}, fault.FieldsOf(err), test.name)
	}
}

func TestUnknownModelSaysHowToGoOn(t *testing.T) {
	missing := hub(func(string) ([]byte, error) { return nil, fault.New(fault.NotFound, "no") })
	gated := hub(func(string) ([]byte, error) { return nil, fault.New(fault.Forbidden, "no") })
	for _, test := range []struct {
		name string
		hub  planner.Hub
		want string
	}{
		{"no hub", nil, "no hub is configured here"},
		{"not on the hub", missing, "of the hub"},
		{"gated", gated, "token"},
	} {
		p, _ := newPlanner(t, planner.Config{Hub: test.hub})
		_, err := p.Estimate(t.Context(), spec.Job{Model: spec.Model{ID: "meta-llama/Llama-3.1-9B"}})
		fields := fault.FieldsOf(err)
		require.Len(t, fields, 1, test.name)
		require.Equal(t, "model.id", fields[0].Path)
		require.Equal(t, "meta-llama/Llama-3.1-8B", fields[0].Nearest)
		require.Contains(t, fields[0].Want, test.want)
		require.Contains(t, fields[0].Want, "paste the model's config.json as model.config")
	}
}

func TestModelFromTheHub(t *testing.T) {
	asked, now := 0, noon
	answer := func() ([]byte, error) { return []byte(`{"model_type":"qwen2","hidden_size":64}`), nil }
	p, e := newPlanner(t, planner.Config{
		Store: newStore(t),
		Now:   func() time.Time { return now },
		Hub: hub(func(id string) ([]byte, error) {
			require.Equal(t, "someone/new@v2", id)
			asked++
			return answer()
		}),
	})
	job := spec.Job{Model: spec.Model{ID: "someone/new@v2"}}
	estimate := func(hidden float64, fetches int, msg string) {
		t.Helper()
		est, err := p.Estimate(t.Context(), job)
		require.NoError(t, err, msg)
		require.Equal(t, hidden, e.last().job.Model.Config["hidden_size"], msg)
		require.Equal(t, fetches, asked, msg)
		require.Equal(t, job.Model, est.Job.Model)
		require.Contains(t, assumption(t, est, "model.config").Value, "someone/new@v2")
	}
	estimate(64, 1, "fetched")
	estimate(64, 1, "kept in the store")
	now = now.Add(25 * time.Hour)
	answer = func() ([]byte, error) { return []byte(`{"model_type":"qwen2","hidden_size":128}`), nil }
	estimate(128, 2, "fetched anew after a day")
	now = now.Add(25 * time.Hour)
	answer = func() ([]byte, error) { return nil, fault.New(fault.Unavailable, "down") }
	estimate(128, 3, "an old one serves while the hub is down")
}

func TestHubFails(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer func(string) ([]byte, error)
		want   fault.Kind
	}{
		{"down", func(string) ([]byte, error) { return nil, fault.New(fault.Unavailable, "down") }, fault.Unavailable},
		{"no JSON", func(string) ([]byte, error) { return []byte("<html>"), nil }, fault.Unavailable},
		{"a list", func(string) ([]byte, error) { return []byte("[]"), nil }, fault.Unavailable},
		{"null", func(string) ([]byte, error) { return []byte("null"), nil }, fault.Unavailable},
		{"no id", func(string) ([]byte, error) { return nil, fault.Fields{{Path: "model.id"}} }, fault.Invalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStore(t)
			p, _ := newPlanner(t, planner.Config{Hub: hub(test.answer), Store: s})
			_, err := p.Estimate(t.Context(), spec.Job{Model: spec.Model{ID: "someone/new"}})
			require.Equal(t, test.want, fault.KindOf(err), "%v", err)
			_, err = s.HubConfig(t.Context(), "someone/new")
			require.Equal(t, fault.NotFound, fault.KindOf(err), "what is no configuration is not kept")
		})
	}
}

func TestModelByCount(t *testing.T) {
	p, e := newPlanner(t, planner.Config{})
	est, err := p.Estimate(t.Context(), spec.Job{Model: spec.Model{Parameters: 8e9}})
	require.NoError(t, err)
	require.Equal(t, "llama", e.last().job.Model.Config["model_type"])
	require.Equal(t, spec.Model{Parameters: 8e9}, est.Job.Model)
	first := est.Assumptions[0]
	require.Equal(t, "model.architecture", first.Path, "what decides most comes first")
	require.True(t, first.Decides)
	require.Equal(t, "meta-llama/Llama-3.1-8B", first.Value)
	require.Contains(t, warned(est), "coarse_model")
	require.InDelta(t, 0.25, 1.645*e.last().coefficients.EngineError, 1e-9, "a quarter either way at the 5th and 95th percentile")
}

func TestModelByImpossibleCount(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{})
	_, err := p.Estimate(t.Context(), spec.Job{Model: spec.Model{Parameters: 12}})
	require.Equal(t, fault.Fields{{Path: "model.parameters", Got: "12", Want: "between 1M and 5T parameters"}}, fault.FieldsOf(err))
}
