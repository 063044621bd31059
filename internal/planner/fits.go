package planner

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/recommend"
	"memplan/internal/units"
)

// maxMicroBatch is where the search for the largest micro batch ends.
const maxMicroBatch = 4096

// Fit is the largest micro batch of a job on one card. Zero means that not even
// one sample fits; its figures are then those of one sample.
type Fit struct {
	GPU        string            `json:"gpu"`
	Name       string            `json:"name"`
	MicroBatch int               `json:"micro_batch_size"`
	AtLeast    bool              `json:"at_least"` // the search ended at its limit
	Verdict    estimator.Verdict `json:"verdict"`  // fits, or that of one sample
	Required   units.Bytes       `json:"required_bytes"`
	High       units.Bytes       `json:"high_bytes"` // 95th percentile of required
	Usable     units.Bytes       `json:"usable_bytes"`
	Above      units.Bytes       `json:"required_bytes_above"` // with one sample more; 0 at the limit
	Err        error             `json:"-"`                    // why the job cannot run on this card at all
}

// usualGPUs are the cards of a table nobody chose the cards for: what is rented
// and owned most, from 16 GB up.
func usualGPUs() []string {
	return []string{
		"T4", "V100-SXM2-32GB", "A10G", "L4", "L40S", "RTX-3090", "RTX-4090", "RTX-5090", "RTX-A6000",
		"A100-SXM4-40GB", "A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB", "B200", "MI300X",
	}
}

// usualCards is the job's own card, where the catalogue has it, and the usual
// ones.
func (p *Planner) usualCards(job spec.Job) []string {
	own, err := p.catalog.GPU(cmp.Or(job.Target.GPU, defaultGPU))
	if err != nil {
		return usualGPUs()
	}
	others := slices.DeleteFunc(usualGPUs(), func(key string) bool { return key == own.Key })
	return append([]string{own.Key}, others...)
}

// Fits finds the largest micro batch that fits (verdict fits) on each card:
// those named by key or alias; for none, the job's own and the usual ones. The
// answer and one sample above it are both estimated, never interpolated. Unknown
// names are fault.Fields at gpus.N; a job that is wrong on every card fails as a
// whole.
func (p *Planner) Fits(ctx context.Context, job spec.Job, gpus []string) ([]Fit, error) {
	if len(gpus) == 0 {
		gpus = p.usualCards(job)
	}
	var wrong fault.Fields
	for i, name := range gpus {
		if _, err := p.catalog.GPU(name); err != nil {
			for _, f := range fault.FieldsOf(err) {
				f.Path = fmt.Sprintf("gpus.%d", i)
				wrong = append(wrong, f)
			}
		}
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	fits := make([]Fit, len(gpus))
	each(len(gpus), func(i int) { fits[i] = p.fit(ctx, job, gpus[i]) })
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return fits, commonError(fits)
}

// commonError is the error of a job that runs nowhere.
func commonError(fits []Fit) error {
	for _, f := range fits {
		if f.Err == nil {
			return nil
		}
	}
	if len(fits) == 0 {
		return nil
	}
	return fits[0].Err
}

// fit searches one card.
func (p *Planner) fit(ctx context.Context, job spec.Job, gpu string) Fit {
	job.Target = p.targetOn(job.Target, gpu)
	ready, err := p.prepare(ctx, job)
	if err != nil {
		return Fit{GPU: gpu, Err: err}
	}
	f := Fit{GPU: ready.device.Key, Name: ready.device.Name, Usable: ready.device.Usable()}
	tried := map[int]*estimator.Estimate{}
	best, above, err := recommend.Largest(ctx, maxMicroBatch, func(micro int) (recommend.Trial, error) {
		varied := *ready
		varied.job.Training.MicroBatchSize = micro
		est, err := p.run(&varied)
		if err != nil {
			return recommend.Trial{}, err
		}
		tried[micro] = est
		return recommend.Trial{
			Size: micro, Fits: est.Target.Verdict == estimator.Fits,
			Needs: est.Peak.Interval.High, Usable: est.Target.Usable,
		}, nil
	})
	if err != nil {
		f.Err = err
		return f
	}
	return f.with(best.Size, tried[best.Size], tried[above.Size])
}

// targetOn is a job's target on another card: what describes the job's own card
// (its MIG profile, its memory) stays only on that one.
func (p *Planner) targetOn(own spec.Target, gpu string) spec.Target {
	card, _ := p.catalog.GPU(gpu)
	if g, err := p.catalog.GPU(cmp.Or(own.GPU, defaultGPU)); err == nil && g.Key == card.Key && (own.GPU != "" || own.MemoryGiB == 0) {
		own.GPU = card.Key
		return own
	}
	own.GPU, own.Device, own.MIGProfile, own.ComputeCapability, own.MemoryGiB = card.Key, "", "", "", 0
	return own
}

// with fills in the answer and what one sample above says: an estimate is nil
// where not even one sample fits, or where all do.
func (f Fit) with(micro int, best, above *estimator.Estimate) Fit {
	f.MicroBatch = micro
	f.AtLeast = above == nil
	if above != nil {
		f.Above = above.Peak.Required
	}
	shown := best
	if shown == nil {
		shown = above
	}
	f.Verdict = shown.Target.Verdict
	f.Required, f.High = shown.Peak.Required, shown.Peak.Interval.High
	return f
}
