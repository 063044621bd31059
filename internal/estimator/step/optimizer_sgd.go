package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// sgd is torch.optim.SGD (torch/optim/sgd.py @v2.6.0 and @v2.15.0). Without
// momentum it has no state. A momentum buffer is a copy of the first gradient.
type sgd struct {
	momentum, nesterov bool
	form               sgdForm
	buffers            map[*graph.Param]*graph.Tensor
}

type sgdForm uint8

const (
	sgdForeach sgdForm = iota
	sgdFused
	sgdForLoop
)

var sgdRule = &graph.Rule{Name: "sgd", Source: "torch/optim/sgd.py"}

func newSGD(form sgdForm) func(*spec.Optimizer) Stepper {
	return func(o *spec.Optimizer) Stepper {
		return &sgd{momentum: momentum(o) != 0, nesterov: o.Nesterov, form: form, buffers: map[*graph.Param]*graph.Tensor{}}
	}
}

func (s *sgd) takesScale() bool { return s.form == sgdFused }

func (s *sgd) Step(r *Run) {
	if !s.momentum {
		return
	}
	for _, g := range r.groups() {
		switch s.form {
		case sgdForLoop:
			s.oneByOne(r, g)
		case sgdFused:
			s.fill(r, g)
		default: // nesterov adds in place here
			for _, same := range byDType(g) {
				s.fill(r, same)
			}
		}
	}
}

func (s *sgd) fill(r *Run, ps []*graph.Param) {
	for _, p := range ps {
		s.buffer(r, p)
	}
}

func (s *sgd) buffer(r *Run, p *graph.Param) {
	if s.buffers[p] == nil {
		s.buffers[p] = stateLike(r, sgdRule, p, p.DType)
	}
}

// oneByOne is _single_tensor_sgd: the name grad is bound to the gradient, the
// buffer, or with nesterov their sum.
func (s *sgd) oneByOne(r *Run, ps []*graph.Param) {
	r.noGrad(func(f *graph.Frame) {
		for _, p := range ps {
			grad := f.Let("grad", p.Grad)
			s.buffer(r, p)
			if s.nesterov {
				f.Let("grad", f.Add(grad, s.buffers[p]))
			}
		}
	})
}
