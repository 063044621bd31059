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
	"memplan/internal/recommend"
	"memplan/internal/recommend/throughput"
	"memplan/internal/units"
)

// Planner answers with Estimate, changed by Edit, and keeps what is saved in
// memory.
type Planner struct {
	Edit func(*estimator.Estimate) // nil: as it is
	Err  error                     // answers every job, when set

	NoDriver   string             // why there is no card; "": there is one
	BenchState planner.BenchState // of the benchmark; "": it runs

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

// Recommend has one option for every goal but the fewest cards, which it finds
// nothing for; a probability of one half fails.
func (p *Planner) Recommend(ctx context.Context, asked planner.Advice, _ func(recommend.Progress)) (*recommend.Recommendation, error) {
	r := &recommend.Recommendation{Goal: asked.Goal, Probability: 0.95, Options: []recommend.Option{}}
	switch {
	case asked.Probability == 0.5:
		return nil, fault.Fields{{Path: "probability", Got: "0.5", Want: "something else"}}
	case asked.Goal == recommend.FewestGPUs:
		r.Note = "Nothing that may change makes the job fit."
		return r, nil
	}
	est, err := p.Estimate(ctx, asked.Job)
	if err != nil {
		return nil, err
	}
	patch := []recommend.Change{
		{Path: "training.activation_checkpointing", From: "none", To: "full"},
		{Path: "training.fused_kernels", From: []string{}, To: []string{"rms_norm", "rope"}},
		{Path: "training.optimizer.implementation", From: "foreach", To: nil},
	}
	r.Options = []recommend.Option{{
		Rank: 1, Patch: patch, Why: "Turn on activation checkpointing: about 0.80 times the speed.", Estimate: est,
		Costs: []string{"recomputes the forward pass"}, RelativeSpeed: throughput.Span{Low: 0.7, High: 0.9},
		TokensPerSecond: throughput.Span{Low: 7000, High: 9000}, MFU: 0.4, Snippets: []recommend.Snippet{{Tool: "axolotl", Title: "Axolotl", Text: "gradient_checkpointing: true\n"}},
	}}
	r.Singles = []recommend.Single{{Path: patch[0].Path, To: "full", Saves: 12 * units.GiB, What: "Turn on activation checkpointing", Cost: "recomputes the forward pass", Patch: patch[:1]}}
	r.Largest = []recommend.LargestCell{{GPU: "H100-SXM5-80GB", Length: 2048, MicroBatch: 6}, {GPU: "H100-SXM5-80GB", Length: 4096, MicroBatch: 3}, {GPU: "H100-SXM5-80GB", Length: 8192}}
	r.Pareto = []recommend.Point{{Patch: patch[:1], Required: 40 * units.GiB, RelativeSpeed: 0.8}, {Patch: patch[1:], Required: 60 * units.GiB, RelativeSpeed: 1}}
	return r, nil
}
