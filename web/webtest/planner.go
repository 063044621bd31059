// Package webtest is a planner for tests of the pages: it answers any job with
// a made-up estimate of the right shape, so that a test of a page does not
// change with the engine.
package webtest

import (
	"context"
	"fmt"
	"sync"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/units"
)

// Planner answers with Estimate, changed by Edit, and keeps what is saved in
// memory.
type Planner struct {
	Edit func(*estimator.Estimate) // nil: as it is
	Err  error                     // answers every job, when set

	mu    sync.Mutex
	saved map[string]*estimator.Estimate
}

// Estimate answers a job. Micro batches above 4096 are wrong, as an example of
// an error that only the engine finds.
func (p *Planner) Estimate(_ context.Context, job spec.Job) (*estimator.Estimate, error) {
	if p.Err != nil {
		return nil, p.Err
	}
	if job.Training.MicroBatchSize > 4096 {
		var wrong fault.Fields
		wrong.Add("training.micro_batch_size", job.Training.MicroBatchSize, "at most 4096", "4096")
		return nil, wrong.Err()
	}
	e := Estimate(job)
	if p.Edit != nil {
		p.Edit(e)
	}
	return e, nil
}

// Check offers one change.
func (p *Planner) Check(ctx context.Context, job spec.Job) (planner.Check, error) {
	e, err := p.Estimate(ctx, job)
	if err != nil {
		return planner.Check{}, err
	}
	fix := planner.Fix{
		Text:  "Turn on activation checkpointing: about a third more compute, needs 61.2 GiB",
		Patch: []planner.Change{{Path: "training.activation_checkpointing", To: "full"}},
	}
	return planner.Check{Verdict: e.Target.Verdict, Estimate: e, Fixes: []planner.Fix{fix}}, nil
}

// WithEffects leaves the effects that were made up.
func (p *Planner) WithEffects(_ context.Context, _ spec.Job, est *estimator.Estimate) *estimator.Estimate {
	return est
}

// AllWrong finds nothing more.
func (p *Planner) AllWrong(_ context.Context, _ spec.Job, found error) error { return found }

// Save keeps an estimate in memory; the same key keeps one.
func (p *Planner) Save(ctx context.Context, job spec.Job, key string) (*estimator.Estimate, error) {
	e, err := p.Estimate(ctx, job)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.saved == nil {
		p.saved = map[string]*estimator.Estimate{}
	}
	if old, ok := p.saved[key]; ok {
		return old, nil
	}
	e.ID = fmt.Sprintf("est_%d", len(p.saved)+1)
	p.saved[key] = e
	return e, nil
}

// Saved returns what was kept.
func (p *Planner) Saved(_ context.Context, id string) (*estimator.Estimate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.saved {
		if e.ID == id {
			return e, nil
		}
	}
	return nil, fault.New(fault.NotFound, "There is no saved estimate %s.", id)
}

// Fits finds room for one sample per 10 GiB of a card, as an example.
func (p *Planner) Fits(_ context.Context, _ spec.Job, gpus []string) ([]planner.Fit, error) {
	var fits []planner.Fit
	for i, g := range gpus {
		f := planner.Fit{
			GPU: g, Name: g, MicroBatch: i, Verdict: estimator.Fits, Required: units.Bytes(10+3*i) * units.GiB,
			Usable: 79 * units.GiB, Above: units.Bytes(13+3*i) * units.GiB,
		}
		if i == 2 {
			f.Err = fault.New(fault.Invalid, "bf16 needs compute capability 8.0")
		}
		fits = append(fits, f)
	}
	return fits, nil
}

// Models lists two models whatever the query.
func (p *Planner) Models(string, int) []catalog.Model {
	return []catalog.Model{
		{ID: "meta-llama/Llama-3.1-8B", Family: "llama", Parameters: 8030261248},
		{ID: "Qwen/Qwen2.5-7B", Family: "qwen2", Parameters: 7615616512},
	}
}

// GPUs lists three cards of two generations.
func (p *Planner) GPUs() []catalog.GPU {
	return []catalog.GPU{
		{Key: "A100-SXM4-40GB", Name: "A100 SXM4 40GB", Arch: "Ampere", Usable: 39 * units.GiB},
		{Key: "A100-SXM4-80GB", Name: "A100 SXM4 80GB", Arch: "Ampere", Usable: 79 * units.GiB},
		{Key: "H100-SXM5-80GB", Name: "H100 SXM5 80GB", Arch: "Hopper", Usable: 79 * units.GiB},
	}
}
