package planner

import (
	"context"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/recommend"
)

// Decision is what a launcher should do with a job.
type Decision string

// The decisions.
const (
	Allow Decision = "allow"
	Warn  Decision = "warn"
	Deny  Decision = "deny"
)

// Check is the answer to a launcher: section 4 of the public format.
type Check struct {
	Decision Decision            `json:"decision"`
	Verdict  estimator.Verdict   `json:"verdict"`
	Summary  string              `json:"summary"`
	Estimate *estimator.Estimate `json:"estimate"`
	Fixes    []Fix               `json:"fixes"`
	Policy   Policy              `json:"policy"`
}

// Policy names the rule that led to a decision.
type Policy struct {
	Name string `json:"name"`
	Rule string `json:"rule"`
}

// Fix is a change that makes a job fit: its text says what it costs and what
// the job would need, both estimated and not guessed.
type Fix struct {
	Text  string   `json:"text"`
	Patch []Change `json:"patch"`
}

// Change is one value of a job: where it stands, what it is, what it becomes.
type Change = recommend.Change

// defaultPolicy is the policy in force where no other is configured.
func defaultPolicy(v estimator.Verdict) (Decision, Policy) {
	switch v {
	case estimator.Fits:
		return Allow, Policy{"default", "the 95th percentile of what the job requires is usable on the card"}
	case estimator.Tight:
		return Warn, Policy{"default", "the median of what the job requires is usable on the card, the 95th percentile is not"}
	}
	return Deny, Policy{"default", "the median of what the job requires is more than is usable on the card"}
}

// Check answers a launcher: whether the job may start, and if it does not
// clearly fit, which changes would make it fit.
func (p *Planner) Check(ctx context.Context, job spec.Job) (Check, error) {
	est, err := p.Estimate(ctx, job)
	if err != nil {
		return Check{}, err
	}
	c := Check{Verdict: est.Target.Verdict, Summary: est.Summary, Estimate: est, Fixes: []Fix{}}
	c.Decision, c.Policy = defaultPolicy(c.Verdict)
	if est.Target.Verdict == estimator.Fits {
		return c, nil
	}
	c.Fixes, err = p.fixes(ctx, job, est)
	return c, err
}
