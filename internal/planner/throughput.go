package planner

import (
	"cmp"
	"context"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/recommend/throughput"
)

// Throughput predicts how long a step of a job takes. It answers jobs whose
// memory is not modelled too, as far as one rank's own work is.
func (p *Planner) Throughput(ctx context.Context, job spec.Job) (throughput.Step, error) {
	r, err := p.prepare(ctx, job)
	if err != nil {
		return throughput.Step{}, err
	}
	resolved, _, err := estimator.Resolve(r.job)
	if err != nil {
		return throughput.Step{}, err
	}
	profile, err := throughput.NewProfile(throughput.Base(r.job), func(base spec.Job) (*estimator.Work, error) {
		return p.work(base, r.device)
	})
	if err != nil {
		return throughput.Step{}, err
	}
	return throughput.Predict(resolved, profile, p.rates(r)), nil
}

// work asks the engine what a micro batch computes.
func (p *Planner) work(job spec.Job, device spec.Device) (*estimator.Work, error) {
	return guarded(func() (*estimator.Work, error) {
		w := p.workspaces.Get().(*estimator.Workspace)
		work, err := w.Work(job, device)
		p.workspaces.Put(w)
		return work, err
	})
}

// rates are those of the job's card. For one that is known by its compute
// capability alone they are those of the fastest card that has it.
func (p *Planner) rates(r *prepared) throughput.Rates {
	if g, err := p.catalog.GPU(cmp.Or(r.device.Key, r.job.Target.GPU)); err == nil {
		return throughput.RatesOf(g, r.device)
	}
	var best catalog.GPU
	for _, g := range p.catalog.GPUs() {
		if spec.ParseVersion(g.ComputeCapability) == r.device.ComputeCapability && g.Vendor == r.device.Vendor && g.DenseTFLOPS.BF16 > best.DenseTFLOPS.BF16 {
			best = g
		}
	}
	return throughput.RatesOf(best, r.device)
}
