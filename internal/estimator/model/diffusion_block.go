package model

import "memplan/internal/estimator/graph"

// Building blocks of diffusers' transformers: models/attention_processor.py,
// attention.py, activations.py.

// attentionOf is what diffusers' Attention is told.
type attentionOf struct {
	query, cross   int64 // width of the queries' input, and of keys' and values'
	heads, width   int64 // of a head
	bias, outBias  bool
	dropout        float64
	attention      Attention
	residual, norm bool // of images: added to the result, normalised in groups before
	groups         int64
}

// diffusersAttention is Attention with AttnProcessor2_0, or with AttnProcessor
// where it is eager. Its second input is
// what keys and values are made of, nil for the first.
func diffusersAttention(d graph.DType, a attentionOf) *graph.Module {
	m := graph.NewModule("Attention")
	inner := a.heads * a.width
	var norm *graph.Module
	if a.norm {
		norm = m.Child("group_norm", groupNorm(d, a.query, a.groups))
	}
	toQ := m.Child("to_q", linear(d, a.query, inner, a.bias))
	toK := m.Child("to_k", linear(d, a.cross, inner, a.bias))
	toV := m.Child("to_v", linear(d, a.cross, inner, a.bias))
	out := m.Child("to_out", graph.NewModule("ModuleList"))
	project := out.Child("0", linear(d, inner, a.query, a.outBias))
	drop := out.Child("1", dropout(a.dropout))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden, shape := f.Let("residual", in[0]), in[0].Shape
		if shape.N == 4 {
			hidden = f.Let("hidden_states", f.Transpose(f.View(hidden, shape.D[0], shape.D[1], -1), 1, 2))
		}
		if norm != nil {
			hidden = f.Let("hidden_states", f.Transpose(f.Call1(norm, f.Transpose(hidden, 1, 2)), 1, 2))
		}
		query := f.Let("query", f.Call1(toQ, hidden))
		text := f.Let("encoder_hidden_states", hidden)
		if in[1] != nil {
			text = f.Let("encoder_hidden_states", in[1])
		}
		key, value := f.Let("key", f.Call1(toK, text)), f.Let("value", f.Call1(toV, text))
		attend := a.fused
		if a.attention.Kernel == "eager" {
			attend = a.eager
		}
		hidden = attend(f, query, key, value, in[2])
		hidden = f.Let("hidden_states", f.Call1(project, hidden))
		hidden = f.Let("hidden_states", f.Call1(drop, hidden))
		if shape.N == 4 {
			hidden = f.Let("hidden_states", f.Reshape(f.Transpose(hidden, -1, -2), shape.Slice()...))
		}
		if a.residual {
			hidden = f.Let("hidden_states", f.Add(hidden, in[0]))
		}
		return one(f.Let("hidden_states", f.MulScalar(hidden))) // / rescale_output_factor
	}
	return m
}

// fused is the middle of AttnProcessor2_0, on what was projected.
func (a attentionOf) fused(f *graph.Frame, query, key, value, mask *graph.Tensor) *graph.Tensor {
	batch := query.Shape.D[0]
	heads := func(t *graph.Tensor) *graph.Tensor {
		return f.Transpose(f.View(t, batch, -1, a.heads, a.width), 1, 2)
	}
	query, key, value = f.Let("query", heads(query)), f.Let("key", heads(key)), f.Let("value", heads(value))
	hidden := f.Let("hidden_states", f.ScaledDotProductAttention(query, key, value, mask, graph.Attention{Backend: a.attention.Backend}))
	hidden = f.Let("hidden_states", f.Reshape(f.Transpose(hidden, 1, 2), batch, -1, a.heads*a.width))
	return f.Let("hidden_states", f.To(hidden, query.DType))
}

// eager is the middle of AttnProcessor, which makes the scores, on what was
// projected. No mask comes here: the networks that have one run fused.
func (a attentionOf) eager(f *graph.Frame, query, key, value, _ *graph.Tensor) *graph.Tensor {
	batch := query.Shape.D[0]
	heads := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // head_to_batch_dim
		t := f.Let("tensor", f.Permute(f.View(in[0], batch, -1, a.heads, a.width), 0, 2, 1, 3))
		return one(f.Let("tensor", f.Reshape(t, batch*a.heads, -1, a.width)))
	}
	query = f.Let("query", f.Func(heads, query)[0])
	key = f.Let("key", f.Func(heads, key)[0])
	value = f.Let("value", f.Func(heads, value)[0])
	probs := f.Let("attention_probs", f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // get_attention_scores
		query, key := in[0], in[1]
		empty := f.Let("baddbmm_input", f.Empty(query.DType, query.Shape.D[0], query.Shape.D[1], key.Shape.D[1]))
		scores := f.Let("attention_scores", f.Baddbmm(empty, query, f.Transpose(key, -1, -2)))
		f.Del("baddbmm_input")
		probs := f.Let("attention_probs", f.Softmax(scores, scores.DType))
		f.Del("attention_scores")
		return one(f.Let("attention_probs", f.To(probs, query.DType)))
	}, query, key)[0])
	hidden := f.Let("hidden_states", f.Bmm(probs, value))
	hidden = f.Permute(f.View(hidden, batch, a.heads, -1, a.width), 0, 2, 1, 3)
	return f.Let("hidden_states", f.Reshape(hidden, batch, -1, a.heads*a.width)) // batch_to_head_dim
}

// groupNorm is nn.GroupNorm.
func groupNorm(d graph.DType, channels, groups int64) *graph.Module {
	m := graph.NewModule("GroupNorm")
	w, b := m.Param("weight", d, channels), m.Param("bias", d, channels)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.GroupNorm(in[0], w.T(), b.T(), groups))
	}
	return m
}

// feedForward is FeedForward: an activation's own projection, dropout, and a
// projection back.
func feedForward(d graph.DType, width int64, act string, p float64) *graph.Module {
	return feedForwardTo(d, width, 4*width, act, p)
}

// feedForwardTo is feedForward with an inner width of its own.
func feedForwardTo(d graph.DType, width, inner int64, act string, p float64) *graph.Module {
	m := graph.NewModule("FeedForward")
	net := m.Child("net", graph.NewModule("ModuleList"))
	first := geluProjection
	if act == "geglu" {
		first = geglu
	}
	layers := []*graph.Module{
		net.Child("0", first(d, width, inner)), net.Child("1", dropout(p)), net.Child("2", linear(d, inner, width, true)),
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := in[0]
		for _, l := range layers {
			hidden = f.Let("hidden_states", f.Call1(l, hidden))
		}
		return one(hidden)
	}
	return m
}

// feedForwardActivations are those feedForward knows.
var feedForwardActivations = []string{"geglu", "gelu", "gelu-approximate"}

// geluProjection is activations.py's GELU.
func geluProjection(d graph.DType, in, out int64) *graph.Module {
	m := graph.NewModule("GELU")
	proj := m.Child("proj", linear(d, in, out, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Call1(proj, in[0]))
		return one(f.Let("hidden_states", f.Gelu(hidden)))
	}
	return m
}

// geglu is GEGLU: half of the projection gates the other.
func geglu(d graph.DType, in, out int64) *graph.Module {
	m := graph.NewModule("GEGLU")
	proj := m.Child("proj", linear(d, in, 2*out, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Call1(proj, in[0]))
		halves := f.Split(hidden, 2, -1)
		hidden, gate := f.Let("hidden_states", halves[0]), f.Let("gate", halves[1])
		return one(f.Mul(hidden, f.Gelu(gate)))
	}
	return m
}
