package model

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// Rotary positions, as Llama and its relatives compute them.

// rotaryEmbedding gives the cosines and sines of the positions for the first
// width columns of every head, computed in fp32.
func rotaryEmbedding(b Build, class string, width int64) *graph.Module {
	return rotaryModule(b, class, width, doubled)
}

// rotaryModule is the same with another way to spread the frequencies over the
// columns.
func rotaryModule(b Build, class string, width int64, spread spreadFunc) *graph.Module {
	m := graph.NewModule(class)
	invFreq := m.Buffer("inv_freq", b.DType, width/2)
	table := rotaryTableBefore5
	if b.Versions.Transformers.AtLeast(spec.Version{5}) {
		m.Buffer("original_inv_freq", b.DType, width/2)
		table = rotaryTable
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return castTable(f, in[0].DType, func() (cos, sin *graph.Tensor) { return table(f, invFreq.T(), in[1], spread) })
	}
	return m
}

// castTable computes a table without gradients and hands it over in type d.
func castTable(f *graph.Frame, d graph.DType, table func() (cos, sin *graph.Tensor)) []*graph.Tensor {
	var cos, sin *graph.Tensor
	f.NoGrad(func() {
		cos, sin = table()
		cos, sin = f.To(cos, d), f.To(sin, d)
	})
	return []*graph.Tensor{cos, sin}
}

// spreadFunc gives every column its frequency.
type spreadFunc func(f *graph.Frame, freqs *graph.Tensor) *graph.Tensor

// doubled is cat(freqs, freqs): a frequency turns column i and column i + half.
func doubled(f *graph.Frame, freqs *graph.Tensor) *graph.Tensor { return f.Cat(-1, freqs, freqs) }

// rotaryTable multiplies positions and frequencies elementwise.
func rotaryTable(f *graph.Frame, invFreq, positions *graph.Tensor, spread spreadFunc) (cos, sin *graph.Tensor) {
	position := f.To(f.Unsqueeze(positions, -1), graph.F32)
	freqs := f.Let("freqs", f.Mul(position, f.To(invFreq, graph.F32)))
	emb := f.Let("emb", spread(f, freqs))
	cos = f.Let("cos", f.MulScalar(f.Cos(emb)))
	return cos, f.Let("sin", f.MulScalar(f.Sin(emb)))
}

// rotaryTableBefore5 multiplied matrices, outside autocast.
func rotaryTableBefore5(f *graph.Frame, invFreq, positions *graph.Tensor, spread spreadFunc) (cos, sin *graph.Tensor) {
	frequencies := f.Let("inv_freq_expanded", f.To(f.View(invFreq, 1, -1, 1), graph.F32))
	expanded := f.Let("position_ids_expanded", f.To(f.Unsqueeze(positions, 1), graph.F32))
	var freqs *graph.Tensor
	f.NoAutocast(func() { freqs = f.Let("freqs", f.Transpose(f.Matmul(frequencies, expanded), 1, 2)) })
	emb := f.Let("emb", spread(f, freqs))
	cos, sin = f.Let("cos", f.Cos(emb)), f.Let("sin", f.Sin(emb))
	cos = f.Let("cos", f.MulScalar(cos))
	return cos, f.Let("sin", f.MulScalar(sin))
}

// rotateHalf is cat(-second half, first half).
func rotateHalf(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	x := in[0]
	half := x.Shape.At(-1) / 2
	x1 := f.Let("x1", f.Slice(x, -1, 0, half))
	x2 := f.Let("x2", f.Slice(x, -1, half, 2*half))
	return one(f.Cat(-1, f.Neg(x2), x1))
}

// turn is x * cos + rotate_half(x) * sin.
func turn(f *graph.Frame, x, cos, sin *graph.Tensor) *graph.Tensor {
	straight := f.Mul(x, cos)
	return f.Add(straight, f.Mul(f.Func(rotateHalf, x)[0], sin))
}

// rotaryFunc turns queries and keys by their positions, in the frame of the
// attention.
type rotaryFunc func(f *graph.Frame, q, k, cos, sin *graph.Tensor) []*graph.Tensor

// called is a rotaryFunc that is a Python function of its own.
func called(apply func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor) rotaryFunc {
	return func(f *graph.Frame, q, k, cos, sin *graph.Tensor) []*graph.Tensor {
		return f.Func(apply, q, k, cos, sin)
	}
}

// applyRotaryPosEmb is apply_rotary_pos_emb of the Llama family.
func applyRotaryPosEmb(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	cos := f.Let("cos", f.Unsqueeze(in[2], 1))
	sin := f.Let("sin", f.Unsqueeze(in[3], 1))
	q := f.Let("q_embed", turn(f, in[0], cos, sin))
	return []*graph.Tensor{q, f.Let("k_embed", turn(f, in[1], cos, sin))}
}

// applyPartialRotary turns the first columns of every head, as many as the
// table has, and joins the rest to them (apply_rotary_pos_emb of GPT-NeoX).
func applyPartialRotary(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	cos := f.Let("cos", f.Unsqueeze(in[2], 1))
	sin := f.Let("sin", f.Unsqueeze(in[3], 1))
	width := cos.Shape.At(-1)
	cut := func(name string, x *graph.Tensor) (rot, pass *graph.Tensor) {
		rot = f.Let(name+"_rot", f.Slice(x, -1, 0, width))
		return rot, f.Let(name+"_pass", f.Slice(x, -1, width, x.Shape.At(-1)))
	}
	qRot, qPass := cut("q", in[0])
	kRot, kPass := cut("k", in[1])
	q := f.Let("q_embed", turn(f, qRot, cos, sin))
	k := f.Let("k_embed", turn(f, kRot, cos, sin))
	q = f.Let("q_embed", f.Cat(-1, q, qPass))
	return []*graph.Tensor{q, f.Let("k_embed", f.Cat(-1, k, kPass))}
}

// turnFirst turns the first columns of queries and keys, as many as the table
// has, in the attention's own frame, and joins the rest to them (Phi,
// StableLM).
func turnFirst(f *graph.Frame, q, k, cos, sin *graph.Tensor) []*graph.Tensor {
	width := cos.Shape.At(-1)
	cut := func(name string, x *graph.Tensor) (rot, pass *graph.Tensor) {
		rot = f.Let(name+"_rot", f.Slice(x, -1, 0, width))
		return rot, f.Let(name+"_pass", f.Slice(x, -1, width, x.Shape.At(-1)))
	}
	qRot, qPass := cut("query", q)
	kRot, kPass := cut("key", k)
	turned := f.Func(applyRotaryPosEmb, qRot, kRot, cos, sin)
	qRot, kRot = f.Let("query_rot", turned[0]), f.Let("key_rot", turned[1])
	q = f.Let("query_states", f.Cat(-1, qRot, qPass))
	return []*graph.Tensor{q, f.Let("key_states", f.Cat(-1, kRot, kPass))}
}

// applyRotaryInType turns by a table in fp32 and gives queries and keys in
// their own type (OLMo).
func applyRotaryInType(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	cos := f.Let("cos", f.Unsqueeze(in[2], 1))
	sin := f.Let("sin", f.Unsqueeze(in[3], 1))
	q := f.Let("q_embed", turn(f, in[0], cos, sin))
	k := f.Let("k_embed", turn(f, in[1], cos, sin))
	q = f.To(q, in[0].DType)
	return []*graph.Tensor{q, f.To(k, in[1].DType)}
}

// olmoInFloatSince is when OLMo's table of positions began to stay in fp32, and
// the weight of its norms to be multiplied there (measured: not in 4.49, in 5.24; the older way is assumed in between).
var olmoInFloatSince = spec.Version{5}

// rotaryInType is how OLMo turns queries and keys.
func rotaryInType(b Build) rotaryFunc {
	if b.Versions.Transformers.Before(olmoInFloatSince) {
		return called(applyRotaryPosEmb)
	}
	return called(applyRotaryInType)
}

// floatTable is a rotary module that leaves its table in fp32.
func floatTable(b Build, class string, width int64) *graph.Module {
	m := rotaryEmbedding(b, class, width)
	if b.Versions.Transformers.Before(olmoInFloatSince) {
		return m
	}
	cast := m.Forward
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := *in[0]
		x.DType = graph.F32
		return cast(f, &x, in[1])
	}
	return m
}
