package model

import "memplan/internal/estimator/graph"

// deepseekFamily is DeepSeek V2 and V3 (and R1): attention over compressed keys
// and values, the first layers dense, the others a mixture beside experts that
// every token visits. Written from transformers 5.24,
// models/{deepseek_v2,deepseek_v3}.
var deepseekFamily = Family{
	Name:           "deepseek",
	ModelTypes:     []string{"deepseek_v2", "deepseek_v3"},
	Source:         "huggingface/transformers:src/transformers/models/deepseek_v3/modeling_deepseek_v3.py@v5.24.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newDeepseek,
}

func newDeepseek(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	second := c.Text("deepseek_v3", "model_type") == "deepseek_v2"
	l.class = "DeepseekV3"
	a := readLatent(&c)
	route, rotary := groupedSigmoidRouter, rotaryEmbedding(b, "DeepseekV3RotaryEmbedding", a.rope)
	a.rotate = called(applyRotaryPosEmb)
	if c.Bool(true, "rope_interleave") {
		a.rotate = called(applyRotaryInterleaved)
	}
	if second {
		l.class, route = "DeepseekV2", softmaxRouter
		rotary, a.rotate = complexRotary(b, a.rope), called(applyComplexRotary)
		l.qkvBias = c.Bool(false, "attention_bias")
	}
	e := readDeepseekMoe(&c, b, l)
	if second {
		e.normalised = false
		e.grouped = c.OneOf("topk_method", "greedy", "group_limited_greedy") == "group_limited_greedy"
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	l.table = func(Build, string, int64) *graph.Module { return rotary }
	m := newLlamaModelOf(l, b, func(i int64, ctx *llamaContext) *graph.Module {
		attention := latentAttention(l, a, b, ctx)
		if i < e.dense {
			return llamaBlockOf(l, b, ctx, attention, llamaMLP(l, b.DType))
		}
		return llamaBlockOf(l, b, ctx, attention, deepseekMoE(l, e, route, b.DType))
	})
	m.mixed = e.dense > 0
	return e.in(m.network(m.causalLM(l.class+"ForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), max(0, l.layers-e.dense)), nil
}

// deepseekMoe is a mixture of DeepSeek's kind.
type deepseekMoe struct {
	moeConfig
	dense  int64 // leading layers without a mixture
	shared int64 // width of the experts that every token visits
	// groups divide the experts; a token's are chosen from topGroups of them.
	groups, topGroups int64
	grouped           bool // the softmax router looks at groups
}

func readDeepseekMoe(c *Config, b Build, l llamaConfig) deepseekMoe {
	e := deepseekMoe{
		moeConfig: moeConfig{
			class: l.class, hidden: l.hidden, act: l.act, normalised: c.Bool(true, "norm_topk_prob"),
			inner: c.Int("moe_intermediate_size"), experts: c.Int("n_routed_experts", "num_local_experts", "num_experts"), chosen: c.Int("num_experts_per_tok"),
		},
		groups: c.IntOr(1, "n_group"), topGroups: c.IntOr(1, "topk_group"),
	}
	e.dense = c.Whole(0, "first_k_dense_replace")
	e.shared = e.inner * c.IntOr(1, "n_shared_experts")
	c.Divides("n_group", "n_routed_experts", e.groups, e.experts)
	e.check(c, b)
	return e
}

// routerFunc takes rows and the router's weight and bias, in the router's
// frame, and returns logits, the weights of the experts chosen for each row, and
// their numbers.
type routerFunc func(f *graph.Frame, e deepseekMoe, rows *graph.Tensor, weight, bias *graph.Param) []*graph.Tensor

// deepseekMoE is the mixture beside the experts that every token visits.
func deepseekMoE(l llamaConfig, e deepseekMoe, route routerFunc, d graph.DType) *graph.Module {
	m := graph.NewModule(e.class + "MoE")
	mlps := m.Child("experts", experts(e.moeConfig, d))
	gate := m.Child("gate", graph.NewModule(e.class+"TopkRouter"))
	weight := gate.Param("weight", graph.F32, e.experts, e.hidden)
	var bias *graph.Param
	if e.class != "DeepseekV2" {
		bias = gate.Buffer("e_score_correction_bias", graph.F32, e.experts)
	}
	gate.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return route(f, e, f.Let("hidden_states", f.View(in[0], -1, e.hidden)), weight, bias)
	}
	l.inner = e.shared
	shared := m.Child("shared_experts", llamaMLP(l, d))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		shape := in[0].Shape.Slice()
		chosen := f.Call(gate, in[0])
		f.Let("_", chosen[0])
		weights, index := f.Let("topk_weights", chosen[1]), f.Let("topk_indices", chosen[2])
		rows := f.Let("hidden_states", f.View(in[0], -1, e.hidden))
		hidden := f.Let("hidden_states", f.View(f.Call1(mlps, rows, index, weights), shape...))
		return one(f.Let("hidden_states", f.Add(hidden, f.Call1(shared, in[0]))))
	}
	return m
}

// routerLogits are the scores of the experts before anything is done to them,
// computed from fp32, in which the weight is kept.
func routerLogits(f *graph.Frame, rows *graph.Tensor, weight *graph.Param) *graph.Tensor {
	return f.Let("router_logits", f.Linear(f.To(rows, graph.F32), weight.T(), nil))
}

// groupedSigmoidRouter chooses by scores with a correction, from the groups of
// experts that score best (DeepseekV3TopkRouter). Nothing of the choice has a
// gradient, but what its functions keep lives as long as their results.
func groupedSigmoidRouter(f *graph.Frame, e deepseekMoe, rows *graph.Tensor, weight, bias *graph.Param) []*graph.Tensor {
	logits := routerLogits(f, rows, weight)
	scores := f.Let("scores", f.Sigmoid(logits))
	var indices *graph.Tensor
	f.NoGrad(func() {
		choice := f.Let("scores_for_choice", f.Add(scores, bias.T()))
		best, kept := f.TopK(f.View(choice, -1, e.groups, e.experts/e.groups), 2)
		f.Let("topk_kept", kept)
		groups := f.Let("group_scores", f.SumOver(best, -1, false))
		mask := f.Let("masked_fill_kept", e.groupMask(f, groups))
		choice = f.Let("scores_for_choice", f.MaskedFill(choice, mask))
		values, chosen := f.TopK(choice, e.chosen)
		indices = f.Let("topk_indices", chosen)
		f.Drop(values)
	})
	weights := f.Let("topk_weights", f.GatherLast(scores, indices))
	if e.normalised {
		denominator := f.Let("denominator", f.AddScalar(f.SumOver(weights, -1, true)))
		weights = f.Let("topk_weights", f.DivInPlace(weights, denominator))
	}
	weights = f.Let("topk_weights", f.MulScalar(weights))
	return []*graph.Tensor{logits, weights, indices}
}

// groupMask marks the experts outside the groups that score best.
func (e deepseekMoe) groupMask(f *graph.Frame, scores *graph.Tensor) *graph.Tensor {
	values, index := f.TopK(scores, e.topGroups)
	f.Let("group_idx", index)
	f.Drop(values)
	mask := f.Let("group_mask", f.Empty(graph.F32, scores.Shape.Slice()...))
	wide := f.Expand(f.Unsqueeze(mask, -1), -1, e.groups, e.experts/e.groups)
	spread := f.Let("score_mask", f.Reshape(wide, -1, e.experts))
	return f.Not(f.To(spread, graph.Bool))
}

// softmaxRouter chooses by the softmax of all experts, or of those in the groups
// that score best (DeepseekV2TopkRouter).
func softmaxRouter(f *graph.Frame, e deepseekMoe, rows *graph.Tensor, weight, _ *graph.Param) []*graph.Tensor {
	logits := routerLogits(f, rows, weight)
	scores := f.Let("scores", f.Softmax(logits, graph.F32))
	if e.grouped {
		var mask *graph.Tensor
		f.NoGrad(func() {
			best, kept := f.TopK(f.View(scores, -1, e.groups, e.experts/e.groups), 1) // max
			f.Let("max_kept", kept)
			groups := f.Let("group_scores", f.Squeeze(best, -1))
			mask = f.Let("mask", e.groupMask(f, groups))
		})
		scores = f.Let("scores", f.MaskedFill(scores, mask))
		f.Del("mask")
	}
	weights, indices := f.TopK(scores, e.chosen)
	weights, indices = f.Let("topk_weights", weights), f.Let("topk_indices", indices)
	weights = f.Let("topk_weights", f.MulScalar(weights))
	return []*graph.Tensor{logits, weights, indices}
}
