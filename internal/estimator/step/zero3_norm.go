package step

import "memplan/internal/estimator/graph"

// groupNorms is _get_norm_groups: the norm of each sub-group's gradients, over
// the ranks; on the host, none, where the gradients are.
func (z *zero3) groupNorms(r *Run) []*graph.Tensor {
	if z.offload {
		for _, g := range z.subGroups {
			z.normOnHost(r, len(g.params))
		}
		return nil
	}
	var all []*graph.Tensor
	for _, g := range z.subGroups {
		all = append(all, z.groupNorm(r, g))
	}
	return all
}

// groupNorm is get_grad_norm_direct of stage 3, in fp64 to the end.
func (z *zero3) groupNorm(r *Run, g *subGroup) *graph.Tensor {
	var norms []*graph.Tensor
	var total *graph.Tensor
	r.noGrad(func(f *graph.Frame) {
		for _, p := range g.params {
			norms = append(norms, f.Own(f.Norm(unnamed(f, zeroNormRule, fp64, graph.D(p.part)))))
		}
		stacked := f.StackScalars(norms)
		square := unnamed(f, zeroNormRule, fp64, stacked.Shape)
		f.Drop(stacked)
		f.Let("total_norm_cuda", f.Norm(square))
		f.Let("total_norm", unnamed(f, zeroNormRule, fp64, graph.D()))
		total = f.Own(replaceInvalid(f, fp64))
	})
	forgetList(r.M, norms)
	return total
}

// normOnHost is complete_grad_norm_calculation_for_cpu_offload: the parameters'
// norms, kept on the card, are squared and added one by one.
func (z *zero3) normOnHost(r *Run, params int) {
	r.noGrad(func(f *graph.Frame) {
		for i := range params {
			square := unnamed(f, zeroNormRule, fp64, graph.D())
			if i == 0 {
				f.Let("total_norm", unnamed(f, zeroNormRule, fp64, graph.D()))
			}
			f.Drop(square)
		}
		f.Let("total_norm_cuda", unnamed(f, zeroNormRule, graph.F32, graph.D(1)))
		f.Let("total_norm", unnamed(f, zeroNormRule, graph.F32, graph.D()))
		f.Drop(replaceInvalid(f, graph.F32))
	})
}

// normBuffer is how many elements are widened at a time.
const normBuffer = 250_000_000

// bufferedNorm is _constant_buffered_norm2.
func (z *zero3) bufferedNorm(r *Run, numel int64) *graph.Tensor {
	var total *graph.Tensor
	r.noGrad(func(f *graph.Frame) {
		for first := true; numel > 0; numel -= normBuffer {
			norm := f.Norm(unnamed(f, zeroNormRule, fp64, graph.D(min(numel, normBuffer))))
			square := unnamed(f, zeroNormRule, fp64, graph.D())
			f.Drop(norm)
			if first {
				f.Let("norm", square)
			} else {
				f.Drop(square)
			}
			first = false
		}
		total = f.Own(unnamed(f, zeroNormRule, fp64, graph.D()))
	})
	return total
}

// checkOverflow is has_overflow: of the gradients on the card, in one go.
func (z *zero3) checkOverflow(r *Run) {
	r.noGrad(func(f *graph.Frame) {
		flag := func(shape graph.Dims) *graph.Tensor { return unnamed(f, overflowRule, graph.Bool, shape) }
		z.onReductionStream(r.M, func() {
			if !z.offload {
				all := z.gradients.Shape
				abs := unnamed(f, overflowRule, z.gradients.DType, all)
				infinite := flag(all)
				f.Drop(abs)
				f.Drop(f.Any(infinite))
				f.Drop(f.Any(flag(all)))
			}
			copied := flag(graph.D(1))
			f.Let("overflow_gpu", flag(graph.D(1)))
			f.Drop(copied)
		})
	})
}
