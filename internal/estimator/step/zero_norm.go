package step

import "memplan/internal/estimator/graph"

// Norms, overflows and clipping as ZeRO computes them
// (deepspeed/runtime/zero/stage_1_and_2.py and stage3.py @v0.16.4).

// fp64 stands for double precision, by a type of its size.
const fp64 = graph.I64

var (
	zeroNormRule = &graph.Rule{Name: "get_grad_norm_direct", Source: "deepspeed/runtime/zero/stage_1_and_2.py@v0.16.4"}
	overflowRule = &graph.Rule{Name: "_has_inf_or_nan", Source: "deepspeed/runtime/zero/stage_1_and_2.py@v0.16.4"}
	unscaleRule  = &graph.Rule{Name: "unscale_and_clip_grads", Source: "deepspeed/runtime/zero/stage_1_and_2.py@v0.16.4"}
)

// unnamed is the result of an operation that only its size is known of.
func unnamed(f *graph.Frame, r *graph.Rule, d graph.DType, shape graph.Dims) *graph.Tensor {
	return f.Give(f.Make(r, graph.Temporaries, d, shape))
}

// gradNorm is get_grad_norm_direct: a norm a gradient in fp64, the root of
// their sum of squares over the ranks, and -1 in its place where that is no
// number. The caller owns it.
func gradNorm(r *Run, grads []*graph.Tensor) *graph.Tensor {
	var norms []*graph.Tensor
	var total *graph.Tensor
	r.noGrad(func(f *graph.Frame) {
		for _, g := range grads {
			norms = append(norms, f.Own(f.Norm(unnamed(f, zeroNormRule, fp64, g.Shape))))
		}
		f.Let("total_norm", sumOfSquares(f, norms))
		f.Let("total_norm", unnamed(f, zeroNormRule, graph.F32, graph.D())) // its root
		total = f.Own(replaceInvalid(f, graph.F32))
	})
	forgetList(r.M, norms)
	return total
}

// sumOfSquares is torch.stack(norms).square().sum().float(), and 0 of none.
func sumOfSquares(f *graph.Frame, norms []*graph.Tensor) *graph.Tensor {
	if len(norms) == 0 {
		return unnamed(f, zeroNormRule, graph.F32, graph.D())
	}
	stacked := f.StackScalars(norms)
	square := unnamed(f, zeroNormRule, stacked.DType, stacked.Shape)
	f.Drop(stacked)
	sum := f.Norm(square) // takes the memory of any reduction to one number
	total := unnamed(f, zeroNormRule, graph.F32, graph.D())
	f.Drop(sum)
	return total
}

// replaceInvalid puts -1 in place of a norm of type d that is infinite or no
// number.
func replaceInvalid(f *graph.Frame, d graph.DType) *graph.Tensor {
	scalar := func(d graph.DType) *graph.Tensor { return unnamed(f, zeroNormRule, d, graph.D()) }
	abs := scalar(d)
	f.Let("norm_is_inf", scalar(graph.Bool))
	f.Drop(abs)
	f.Let("norm_is_nan", scalar(graph.Bool))
	f.Let("inf_or_nan", scalar(graph.Bool))
	f.Let("err", scalar(graph.F32))
	invalid := scalar(graph.F32)
	not := scalar(graph.Bool)
	valid := scalar(d)
	f.Drop(not)
	sum := scalar(d)
	f.Drop(invalid, valid)
	return sum
}

// normOfNorms is the norm of the groups' norms, which it takes over.
func normOfNorms(r *Run, ofGroups []*graph.Tensor) *graph.Tensor {
	var total *graph.Tensor
	r.noGrad(func(f *graph.Frame) { total = f.Own(f.Norm(f.StackScalars(ofGroups))) })
	forgetList(r.M, ofGroups)
	return total
}

// unscaleAndClip is unscale_and_clip_grads of one gradient, where norms are
// clipped: the quotient, in type d, is computed on the card and applied in place.
func unscaleAndClip(r *Run, d graph.DType) {
	r.noGrad(func(f *graph.Frame) {
		scalar := func() *graph.Tensor { return unnamed(f, unscaleRule, d, graph.D()) }
		f.Let("clip", f.DivScalar(f.AddScalar(scalar())))
		f.Let("clip", scalar())
		f.Drop(reciprocalTimes(f, f.Let("combined_scale", scalar()))...)
	})
}

// overflowed is _has_inf_or_nan of a tensor of the model's type, dropped by
// whoever asked.
func overflowed(r *Run, numel int64, d graph.DType) {
	shape := graph.D(numel)
	r.noGrad(func(f *graph.Frame) {
		if d != graph.F32 {
			f.Let("float_x", unnamed(f, overflowRule, graph.F32, shape))
		}
		f.Let("nan", unnamed(f, overflowRule, graph.Bool, shape))
		abs := unnamed(f, overflowRule, graph.F32, shape)
		f.Let("inf", unnamed(f, overflowRule, graph.Bool, shape))
		f.Drop(abs)
		f.Let("inf_or_nan", unnamed(f, overflowRule, graph.Bool, shape))
		f.Drop(f.Norm(unnamed(f, overflowRule, graph.F32, shape)))
	})
}
