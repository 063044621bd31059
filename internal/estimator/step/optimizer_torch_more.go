package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// Adadelta, Adamax, NAdam and RAdam: two states in the parameter's type
// (torch/optim/adadelta.py, adamax.py, nadam.py, radam.py @v2.15.0).

var (
	adadeltaRule = &graph.Rule{Name: "adadelta", Source: "torch/optim/adadelta.py"}
	adamaxRule   = &graph.Rule{Name: "adamax", Source: "torch/optim/adamax.py"}
	nadamRule    = &graph.Rule{Name: "nadam", Source: "torch/optim/nadam.py"}
	radamRule    = &graph.Rule{Name: "radam", Source: "torch/optim/radam.py"}
)

var (
	adadeltaForeach = elementwise{rule: adadeltaRule, slots: 2, update: multiTensor(2)} // std, deltas
	adadeltaForLoop = elementwise{rule: adadeltaRule, slots: 2, update: adadeltaOneByOne}
	adamaxForeach   = elementwise{rule: adamaxRule, slots: 2, update: absolutes}
	adamaxForLoop   = elementwise{rule: adamaxRule, slots: 2, update: adamaxOneByOne}
	nadamForeach    = elementwise{rule: nadamRule, slots: 2, update: multiTensor(1)} // exp_avg_sq_sqrt
	nadamForLoop    = elementwise{rule: nadamRule, slots: 2, update: nadamOneByOne}
	radamForeach    = elementwise{rule: radamRule, slots: 2, update: multiTensor(1)} // buffer
	radamForLoop    = elementwise{rule: radamRule, slots: 2, update: radamOneByOne}
)

func newElementwise(form elementwise) func(*spec.Optimizer) Stepper {
	return func(*spec.Optimizer) Stepper { e := form; return &e }
}

// adadeltaOneByOne is _single_tensor_adadelta: std and delta live from one
// parameter to the next.
func adadeltaOneByOne(r *Run, e *elementwise, ps []*graph.Param) {
	r.noGrad(func(f *graph.Frame) {
		for _, p := range ps {
			f.Let("std", f.AddScalar(e.state[p][0]))
			f.Let("delta", f.AddScalar(e.state[p][1]))
		}
	})
}

// absolutes is _multi_tensor_adamax: the list of absolute gradients takes the
// name of the gradients, which the next group of types is bound to first.
func absolutes(r *Run, e *elementwise, ps []*graph.Param) {
	for _, same := range byDType(ps) {
		forgetList(r.M, likeEach(r, e.rule, same))
	}
}

// adamaxOneByOne is _single_tensor_adamax, whose absolute gradient has no name.
func adamaxOneByOne(r *Run, _ *elementwise, ps []*graph.Param) {
	r.noGrad(func(f *graph.Frame) {
		for _, p := range ps {
			f.Drop(f.Abs(p.Grad))
		}
	})
}

// nadamOneByOne is _single_tensor_nadam: denom lives from one parameter to the
// next.
func nadamOneByOne(r *Run, e *elementwise, ps []*graph.Param) {
	r.noGrad(func(f *graph.Frame) {
		for _, p := range ps {
			f.Let("denom", f.Sqrt(f.DivScalar(e.state[p][1])))
		}
	})
}

// radamOneByOne is _single_tensor_radam past its first steps, once the variance
// is rectified: the step times the adaptive rate, which is a quotient of its own.
func radamOneByOne(r *Run, e *elementwise, ps []*graph.Param) {
	r.noGrad(func(f *graph.Frame) {
		for _, p := range ps {
			average := f.Let("bias_corrected_exp_avg", f.DivScalar(e.state[p][0]))
			rated := f.MulScalar(average)
			f.Drop(f.MulScalar(f.Mul(rated, f.Func(adaptiveRate, e.state[p][1])[0])))
		}
	})
}

// adaptiveRate is _compute_adaptive_lr: a number divided by the root.
func adaptiveRate(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	root := f.Let("exp_avg_sq_sqrt", f.Sqrt(in[0]))
	return []*graph.Tensor{f.MulScalar(f.Reciprocal(root))}
}
