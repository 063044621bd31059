package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// Work is what one rank computes in a micro batch, and what its optimizer has
// to go through once a step.
type Work struct {
	Kernels   []graph.Kernel // of one forward and backward, recomputation included
	Total     int64          // parameters of the model
	Trainable int64
	Stored    int64 // bytes of the model's parameters as they lie on the card
	Trained   int64 // bytes of those that are trained
}

// Runs fails where the engine has no rules for a resolved job, as Compile would,
// and runs nothing of it.
func Runs(memory *graph.Memory, job spec.Job, device graph.Device) error {
	_, err := newRun(memory, job, device, 0)
	return err
}

// WorkOf runs one micro batch of a resolved job symbolically and returns what
// it computes. The optimizer's own kernels are not part of it.
func WorkOf(memory *graph.Memory, job spec.Job, device graph.Device) (*Work, error) {
	job.Training.GradAccumSteps = 1
	work, exact, err := workOf(memory, job, device, false)
	if err == nil && !exact {
		work, _, err = workOf(memory, job, device, true)
	}
	return work, err
}

func workOf(memory *graph.Memory, job spec.Job, device graph.Device, everyLayer bool) (*Work, bool, error) {
	r, err := newRun(memory, job, device, 0)
	if err != nil {
		return nil, false, err
	}
	if everyLayer || r.wantsEveryLayer() {
		r.M.RunEveryLayer()
	}
	work := r.work()
	return work, !r.M.Inexact(), nil
}

// work loads the model and writes one micro batch down.
func (r *Run) work() *Work {
	w := &Work{Total: r.total, Trainable: r.trainable}
	r.load()
	for _, p := range r.Net.Root.Parameters() {
		bytes := int64(p.Tensor.Bytes())
		w.Stored += bytes
		if p.Trained {
			w.Trained += bytes
		}
	}
	var written graph.Work
	r.M.Record(&written)
	r.phase, r.lastMicro = FirstStep, true
	r.trainer.micro(r, 0, 1)
	r.M.Events()
	r.M.Record(nil)
	r.M.Close()
	w.Kernels = written.Kernels
	return w
}
