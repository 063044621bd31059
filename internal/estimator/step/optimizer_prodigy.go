package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// prodigy is prodigyopt.Prodigy: Adam's two moments, a running sum, and a copy
// of the initial weights, all in the parameter's type
// (prodigyopt/prodigy.py@1.1.2, slice_p 1).
type prodigy struct {
	state map[*graph.Param]*graph.Tensor // p0; the rest is only kept
	s     map[*graph.Param][3]*graph.Tensor
}

var prodigyRule = &graph.Rule{Name: "prodigy", Source: "prodigyopt/prodigy.py@1.1.2"}

func newProdigy(*spec.Optimizer) Stepper {
	return &prodigy{state: map[*graph.Param]*graph.Tensor{}, s: map[*graph.Param][3]*graph.Tensor{}}
}

// Step goes over the parameters twice: distances and moments, then the update.
func (y *prodigy) Step(r *Run) {
	r.noGrad(func(f *graph.Frame) {
		for _, g := range r.groups() {
			for _, p := range g {
				y.init(r, f, p)
				y.distance(f, p)
			}
		}
		for _, g := range r.groups() {
			for _, p := range g {
				f.Let("denom", f.Sqrt(y.s[p][2]))
			}
		}
	})
}

// init asks whether the weights are all zero, which is taken not to be.
func (y *prodigy) init(r *Run, f *graph.Frame, p *graph.Param) {
	if y.state[p] != nil {
		return
	}
	s := stateLike(r, prodigyRule, p, p.DType)
	f.Drop(f.Any(p.T()))
	y.state[p] = stateLike(r, prodigyRule, p, p.DType)
	average := stateLike(r, prodigyRule, p, p.DType)
	y.s[p] = [3]*graph.Tensor{s, average, stateLike(r, prodigyRule, p, p.DType)}
}

// distance is the dot product of the gradient with the way travelled, and the
// sum of the magnitudes of s.
func (y *prodigy) distance(f *graph.Frame, p *graph.Param) {
	f.Drop(f.Dot(f.Sub(y.state[p], p.T())))
	f.Drop(f.SumAll(f.Abs(y.s[p][0])))
}
