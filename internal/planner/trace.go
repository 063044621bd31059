package planner

import (
	"context"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
)

// Trace runs the job of a kept answer again and records its events, or fails
// with fault.NotFound. An answer given by another version of the engine may have
// counted other events: the recording names the version that made it.
func (p *Planner) Trace(ctx context.Context, id string) (*estimator.Recording, error) {
	est, err := p.Saved(ctx, id)
	if err != nil {
		return nil, err
	}
	return p.TraceJob(ctx, est.Job)
}

// TraceJob runs a job and records its events. It fails as Estimate does.
func (p *Planner) TraceJob(ctx context.Context, job spec.Job) (*estimator.Recording, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := p.prepare(ctx, job)
	if err != nil {
		return nil, err
	}
	recording, err := guarded(func() (*estimator.Recording, error) { return estimator.Trace(r.job, r.device, r.coefficients) })
	if err != nil {
		return nil, err
	}
	recording.Engine.Catalog = p.catalog.Version()
	return recording, nil
}
