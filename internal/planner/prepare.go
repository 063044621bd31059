package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/wire"
)

// prepared is a job whose names are looked up: what the engine is given, and
// what has to be said about the looking up.
type prepared struct {
	asked        spec.Model // as the user named it
	job          spec.Job   // with the model's configuration
	device       spec.Device
	coefficients spec.Coefficients
	assumptions  []estimator.Assumption
	warnings     []estimator.Warning
	spread       float64 // relative standard deviation of the engine's error
	fetched      bool    // the configuration came from a hub
	newest       string  // version of torch where the job names none
}

// assume notes a value that the job did not give.
func (r *prepared) assume(path string, value any, decides bool, why string) {
	r.assumptions = append(r.assumptions, estimator.Assumption{Path: path, Value: value, Why: why, Decides: decides})
}

// warn notes a doubt, about bytes where they are known.
func (r *prepared) warn(code, path, text string) {
	r.warnings = append(r.warnings, estimator.Warning{Code: code, Path: path, Text: text})
}

// widen raises the engine's relative error to at least sd.
func (r *prepared) widen(sd float64) { r.spread = max(r.spread, sd) }

// prepare is lookUp with the coefficients of the calibration in force.
func (p *Planner) prepare(ctx context.Context, job spec.Job) (*prepared, error) {
	f, err := p.inForce(ctx)
	if err != nil {
		return nil, err
	}
	r, err := p.lookUp(ctx, job)
	if err != nil {
		return nil, err
	}
	return r, r.calibrate(f)
}

// lookUp looks up a job's model, card and versions. Wrong fields of all of them
// come back together; any other failure comes back alone. The coefficients are
// the priors.
func (p *Planner) lookUp(ctx context.Context, job spec.Job) (*prepared, error) {
	r := &prepared{asked: job.Model, job: job, spread: engineErrorPrior, newest: p.newestTorch()}
	var wrong fault.Fields
	for _, step := range []func(context.Context, *prepared) error{
		p.resolveModel, p.resolveTarget, p.resolveRanks, p.resolveVersions,
	} {
		err := step(ctx, r)
		var fields fault.Fields
		switch {
		case errors.As(err, &fields):
			wrong = append(wrong, fields...)
		case err != nil:
			return nil, err
		}
	}
	if err := wrong.Err(); err != nil {
		return nil, withUnmodelled(err, job)
	}
	r.warnings = append(r.warnings, wire.Warnings(r.job)...)
	return r, nil
}

// inForce is the coefficients with the engine's error as wide as what was looked
// up makes it.
func (r *prepared) inForce() spec.Coefficients {
	c := r.coefficients
	c.EngineError = r.spread
	return c
}

// run asks the engine and completes its answer with what the planner looked up.
func (p *Planner) run(r *prepared) (*estimator.Estimate, error) {
	est, err := guarded(func() (*estimator.Estimate, error) { return p.engine(r.job, r.device, r.inForce()) })
	if err != nil {
		return nil, withUnmodelled(err, r.job)
	}
	est.Engine.Catalog = cmp.Or(est.Engine.Catalog, p.catalog.Version())
	// The answer names the model as the user did, not by what was found.
	est.Job.Model.ID, est.Job.Model.Config, est.Job.Model.Parameters = r.asked.ID, r.asked.Config, r.asked.Parameters
	est.Target.GPU = cmp.Or(est.Target.GPU, r.device.Key, r.device.Name)
	est.Assumptions = mergeAssumptions(r.assumptions, est.Assumptions)
	est.Warnings = append(slices.Clone(r.warnings), est.Warnings...)
	return est, nil
}

// guarded calls an engine. A defect that makes it panic on one job is that job's
// error, and not the end of the process: engines run on goroutines of batches,
// where nobody else recovers.
func guarded[T any](call func() (*T, error)) (answer *T, err error) {
	defer func() {
		if v := recover(); v != nil {
			answer, err = nil, fault.Wrap(fault.Internal, "planner: engine", fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
		}
	}()
	return call()
}

// mergeAssumptions puts the ones that decide first, and of those the planner's,
// which are about what the job is rather than how it runs.
func mergeAssumptions(planner, engine []estimator.Assumption) []estimator.Assumption {
	all := slices.Concat(planner, engine)
	slices.SortStableFunc(all, func(a, b estimator.Assumption) int {
		return rankOf(a) - rankOf(b)
	})
	return all
}

func rankOf(a estimator.Assumption) int {
	if a.Decides {
		return 0
	}
	return 1
}
