package step

import "memplan/internal/estimator/graph"

// Sophia-G: a momentum and a diagonal of the Hessian, in the parameter's type
// (Liuhong99/Sophia:sophia.py, _single_tensor_sophiag). The pass that estimates
// the Hessian every few steps is a step's forward and backward again.

var sophiaRule = &graph.Rule{Name: "sophia", Source: "Liuhong99/Sophia:sophia.py"}

var sophiaPlain = elementwise{rule: sophiaRule, slots: 2, update: sophiaOneByOne}

// sophiaOneByOne clips the quotient of momentum and curvature; ratio lives from
// one parameter to the next.
func sophiaOneByOne(r *Run, e *elementwise, ps []*graph.Param) {
	r.noGrad(func(f *graph.Frame) {
		for _, p := range ps {
			size := f.Abs(e.state[p][0])
			curved := f.AddScalar(f.MulScalar(e.state[p][1]))
			f.Let("ratio", f.Clamp(f.Div(size, curved)))
			f.Drop(f.Abs(e.state[p][0])) // exp_avg.sign()
		}
	})
}
