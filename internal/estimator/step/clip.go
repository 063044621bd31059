package step

import "memplan/internal/estimator/graph"

// clipGradNorm is torch.nn.utils.clip_grad_norm_ in its foreach form. It
// returns the total norm, which the caller gives back with Forget; nil when no
// parameter has a gradient (torch/nn/utils/clip_grad.py @v2.6.0 and @v2.15.0).
func clipGradNorm(r *Run) *graph.Tensor {
	if r.shards != nil {
		return r.shards.clip(r)
	}
	return clipBy(r, normOf, reciprocalTimes)
}

// graphFunc is a Python function of tensors.
type graphFunc = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor

// clipBy is clipGradNorm with two of its functions given: the norm of the norms
// and the quotient of 1 and the total. Norms over several ranks are summed in
// one of them.
func clipBy(r *Run, norm, reciprocal graphFunc) *graph.Tensor {
	total := totalNorm(r, norm)
	if total != nil {
		clipCoefficient(r, total, reciprocal)
	}
	return total
}

// totalNorm is _get_total_norm: a norm per gradient, type by type, and the
// norm of those norms.
func totalNorm(r *Run, norm graphFunc) *graph.Tensor {
	var with []*graph.Param
	for _, p := range r.Params {
		if p.Grad != nil {
			with = append(with, p)
		}
	}
	if len(with) == 0 {
		return nil
	}
	var norms []*graph.Tensor
	for _, same := range byDType(with) {
		grads := make([]*graph.Tensor, len(same))
		for i, p := range same {
			grads[i] = p.Grad
		}
		norms = append(norms, r.M.ForeachNorm(grads)...)
	}
	var total *graph.Tensor
	r.noGrad(func(f *graph.Frame) { total = f.Own(f.Func(norm, f.StackScalars(norms))[0]) })
	forgetList(r.M, norms)
	return total
}

// clipCoefficient is _clip_grads_with_norm_: max_norm / (total_norm + 1e-6),
// clamped to 1; the gradients are scaled in place.
func clipCoefficient(r *Run, total *graph.Tensor, reciprocal graphFunc) {
	r.noGrad(func(f *graph.Frame) {
		coef := f.Let("clip_coef", f.Func(reciprocal, f.AddScalar(total))[0])
		f.Let("clip_coef_clamped", f.Clamp(coef))
	})
}

// normOf is torch.linalg.vector_norm.
func normOf(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return []*graph.Tensor{f.Norm(in[0])}
}

// reciprocalTimes is Tensor.__rdiv__: self.reciprocal() * other.
func reciprocalTimes(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return []*graph.Tensor{f.MulScalar(f.Reciprocal(in[0]))}
}

// reducedReciprocalTimes and reducedNormOf are the same of a DTensor that holds
// this rank's part of a norm.
func reducedReciprocalTimes(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return reciprocalTimes(f, f.Func(overRanks, in[0])...)
}

func reducedNormOf(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return normOf(f, f.Func(overRanks, in[0])...)
}

// overRanks sums the squares of norms over the ranks, in a tensor of its own,
// and takes the root (torch/distributed/tensor/_ops/_math_ops.py:_NormPartial
// @v2.6.0).
func overRanks(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	square := f.Let("square", f.Pow(in[0]))
	sum := f.Let("sum", f.Clone(square))
	return []*graph.Tensor{f.Pow(sum)}
}

// drop gives back a norm nobody keeps.
func (r *Run) drop(norm *graph.Tensor) {
	if norm != nil {
		r.M.Forget(norm)
	}
}
