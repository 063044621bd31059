package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
)

// deepSpeed is the engine that deepspeed.initialize returns, on one rank. It
// takes backward and step from the loop and gives them to ZeRO
// (deepspeed/runtime/engine.py @v0.16.4).
type deepSpeed struct {
	zero       zeroOptimizer
	losses     *graph.Tensor // sum of the detached losses of a step's micro batches
	gradNorm   *graph.Tensor // _global_grad_norm, which engine and optimizer share
	dividesFor int           // micro batches the loss is divided by (scale_wrt_gas); 1 where the trainer did
}

// zeroOptimizer is one of ZeRO's wrappers of an optimizer.
type zeroOptimizer interface {
	// load brings the model to the card and constructs the wrapper.
	load(r *Run)
	// call runs the model's forward within the wrapper's hooks.
	call(r *Run, f *graph.Frame, forward func() model.Outputs) model.Outputs
	// beforeBackward makes what backward reduces gradients in.
	beforeBackward(r *Run)
	// afterBackward reduces what is left and keeps this rank's part.
	afterBackward(r *Run)
	// step updates the parameters and returns the norm of the gradients, which
	// is the caller's; nil where it is a number on the host.
	step(r *Run) *graph.Tensor
	// host is the bytes of what the rank keeps on the host.
	host(r *Run) int64
	// settled reports whether the next step does what the last one did.
	settled() bool
	// numel is the number of parameters the rank keeps in the model's type.
	numel() int64
}

var engineRule = &graph.Rule{Name: "DeepSpeedEngine", Source: "deepspeed/runtime/engine.py@v0.16.4"}

// newDeepSpeed wraps the run's optimizer as the job asks, or returns nil where
// there is no ZeRO. From here on the optimizer's parameters are those of the
// wrapper.
func newDeepSpeed(r *Run) *deepSpeed {
	groups := r.ParamGroups
	if groups == nil {
		groups = [][]*graph.Param{r.Params}
	}
	d := &deepSpeed{dividesFor: 1}
	if r.Job.Runtime.Trainer == "deepspeed" { // the Trainer divides by itself
		d.dividesFor = max(1, r.Job.Training.GradAccumSteps)
	}
	switch r.Job.Parallelism.Sharding {
	case "zero1", "zero2":
		d.zero = newZeroFlat(r, groups)
	case "zero3":
		d.zero = newZero3(r, groups)
	default:
		return nil
	}
	return d
}

// backward is engine.backward: the loss is divided by the number of micro
// batches, noted for the log, scaled, and run back.
func (d *deepSpeed) backward(r *Run, loss *graph.Tensor) {
	m := r.M
	m.Run(func(f *graph.Frame) {
		if d.dividesFor > 1 {
			loss = f.Let("loss", f.MulScalar(loss))
		}
		mean := m.Make(engineRule, graph.Temporaries, graph.F32, graph.D())
		if d.losses == nil {
			d.losses = m.Keep(mean)
		} else {
			sum := m.Make(engineRule, graph.Temporaries, graph.F32, graph.D())
			m.Forget(d.losses)
			d.losses = sum
		}
		d.zero.beforeBackward(r)
		scaled := f.Let("scaled_loss", f.MulScalar(loss))
		m.Backward(scaled, nil)
		f.Del("scaled_loss")
		d.zero.afterBackward(r)
		m.Forget(mean)
	})
}

// step is engine.step at the end of an accumulation.
func (d *deepSpeed) step(r *Run) {
	norm := d.zero.step(r)
	r.drop(d.gradNorm) // the engine held the old one until the step was over
	d.gradNorm = norm
	r.drop(d.losses)
	d.losses = nil
}
