package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// torchAdafactor is torch.optim.Adafactor, which works in the parameter's type
// (torch/optim/_adafactor.py @v2.6.0 and @v2.15.0).
type torchAdafactor struct {
	foreach bool
	state   map[*graph.Param]*factored
}

var torchAdafactorRule = &graph.Rule{Name: "adafactor", Source: "torch/optim/_adafactor.py"}

func newTorchAdafactor(foreach bool) func(*spec.Optimizer) Stepper {
	return func(*spec.Optimizer) Stepper {
		return &torchAdafactor{foreach: foreach, state: map[*graph.Param]*factored{}}
	}
}

func (a *torchAdafactor) Step(r *Run) {
	for _, g := range r.groups() {
		for _, p := range g {
			a.init(r, p)
		}
		r.noGrad(func(f *graph.Frame) {
			if a.foreach {
				a.lists(f, g)
			} else {
				a.oneByOne(f, g)
			}
		})
	}
}

// init makes the factors with a dimension of 1 where they were reduced.
func (a *torchAdafactor) init(r *Run, p *graph.Param) {
	if a.state[p] != nil {
		return
	}
	s := &factored{}
	a.state[p] = s
	state := func(shape graph.Dims) *graph.Tensor {
		return r.M.Make(torchAdafactorRule, graph.OptimizerState, p.DType, shape)
	}
	if p.Shape.N < 2 {
		s.whole = state(p.Shape)
		return
	}
	s.row = state(p.Shape.With(-1, 1))
	s.column = state(p.Shape.With(-2, 1))
}

// oneByOne is _single_tensor_adafactor. Its names live from one parameter to
// the next, and update is another name of var_estimate.
func (a *torchAdafactor) oneByOne(f *graph.Frame, ps []*graph.Param) {
	for _, p := range ps {
		s := a.state[p]
		f.Drop(f.Norm(p.T()))
		var estimate *graph.Tensor
		if s.row != nil {
			f.Let("row_mean", f.NormDim(p.Grad, -1))
			f.Let("col_mean", f.NormDim(p.Grad, -2))
			estimate = f.Let("var_estimate", f.Outer(s.row, s.column))
			f.Drop(f.MeanDim(s.row, -2))
		} else {
			f.Let("grad_squared", f.Mul(p.Grad, p.Grad))
			estimate = f.Let("var_estimate", f.Clone(s.whole))
		}
		f.Let("update", estimate)
		f.Drop(f.Norm(estimate))
	}
}

// lists is _multi_tensor_adafactor: matrices and vectors are groups of their
// own, and the updates of one live until those of the next are there.
func (a *torchAdafactor) lists(f *graph.Frame, ps []*graph.Param) {
	var updates []*graph.Tensor
	for _, same := range byDType(ps) {
		for _, group := range byRank(same) {
			for _, p := range group {
				f.Drop(f.Norm(p.T()))
			}
			fresh := a.estimates(f, group)
			forgetList(f.Machine, updates)
			updates = fresh
			for _, t := range updates {
				f.Drop(f.Norm(t))
			}
		}
	}
	forgetList(f.Machine, updates)
}

// estimates is the second moment of each parameter, all of one rank.
func (a *torchAdafactor) estimates(f *graph.Frame, ps []*graph.Param) []*graph.Tensor {
	list := func(of func(p *graph.Param, s *factored) *graph.Tensor) []*graph.Tensor {
		ts := make([]*graph.Tensor, len(ps))
		for i, p := range ps {
			ts[i] = f.Own(of(p, a.state[p]))
		}
		return ts
	}
	if ps[0].Shape.N < 2 {
		forgetList(f.Machine, list(func(p *graph.Param, _ *factored) *graph.Tensor { return f.Mul(p.Grad, p.Grad) }))
		return list(func(_ *graph.Param, s *factored) *graph.Tensor { return f.Clone(s.whole) })
	}
	forgetList(f.Machine, list(func(p *graph.Param, _ *factored) *graph.Tensor { return f.NormDim(p.Grad, -1) }))
	forgetList(f.Machine, list(func(p *graph.Param, _ *factored) *graph.Tensor { return f.NormDim(p.Grad, -2) }))
	fresh := list(func(_ *graph.Param, s *factored) *graph.Tensor { return f.Outer(s.row, s.column) })
	forgetList(f.Machine, list(func(_ *graph.Param, s *factored) *graph.Tensor { return f.MeanDim(s.row, -2) }))
	return fresh
}

// byRank splits parameters into matrices and vectors, whichever comes first
// first.
func byRank(ps []*graph.Param) [][]*graph.Param {
	var first, second []*graph.Param
	for _, p := range ps {
		if (p.Shape.N < 2) == (ps[0].Shape.N < 2) {
			first = append(first, p)
		} else {
			second = append(second, p)
		}
	}
	if second == nil {
		return [][]*graph.Param{first}
	}
	return [][]*graph.Param{first, second}
}
