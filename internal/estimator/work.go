package estimator

import (
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
)

// Work is what one rank computes in a micro batch.
type Work = step.Work

// Work returns what one micro batch of a job computes, as the graph's own
// operations say. Errors are those of Run.
func (w *Workspace) Work(job spec.Job, device spec.Device) (*Work, error) {
	job, _, err := Resolve(job)
	if err != nil {
		return nil, err
	}
	return step.WorkOf(&w.memory, job, cardFor(device, spec.Coefficients{}))
}

// Runs fails where the engine has no rules for a job, as Run would, and
// simulates nothing.
func (w *Workspace) Runs(job spec.Job, device spec.Device) error {
	job, _, err := Resolve(job)
	if err != nil {
		return err
	}
	return step.Runs(&w.memory, job, cardFor(device, spec.Coefficients{}))
}

// Multiprocessors is how many streaming multiprocessors a card has, or is taken
// to have.
func Multiprocessors(device spec.Device) int64 {
	return cardFor(device, spec.Coefficients{}).Multiprocessors
}
