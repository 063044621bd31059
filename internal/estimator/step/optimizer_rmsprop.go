package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// RMSprop and Adagrad: one running sum in the parameter's type, and a buffer
// where RMSprop has momentum (torch/optim/rmsprop.py, adagrad.py @v2.6.0 and
// @v2.15.0). Adagrad makes its state when it is constructed.

var (
	rmspropRule = &graph.Rule{Name: "rmsprop", Source: "torch/optim/rmsprop.py"}
	adagradRule = &graph.Rule{Name: "adagrad", Source: "torch/optim/adagrad.py"}
)

var (
	rmspropForeach = elementwise{rule: rmspropRule, slots: 1, update: multiTensor(1)} // avg
	rmspropForLoop = elementwise{rule: rmspropRule, slots: 1, update: rootOneByOne}
	adagradForeach = elementwise{rule: adagradRule, slots: 1, early: true, update: multiTensor(2)} // std, numerator
	adagradFused   = elementwise{rule: adagradRule, slots: 1, early: true, onDevice: true, scaled: true, update: noTemporaries}
	adagradForLoop = elementwise{rule: adagradRule, slots: 1, early: true, update: rootOneByOne}
)

func newRMSprop(form elementwise) func(*spec.Optimizer) Stepper {
	return func(o *spec.Optimizer) Stepper {
		e := form
		if momentum(o) > 0 {
			e.slots++
		}
		return &e
	}
}

func newAdagrad(form elementwise) func(*spec.Optimizer) Stepper {
	return func(*spec.Optimizer) Stepper { e := form; return &e }
}

// rootOneByOne is _single_tensor_rmsprop and _single_tensor_adagrad: the root
// of the running sum lives under its name until the next parameter's is there.
func rootOneByOne(r *Run, e *elementwise, ps []*graph.Param) {
	r.noGrad(func(f *graph.Frame) {
		for _, p := range ps {
			f.Let("root", f.Sqrt(e.state[p][0]))
		}
	})
}
