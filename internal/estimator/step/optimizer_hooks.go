package step

import (
	"slices"

	"memplan/internal/estimator/graph"
)

// Optimizers that act while gradients arrive: hooks on the accumulation of each
// parameter's gradient.

// gradientHooked is a Stepper that puts hooks on gradients, so that every layer
// has to be run.
type gradientHooked interface{ hooksGradients() bool }

// inBackward is an optimizer fused into backward: one for each parameter, which
// steps as soon as the gradient is accumulated and lets it go (torchtune's
// register_optim_in_bwd_hooks, transformers' layerwise optimizers, torch's
// tutorial on optimizer_step_in_backward).
type inBackward struct{ Stepper }

func (inBackward) hooksGradients() bool { return true }

// Construct puts the hooks on.
func (b inBackward) Construct(r *Run) {
	if c, ok := b.Stepper.(constructing); ok {
		c.Construct(r)
	}
	for _, p := range r.Params {
		p.Hook = func(*graph.Leaf) {
			b.Stepper.Step(r)
			r.M.Forget(p.Grad)
			p.Grad = nil
		}
	}
}

// Step is of an optimizer that is left with nothing to do.
func (inBackward) Step(*Run) {}

// onHost is CPUOffloadOptimizer of torchao: states and the step itself live in
// pinned host memory. Gradients are copied there on a stream of their own as
// they arrive, and stay on the card until zero_grad unless they are offloaded
// too. Small parameters keep a fused AdamW on the card
// (torchao/optim/cpu_offload.py@0.18.0).
type onHost struct {
	rest      elementwise
	gradients bool // leave the card as soon as they are copied
}

// hostStream is the CUDA stream of the copies.
const hostStream = 1

func newOnHost(r *Run) *onHost {
	return &onHost{rest: adamFused, gradients: slices.Contains(r.Job.Parallelism.Offload, "gradients")}
}

func (h *onHost) hooksGradients() bool { return h.gradients }

// Construct puts the hooks on where gradients leave.
func (h *onHost) Construct(r *Run) {
	if !h.gradients {
		return
	}
	for _, p := range r.Params {
		if p.Numel() < aoMinimum {
			continue
		}
		p.Hook = func(*graph.Leaf) {
			r.M.UseOn(p.Grad, hostStream)
			r.M.Forget(p.Grad)
			p.Grad = nil
		}
	}
}

// Step steps the small parameters on the card.
func (h *onHost) Step(r *Run) {
	for _, g := range r.groups() {
		for _, p := range g {
			if p.Numel() < aoMinimum {
				h.rest.init(r, p)
			}
		}
	}
}

// hostBytes is the pinned memory: a copy of each weight and gradient, and Adam's
// two moments, in the parameter's type.
func (h *onHost) hostBytes(r *Run) (n int64) {
	for _, p := range r.Params {
		if p.Numel() >= aoMinimum {
			n += 4 * p.Numel() * p.DType.Size()
		}
	}
	return n
}
