package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/recommend"
)

// Advice is what a recommendation is asked: section 5 of the public format.
type Advice struct {
	Job         spec.Job
	Goal        recommend.Goal // empty: the smallest change
	Probability float64        // of fitting; 0: 0.95
	Allow       []string       // paths that may change; none: all but the method and the length
	GPUs        []string       // cards allowed, by key or alias; none: the job's own
	GlobalBatch int            // 0: the job's own
}

// Recommend searches for what to change in a job. Every option it returns was
// estimated as a whole and fits with the probability asked for. Progress, where
// it is not nil, is told how far the search is, one call at a time.
func (p *Planner) Recommend(ctx context.Context, a Advice, progress func(recommend.Progress)) (*recommend.Recommendation, error) {
	a.Goal = cmp.Or(a.Goal, recommend.SmallestChange)
	a.Probability = cmp.Or(a.Probability, recommend.Probability)
	request := recommend.Request{Goal: a.Goal, Probability: a.Probability, Allow: a.Allow, GlobalBatch: a.GlobalBatch}
	wrong := request.Check()
	ready, err := p.onEach(ctx, a)
	fields := fault.Fields{}
	if errors.As(err, &fields) {
		wrong = append(wrong, fields...)
	} else if err != nil {
		return nil, err
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	problem := recommend.Problem{Request: request, Job: ready[0].job, Progress: progress}
	for _, r := range ready {
		problem.Cards = append(problem.Cards, recommend.Card{Device: r.device, Rates: p.rates(r)})
	}
	problem.Runs = func(job spec.Job, card int) error { return p.runs(job, ready[card].device) }
	problem.Work = func(job spec.Job, card int) (*estimator.Work, error) { return p.work(job, ready[card].device) }
	problem.Fit = func(job spec.Job, card int, look estimator.Look) (estimator.Fitness, error) {
		return p.fitness(ready[card].with(job), a.Probability, look)
	}
	answer, err := recommend.Solve(ctx, problem)
	if err != nil {
		return nil, withUnmodelled(err, ready[0].job)
	}
	return answer, p.estimateOptions(ctx, answer, ready)
}

// onEach looks the job up on every card that is allowed, the job's own first.
func (p *Planner) onEach(ctx context.Context, a Advice) ([]*prepared, error) {
	var wrong fault.Fields
	jobs := []spec.Job{}
	for i, name := range a.GPUs {
		if _, err := p.catalog.GPU(name); err != nil {
			for _, f := range fault.FieldsOf(err) {
				f.Path = fmt.Sprintf("gpus.%d", i)
				wrong = append(wrong, f)
			}
			continue
		}
		job := a.Job
		job.Target = p.targetOn(job.Target, name)
		jobs = append(jobs, job)
	}
	if len(a.GPUs) == 0 {
		jobs = append(jobs, a.Job)
	}
	var all []*prepared
	for _, job := range jobs {
		r, err := p.prepare(ctx, job)
		var fields fault.Fields
		switch {
		case errors.As(err, &fields):
			wrong = append(wrong, fields...)
		case err != nil:
			return nil, err
		default:
			all = append(all, r)
		}
		if len(wrong) > 0 {
			break
		}
	}
	return all, wrong.Err()
}

// with is another job on the same card: its coefficients follow its ranks.
func (r *prepared) with(job spec.Job) *prepared {
	varied := *r
	varied.job = job
	if p, own := job.Parallelism, r.job.Parallelism; p.Ranks() != own.Ranks() {
		varied.coefficients.NCCL, varied.coefficients.CacheError = ncclPrior(p), cachePrior(p)
	}
	return &varied
}

// runs asks the engine whether it has rules for a job.
func (p *Planner) runs(job spec.Job, device spec.Device) error {
	_, err := guarded(func() (*struct{}, error) {
		w := p.workspaces.Get().(*estimator.Workspace)
		err := w.Runs(job, device)
		p.workspaces.Put(w)
		return nil, err
	})
	return err
}

// fitness asks the engine whether a job fits.
func (p *Planner) fitness(r *prepared, probable float64, look estimator.Look) (estimator.Fitness, error) {
	f, err := guarded(func() (*estimator.Fitness, error) {
		w := p.workspaces.Get().(*estimator.Workspace)
		f, err := w.Fit(r.job, r.device, r.inForce(), probable, look)
		p.workspaces.Put(w)
		return &f, err
	})
	if err != nil {
		return estimator.Fitness{}, err
	}
	return *f, nil
}

// estimateOptions gives every option its estimate.
func (p *Planner) estimateOptions(ctx context.Context, answer *recommend.Recommendation, ready []*prepared) error {
	errs := make([]error, len(answer.Options))
	each(len(answer.Options), func(i int) {
		o := &answer.Options[i]
		o.Estimate, errs[i] = p.run(ready[o.Card].with(o.Job))
		if o.Estimate != nil {
			o.Snippets, errs[i] = snippets(o.Estimate)
		}
	})
	return errors.Join(append(errs, ctx.Err())...)
}
