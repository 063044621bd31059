package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// Adam and AdamW: two moments in the parameter's type (torch/optim/adam.py,
// adamw.py @v2.6.0 and @v2.15.0). Decoupled weight decay works in place, and
// Adam's is 0 by default, so the two are alike.

var adamRule = &graph.Rule{Name: "adam", Source: "torch/optim/adam.py"}

var (
	adamForeach   = elementwise{rule: adamRule, slots: 2, update: multiTensor(1)} // exp_avg_sq_sqrt
	adamFused     = elementwise{rule: adamRule, slots: 2, onDevice: true, scaled: true, update: noTemporaries}
	adamDeepSpeed = elementwise{rule: adamRule, slots: 2, update: noTemporaries} // FusedAdam, whose step count is a number
	adamForLoop   = elementwise{rule: adamRule, slots: 2, update: adamOneByOne}
)

func newAdam(form elementwise) func(*spec.Optimizer) Stepper {
	return func(*spec.Optimizer) Stepper { e := form; return &e }
}

// adamOneByOne is _single_tensor_adam: the name denom lives from one parameter
// to the next.
func adamOneByOne(r *Run, e *elementwise, ps []*graph.Param) {
	r.noGrad(func(f *graph.Frame) {
		for _, p := range ps {
			f.Let("denom", f.DivScalar(f.Sqrt(e.state[p][1])))
		}
	})
}
