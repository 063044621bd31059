package model

import "memplan/internal/estimator/graph"

// jointAttentionOf is what diffusers' Attention is told where image and text
// look at each other.
type jointAttentionOf struct {
	d                     graph.DType
	width, heads, headDim int64
	qkNorm                bool
	backend               string
	text, textOut         bool // there is a text, and it goes on
}

// jointAttention is Attention with JointAttnProcessor2_0: queries, keys and
// values of the image and of the text are joined, and the result is divided
// again.
func jointAttention(a jointAttentionOf) *graph.Module {
	m := graph.NewModule("Attention")
	norms := map[string]*graph.Module{}
	addNorms := func(names ...string) {
		for _, name := range names {
			if a.qkNorm {
				norms[name] = m.Child(name, diffusersRMSNorm(a.d, a.headDim))
			}
		}
	}
	inner := a.heads * a.headDim
	addNorms("norm_q", "norm_k")
	toQ, toK, toV := m.Child("to_q", linear(a.d, a.width, inner, true)), m.Child("to_k", linear(a.d, a.width, inner, true)), m.Child("to_v", linear(a.d, a.width, inner, true))
	var addQ, addK, addV, addOut *graph.Module
	if a.text {
		addK, addV = m.Child("add_k_proj", linear(a.d, a.width, inner, true)), m.Child("add_v_proj", linear(a.d, a.width, inner, true))
		addQ = m.Child("add_q_proj", linear(a.d, a.width, inner, true))
	}
	out := m.Child("to_out", graph.NewModule("ModuleList"))
	project, drop := out.Child("0", linear(a.d, inner, a.width, true)), out.Child("1", dropout(0))
	if a.textOut {
		addOut = m.Child("to_add_out", linear(a.d, inner, a.width, true))
	}
	if a.text {
		addNorms("norm_added_q", "norm_added_k")
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		// projections names three results; each is then divided into heads and, but
		// for the values, normalised.
		projections := func(x *graph.Tensor, prefix, added string, q, k, v *graph.Module) (query, key, value *graph.Tensor) {
			query, key, value = f.Let(prefix+"query", f.Call1(q, x)), f.Let(prefix+"key", f.Call1(k, x)), f.Let(prefix+"value", f.Call1(v, x))
			heads := func(name string, t *graph.Tensor) *graph.Tensor {
				return f.Let(prefix+name, f.Transpose(f.View(t, batch, -1, a.heads, a.headDim), 1, 2))
			}
			query, key, value = heads("query", query), heads("key", key), heads("value", value)
			if a.qkNorm {
				query = f.Let(prefix+"query", f.Call1(norms["norm_"+added+"q"], query))
				key = f.Let(prefix+"key", f.Call1(norms["norm_"+added+"k"], key))
			}
			return query, key, value
		}
		query, key, value := projections(in[0], "", "", toQ, toK, toV)
		if in[1] != nil {
			q, k, v := projections(in[1], "encoder_hidden_states_", "added_", addQ, addK, addV)
			query = f.Let("query", f.Cat(2, query, q))
			key = f.Let("key", f.Cat(2, key, k))
			value = f.Let("value", f.Cat(2, value, v))
		}
		hidden := f.Let("hidden_states", f.ScaledDotProductAttention(query, key, value, nil, graph.Attention{Backend: a.backend}))
		hidden = f.Let("hidden_states", f.Reshape(f.Transpose(hidden, 1, 2), batch, -1, inner))
		hidden = f.Let("hidden_states", f.To(hidden, query.DType))
		var text *graph.Tensor
		if in[1] != nil {
			image := f.Slice(hidden, 1, 0, tokens)
			text = f.Let("encoder_hidden_states", f.Slice(hidden, 1, tokens, hidden.Shape.D[1]))
			hidden = f.Let("hidden_states", image)
			if addOut != nil {
				text = f.Let("encoder_hidden_states", f.Call1(addOut, text))
			}
		}
		hidden = f.Let("hidden_states", f.Call1(project, hidden))
		hidden = f.Let("hidden_states", f.Call1(drop, hidden))
		if text == nil {
			return one(hidden)
		}
		return []*graph.Tensor{hidden, text}
	}
	return m
}

// diffusersRMSNorm is normalization.py's RMSNorm: the mean square is taken in
// fp32, and a weight in 16 bit multiplied in its own type.
func diffusersRMSNorm(d graph.DType, width int64) *graph.Module {
	m := graph.NewModule("RMSNorm")
	weight := m.Param("weight", d, width)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		variance := f.Let("variance", f.MeanLast(f.Pow(f.To(in[0], graph.F32))))
		hidden := f.Let("hidden_states", f.Mul(in[0], f.Rsqrt(f.AddScalar(variance))))
		if d != graph.F32 {
			hidden = f.Let("hidden_states", f.To(hidden, d))
		}
		return one(f.Let("hidden_states", f.Mul(hidden, weight.T())))
	}
	return m
}
