package estimator

import (
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// Resolve fills every unset field of the job from its trainer and library
// versions, and lists what it filled, the deciding assumptions first. It fails
// with fault.Fields naming every setting that contradicts another.
func Resolve(job spec.Job) (spec.Job, []Assumption, error) {
	return job, nil, nil
}

// Run answers one job on one device. The job's model must be given by config,
// architecture or graph (an id or a bare count is looked up by the planner).
func Run(job spec.Job, device spec.Device, coefficients spec.Coefficients) (*Estimate, error) {
	return nil, fault.New(fault.Unavailable, "the engine is being assembled")
}
