package model

import (
	"slices"

	"memplan/internal/estimator/graph"
)

// qwen2MoeFamily is Qwen 1.5 MoE and Qwen 2 57B-A14B: Qwen 2 with a mixture of
// experts beside one that every token visits, through a gate. Written from
// transformers 5.24, models/qwen2_moe/modeling_qwen2_moe.py.
var qwen2MoeFamily = Family{
	Name:           "qwen2_moe",
	ModelTypes:     []string{"qwen2_moe"},
	Source:         "huggingface/transformers:src/transformers/models/qwen2_moe/modeling_qwen2_moe.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newQwen2Moe,
}

func newQwen2Moe(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.qkvBias, l.outBias, l.mlpBias = "Qwen2Moe", c.Bool(true, "qkv_bias"), false, false
	e := readQwenMoe(&c, b, l)
	shared := c.IntOr(5632, "shared_expert_intermediate_size")
	sparse := c.sparseLayers(l.layers)
	c.Refuses("use_sliding_window")
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModelOf(l, b, func(i int64, ctx *llamaContext) *graph.Module {
		if !sparse[i] {
			return llamaBlock(l, b, ctx, llamaMLP(l, b.DType))
		}
		return llamaBlock(l, b, ctx, qwen2MoeBlock(l, e, shared, b.DType))
	})
	m.compared = true
	m.mixed = slices.Contains(sparse, false)
	m.unusedWindow = true
	return e.in(m.network(m.causalLM("Qwen2MoeForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), count(sparse)), nil
}

// readQwenMoe reads the mixture of the families of Qwen's kind.
func readQwenMoe(c *Config, b Build, l llamaConfig) moeConfig {
	e := moeConfig{
		class: l.class, hidden: l.hidden, act: l.act, normalised: c.Bool(false, "norm_topk_prob"),
		inner: c.Int("moe_intermediate_size"), experts: c.Int("num_experts", "num_local_experts"), chosen: c.Int("num_experts_per_tok"),
	}
	e.check(c, b)
	return e
}

// sparseLayers says which layers have a mixture: every so many-th, less those
// named.
func (c *Config) sparseLayers(layers int64) []bool {
	every := c.IntOr(1, "decoder_sparse_step")
	dense, _ := c.values["mlp_only_layers"].([]any)
	sparse := make([]bool, layers)
	for i := range sparse {
		sparse[i] = int64(i+1)%every == 0 && !slices.ContainsFunc(dense, func(v any) bool { return v == float64(i) || v == i })
	}
	return sparse
}

// count is how many are true.
func count(list []bool) int64 {
	n := int64(0)
	for _, v := range list {
		if v {
			n++
		}
	}
	return n
}

// qwen2MoeBlock is the mixture beside the expert that every token visits.
func qwen2MoeBlock(l llamaConfig, e moeConfig, shared int64, d graph.DType) *graph.Module {
	m := graph.NewModule("Qwen2MoeSparseMoeBlock")
	gate := m.Child("gate", topKRouter(e, d))
	mlps := m.Child("experts", experts(e, d))
	l.inner = shared
	expert := m.Child("shared_expert", llamaMLP(l, d))
	sharedGate := m.Child("shared_expert_gate", linear(d, l.hidden, 1, false))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		rows := f.Let("hidden_states_reshaped", f.View(in[0], -1, e.hidden))
		sharedOutput := f.Let("shared_expert_output", f.Call1(expert, rows))
		chosen := f.Call(gate, rows)
		f.Let("_", chosen[0])
		weights, index := f.Let("routing_weights", chosen[1]), f.Let("selected_experts", chosen[2])
		output := f.Let("expert_output", f.Call1(mlps, rows, index, weights))
		sharedOutput = f.Let("shared_expert_output", f.Mul(f.Sigmoid(f.Call1(sharedGate, rows)), sharedOutput))
		output = f.Let("expert_output", f.Add(output, sharedOutput))
		return one(f.Let("expert_output", f.Reshape(output, batch, tokens, e.hidden)))
	}
	return m
}
