package estimator

import (
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// Run answers one job on one device. The job's model must be given by config,
// architecture or graph (an id or a bare count is looked up by the planner).
func Run(job spec.Job, device spec.Device, coefficients spec.Coefficients) (*Estimate, error) {
	return nil, fault.New(fault.Unavailable, "the engine is being assembled")
}
