package planner

import (
	"context"
	"fmt"
	"strings"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
)

// remedy is a kind of change that saves memory. It edits a job, given the one
// with its defaults filled in, and says what it changed; no changes mean that
// it does not apply.
type remedy struct {
	what string // "Turn on activation checkpointing"; %v %v: the micro batch, the accumulation
	cost string // "about a third more compute"
	edit func(job *spec.Job, now spec.Job, card spec.Device) []Change
}

// remedies lists the changes tried, those first that change least of what is
// computed.
func remedies() []remedy {
	return []remedy{
		{"Use scaled-dot-product attention", "the same result", fuseAttention},
		{"Take flash attention", "the same result", flashAttention},
		{"Take micro batches of %v and accumulate %v steps", "the same global batch, somewhat slower", halveMicroBatch},
		{"Turn on activation checkpointing", "about a third more compute", checkpointAll},
		{"Compute in 16 bits under autocast", "fp32 weights, activations in 16 bits", mixPrecision},
		{"Keep the optimizer state in 8 bits", "AdamW of bitsandbytes in place of torch's", eightBitAdam},
		{"Keep weights and gradients in bf16", "no fp32 copy of the weights: small updates are rounded away", pureBF16},
	}
}

// fixes returns the single changes that make a job fit, each verified by
// estimating it. Where none does alone, it returns one fix that takes as many of
// them, in the order of remedies, as it needs; and none at all where even all
// are not enough.
func (p *Planner) fixes(ctx context.Context, job spec.Job, est *estimator.Estimate) ([]Fix, error) {
	r, err := p.prepare(ctx, job)
	if err != nil {
		return nil, err
	}
	attempt := &attempts{planner: p, ready: r, resolved: est.Job, needed: est}
	list := remedies()
	found := make([]*Fix, len(list))
	each(len(list), func(i int) { found[i] = attempt.single(ctx, list[i]) })
	fixes := []Fix{}
	for _, f := range found {
		if f != nil {
			fixes = append(fixes, *f)
		}
	}
	if len(fixes) == 0 {
		fixes = append(fixes, attempt.together(ctx, list)...)
	}
	return fixes, ctx.Err()
}

// attempts estimates variations of one job.
type attempts struct {
	planner  *Planner
	ready    *prepared
	resolved spec.Job // with every default filled in
	needed   *estimator.Estimate
}

// single applies a remedy as often as it applies until the job fits, and
// returns nil where it never does.
func (a *attempts) single(ctx context.Context, m remedy) *Fix {
	var changes []Change
	job, now := a.ready.job, a.resolved
	for ctx.Err() == nil {
		more := m.edit(&job, now, a.ready.device)
		if len(more) == 0 {
			return nil
		}
		changes = joinChanges(changes, more)
		est, err := a.estimate(job)
		if err != nil {
			return nil // the engine refuses the combination: no fix
		}
		if est.Target.Verdict == estimator.Fits {
			return &Fix{Text: a.text([]remedy{m}, changes, est), Patch: changes}
		}
		now = est.Job
	}
	return nil
}

// together applies one remedy after the other until the job fits, leaving out
// what saves nothing on top of those before.
func (a *attempts) together(ctx context.Context, list []remedy) []Fix {
	var changes []Change
	var used []remedy
	job, now, required := a.ready.job, a.resolved, a.needed.Peak.Required
	for _, m := range list {
		for ctx.Err() == nil {
			next := job
			more := m.edit(&next, now, a.ready.device)
			if len(more) == 0 {
				break
			}
			est, err := a.estimate(next)
			if err != nil || est.Peak.Required >= required {
				break
			}
			required = est.Peak.Required
			job, now, changes = next, est.Job, joinChanges(changes, more)
			if len(used) == 0 || used[len(used)-1].what != m.what {
				used = append(used, m)
			}
			if est.Target.Verdict == estimator.Fits {
				return []Fix{{Text: a.text(used, changes, est), Patch: changes}}
			}
		}
	}
	return nil
}

// estimate runs a variation, past the cache: nobody asked for it.
func (a *attempts) estimate(job spec.Job) (*estimator.Estimate, error) {
	varied := *a.ready
	varied.job = job
	return a.planner.run(&varied)
}

// text says what to do, what that gives, and what it costs.
func (a *attempts) text(used []remedy, changes []Change, est *estimator.Estimate) string {
	var what, cost []string
	for i, m := range used {
		step := m.what
		if strings.Contains(step, "%v") {
			step = fmt.Sprintf(step, valueAt(changes, microBatchPath), valueAt(changes, accumulationPath))
		}
		if i > 0 {
			step = strings.ToLower(step[:1]) + step[1:]
		}
		what = append(what, step)
		cost = append(cost, m.cost)
	}
	return fmt.Sprintf("%s: needs %s instead of %s (%s).", strings.Join(what, ", "),
		est.Peak.Required, a.needed.Peak.Required, strings.Join(cost, "; "))
}

// valueAt is what a path becomes.
func valueAt(changes []Change, path string) any {
	for _, c := range changes {
		if c.Path == path {
			return c.To
		}
	}
	return nil
}

// joinChanges appends changes; a second change of one path continues the first.
func joinChanges(have, more []Change) []Change {
next:
	for _, c := range more {
		for i := range have {
			if have[i].Path == c.Path {
				have[i].To = c.To
				continue next
			}
		}
		have = append(have, c)
	}
	return have
}
