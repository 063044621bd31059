package model

import (
	"fmt"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// Mixtures of experts: a router sends every token to a few of many MLPs.

// moeConfig is what a mixture needs of a config.json.
type moeConfig struct {
	class           string // what the classes' names begin with
	hidden, inner   int64  // width of the model and of one expert
	experts, chosen int64  // how many there are, and how many a token visits
	act             string
	// normalised says that the weights of a token's experts are made to add up
	// to 1; probsFloat that the router casts its logits, and keeps the weights,
	// in fp32.
	normalised, probsFloat bool
}

// groupedExpertsSince is when the experts' weights were joined, to run as one
// grouped product.
var groupedExpertsSince = spec.Version{5}

// check reports what is wrong with the numbers or not modelled.
func (e moeConfig) check(c *Config, b Build) {
	c.needsTransformers(b, groupedExpertsSince, "experts were modules of their own before")
	if e.chosen > e.experts {
		c.fields.Add("model.config.num_experts_per_tok", e.chosen, fmt.Sprintf("at most the number of experts (%d)", e.experts), fmt.Sprint(e.experts))
	}
	c.Refuses("output_router_logits")
	c.OneOf("experts_implementation", "grouped_mm")
}

// in marks a network of so many layers with the mixture.
func (e moeConfig) in(net *Network, layers int64) *Network {
	idle := layers * (e.experts - e.chosen) * 3 * e.hidden * e.inner
	net.Mixture = &Mixture{Experts: e.experts, Chosen: e.chosen, Idle: idle}
	return net
}

// topKRouter is the router of Mixtral and its like: a linear layer, the softmax
// over the experts, the largest of it.
func topKRouter(e moeConfig, d graph.DType) *graph.Module {
	m := graph.NewModule(e.class + "TopKRouter")
	weight := m.Param("weight", d, e.experts, e.hidden)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		rows := f.Let("hidden_states", f.Reshape(in[0], -1, e.hidden))
		logits := f.Let("router_logits", f.Linear(rows, weight.T(), nil))
		var probs *graph.Tensor
		if e.probsFloat {
			probs = f.Let("router_probs", f.Softmax(f.To(logits, graph.F32), graph.F32))
		} else {
			probs = f.Let("router_probs", f.Softmax(logits, graph.F32))
		}
		top, indices := f.TopK(probs, e.chosen)
		top, indices = f.Let("router_top_value", top), f.Let("router_indices", indices)
		if e.normalised {
			top = f.Let("router_top_value", f.DivInPlace(top, f.SumOver(top, -1, true)))
		}
		if !e.probsFloat {
			top = f.Let("router_top_value", f.To(top, logits.DType))
		}
		return []*graph.Tensor{logits, f.Let("router_scores", top), indices}
	}
	return m
}

// experts are the MLPs of a mixture, their weights in two tensors: gate and up
// of every expert, and down (Experts of transformers 5). The forward takes
// rows, the numbers of the experts chosen for each and their weights.
func experts(e moeConfig, d graph.DType) *graph.Module {
	m := graph.NewModule(e.class + "Experts")
	gateUp := m.Param("gate_up_proj", d, e.experts, 2*e.inner, e.hidden)
	down := m.Param("down_proj", d, e.experts, e.hidden, e.inner)
	act := m.Child("act_fn", activation(e.act))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			g := routeRows(f, e, in[0], in[2], in[1])
			out := f.Let("proj_out", groupedLinear(f, g.rows, gateUp.T(), g.offsets))
			out = f.Let("proj_out", f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
				parts := f.Split(in[0], 2, -1)
				gate, up := f.Let("gate", parts[0]), f.Let("up", parts[1])
				return one(f.Mul(f.Call1(act, gate), up))
			}, out)[0])
			out = f.Let("proj_out", groupedLinear(f, out, down.T(), g.offsets))
			return one(g.gather(f, e, out, in[0]))
		}, in...)
	}
	return m
}

// groupedLinear is _grouped_linear without a bias.
func groupedLinear(f *graph.Frame, rows, weight, offsets *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.Let("out", f.GroupedMM(f.To(rows, weight.DType), f.Transpose(weight, -2, -1), offsets)))
	}, rows, offsets)[0]
}

// routed are rows in the order of their experts.
type routed struct {
	rows, weights, offsets, perm *graph.Tensor
	experts                      *graph.Tensor // the expert of each
}

// routeRows sorts the rows by expert and counts those of each
// (grouped_mm_experts_forward), in the function's own frame. How many rows an
// expert has changes no size.
func routeRows(f *graph.Frame, e moeConfig, hidden, weights, index *graph.Tensor) routed {
	flat := f.Let("sample_weights", f.Reshape(weights, -1))
	ids := f.Let("expert_ids", f.Reshape(index, -1))
	sorted, perm := f.Sort(ids)
	sorted = f.Let("expert_ids_g", sorted)
	g := routed{perm: f.Let("perm", perm), experts: sorted}
	g.rows = f.Let("selected_hidden_states_g", f.IndexRows(hidden, f.MulScalar(perm))) // perm // num_top_k
	g.weights = f.Let("sample_weights_g", f.IndexRows(flat, perm))
	counted := f.Let("histc_input", f.To(sorted, graph.I32))
	counts := f.Let("tokens_per_expert", f.Histc(counted, e.experts))
	g.offsets = f.Let("offsets", f.CumsumIn(counts, graph.I32))
	return g
}

// gather weighs the experts' results, puts them back in the rows' order and adds
// up those of each row.
func (g routed) gather(f *graph.Frame, e moeConfig, out, hidden *graph.Tensor) *graph.Tensor {
	weighted := f.Let("weighted_out", f.Mul(out, f.Unsqueeze(g.weights, -1)))
	back := f.Let("inv_perm", f.Empty(graph.I64, g.perm.Shape.D[0]))
	f.Drop(f.Arange(g.perm.Shape.D[0]))
	weighted = f.Let("weighted_out", f.IndexRows(weighted, back))
	final := f.Let("final_hidden_states", f.SumOver(f.View(weighted, -1, e.chosen, e.hidden), 1, false))
	return f.To(final, hidden.DType)
}

// sparseBlock is a router and its experts in the place of an MLP, with gate and
// experts in the order of the family.
func sparseBlock(e moeConfig, d graph.DType, gateFirst bool) *graph.Module {
	m := graph.NewModule(e.class + "SparseMoeBlock")
	gate, mlps := topKRouter(e, d), experts(e, d)
	if gateFirst {
		m.Child("gate", gate)
	}
	m.Child("experts", mlps)
	if !gateFirst {
		m.Child("gate", gate)
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		rows := f.Let("hidden_states", f.View(in[0], -1, e.hidden))
		chosen := f.Call(gate, rows)
		f.Let("_", chosen[0])
		weights, index := f.Let("top_k_weights", chosen[1]), f.Let("top_k_index", chosen[2])
		result := f.Let("hidden_states", f.Call1(mlps, rows, index, weights))
		return one(f.Let("hidden_states", f.Reshape(result, batch, tokens, e.hidden)))
	}
	return m
}
