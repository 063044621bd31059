package model

import (
	"math/bits"

	"memplan/internal/estimator/graph"
)

// Linear biases by distance (ALiBi), as BLOOM and Falcon make them.

// alibiSlopes is the slope of every head in fp32: powers of a base, and of a
// second one where the heads are not a power of two.
func alibiSlopes(f *graph.Frame, heads int64) *graph.Tensor {
	whole := int64(1) << (bits.Len64(uint64(heads)) - 1)
	f.Let("base", f.Empty(graph.F32))
	f.Let("powers", f.Empty(graph.I32, whole))
	slopes := f.Let("slopes", f.Empty(graph.F32, whole))
	if whole != heads {
		rest := min(whole, heads-whole)
		f.Let("extra_base", f.Empty(graph.F32))
		f.Let("extra_powers", f.Empty(graph.I32, rest))
		slopes = f.Let("slopes", f.Cat(0, slopes, f.Empty(graph.F32, rest)))
	}
	return slopes
}

// calledSlopes is alibiSlopes as a function of its own.
func calledSlopes(f *graph.Frame, heads int64) *graph.Tensor {
	return f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor { return one(alibiSlopes(f, heads)) })[0]
}

// buildAlibi is build_alibi_tensor: the bias [batch * heads, 1, tokens] of
// every key, counted over the tokens that the mask shows, from slopes that one
// of the versions makes. Falcon rounds them to bf16.
func buildAlibi(f *graph.Frame, present *graph.Tensor, heads int64, d graph.DType, makeSlopes func(f *graph.Frame, heads int64) *graph.Tensor, rounded bool) *graph.Tensor {
	return f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := present.Shape.D[0], present.Shape.D[1]
		slopes := f.Let("slopes", makeSlopes(f, heads))
		places := f.Let("arange_tensor", f.Unsqueeze(f.Mul(f.AddScalar(f.Cumsum(present)), present), 1))
		slopes = f.Unsqueeze(slopes, -1)
		if rounded {
			slopes = f.To(slopes, graph.BF16)
		}
		alibi := f.Let("alibi", f.Mul(slopes, places))
		return one(f.To(f.View(alibi, batch*heads, 1, tokens), d))
	})[0]
}
