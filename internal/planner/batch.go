package planner

import (
	"context"
	"runtime"

	"golang.org/x/sync/errgroup"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// MaxBatch is the most jobs of one batch.
const MaxBatch = 1000

// Outcome is the answer to one job of a batch: an estimate or an error.
type Outcome struct {
	Estimate *estimator.Estimate
	Err      error
}

// EstimateBatch answers several jobs, and keeps the answers when save is set,
// each under its key as Save has it; without keys, none is idempotent. The
// outcomes stand in the order of the jobs, and one job's error does not touch
// another. Of more than MaxBatch jobs none is answered: every outcome is
// fault.TooLarge.
func (p *Planner) EstimateBatch(ctx context.Context, jobs []spec.Job, save bool, keys ...string) []Outcome {
	outcomes := make([]Outcome, len(jobs))
	if len(jobs) > MaxBatch {
		err := fault.New(fault.TooLarge, "%d jobs in one batch: at most %d", len(jobs), MaxBatch)
		for i := range outcomes {
			outcomes[i].Err = err
		}
		return outcomes
	}
	each(len(jobs), func(i int) {
		if save {
			key := ""
			if i < len(keys) {
				key = keys[i]
			}
			outcomes[i].Estimate, outcomes[i].Err = p.Save(ctx, jobs[i], key)
			return
		}
		outcomes[i].Estimate, outcomes[i].Err = p.Estimate(ctx, jobs[i])
	})
	return outcomes
}

// each calls f for 0 to n-1, as many at a time as there are processors, and
// returns when all are done.
func each(n int, f func(int)) {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		g.Go(func() error {
			f(i)
			return nil
		})
	}
	_ = g.Wait()
}
