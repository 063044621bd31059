package step

import "memplan/internal/estimator/graph"

// gradScaler is torch.amp.GradScaler (torch/amp/grad_scaler.py @v2.6.0 and
// @v2.15.0): a scale and a growth counter made by the first Scale, and in each
// step a flag that tells whether a gradient overflowed.
type gradScaler struct {
	scale, tracker *graph.Tensor
	foundInf       *graph.Tensor // of the step in hand, once its gradients were looked at
}

var scalerRule = &graph.Rule{Name: "GradScaler", Source: "torch/amp/grad_scaler.py"}

func (s *gradScaler) scalar(r *Run, d graph.DType) *graph.Tensor {
	return r.M.Make(scalerRule, graph.Other, d, graph.D())
}

// Scale is scaler.scale(loss): an unnamed result. Its node keeps the scale.
func (s *gradScaler) Scale(r *Run, f *graph.Frame, loss *graph.Tensor) *graph.Tensor {
	if s.scale == nil {
		s.scale, s.tracker = s.scalar(r, graph.F32), s.scalar(r, graph.I32)
	}
	return f.Mul(loss, s.scale)
}

// Unscale is scaler.unscale_(optimizer): gradients are scaled in place by the
// inverse, computed in fp64.
func (s *gradScaler) Unscale(r *Run) {
	double := s.scalar(r, graph.I64) // fp64 has its size
	reciprocal := s.scalar(r, graph.I64)
	r.M.Forget(double)
	inverse := s.scalar(r, graph.F32)
	r.M.Forget(reciprocal)
	s.check(r, inverse)
}

// check is _unscale_grads_ over a fresh flag: flag and inverse are copied to
// the gradients' card, which is their own; the copied flag stays.
func (s *gradScaler) check(r *Run, inverse *graph.Tensor) {
	flag := s.scalar(r, graph.F32)
	s.foundInf = s.scalar(r, graph.F32)
	copied := s.scalar(r, graph.F32)
	for _, t := range []*graph.Tensor{inverse, flag, copied} {
		r.M.Forget(t)
	}
}

// Step is scaler.step(optimizer). A fused optimizer is handed the flag, and the
// scale too where nothing was unscaled yet.
func (s *gradScaler) Step(r *Run) {
	if o, ok := r.Optimizer.(scaleAware); !ok || !o.takesScale() {
		if s.foundInf == nil {
			s.Unscale(r)
		}
		r.Optimizer.Step(r)
		return
	}
	unscaled := s.foundInf != nil
	if !unscaled {
		s.check(r, s.scalar(r, graph.F32))
	}
	handed := []*graph.Tensor{s.scalar(r, graph.F32)} // sum of the flags
	if !unscaled {
		handed = append(handed, s.scalar(r, graph.F32)) // scale * 1
	}
	r.Optimizer.Step(r)
	forgetList(r.M, handed)
}

// Update is scaler.update(): the step's flag dies.
func (s *gradScaler) Update(r *Run) {
	r.M.Forget(s.foundInf)
	s.foundInf = nil
}

// stepOptimizer is optimizer.step(), through the scaler if there is one, and
// the update of averaged weights.
func (r *Run) stepOptimizer() {
	if r.scaling() {
		r.Scaler.Step(r)
		r.Scaler.Update(r)
	} else {
		r.Optimizer.Step(r)
	}
	if r.ema != nil {
		r.ema.update(r)
	}
}

// clip is gradient clipping as every loop does it: what was scaled is unscaled
// first. The caller owns the norm.
func (r *Run) clip() *graph.Tensor {
	if r.scaling() {
		r.Scaler.Unscale(r)
	}
	return clipGradNorm(r)
}
