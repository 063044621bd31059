package step

import (
	"memplan/internal/estimator/spec"
)

// deepSpeedLoop is a loop written by hand around DeepSpeed's engine: batch to
// the card, engine(batch), engine.backward(loss), engine.step().
type deepSpeedLoop struct {
	holds bool // the names outputs and loss live on into the next iteration
}

func (d *deepSpeedLoop) begin(r *Run) { d.holds = r.Job.Runtime.HoldsOutputs != spec.Off }

func (d *deepSpeedLoop) micro(r *Run, _, _ int) {
	r.moveBatch()
	loss := r.forward(1)
	if !d.holds {
		r.Outputs.Release(r.Loop)
	}
	r.End(ForwardPart)
	r.engine.backward(r, loss)
	r.End(BackwardPart)
	if !d.holds {
		r.Loop.Del("loss")
	}
}

func (d *deepSpeedLoop) finish(r *Run) {
	r.engine.step(r)
	r.End(OptimizerPart)
}
