package estimator

import (
	"testing"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
	"memplan/internal/units"
)

// llama is a job of the Llama 3 family by its shape: bf16, AdamW over lists of
// tensors, one sequence of 2048 tokens.
func llama(hidden, inner, layers, heads float64, accumulation int) spec.Job {
	j := spec.Job{Model: spec.Model{Config: map[string]any{
		"model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
		"num_attention_heads": heads, "num_key_value_heads": 8.0, "vocab_size": 128256.0, "tie_word_embeddings": false,
	}}}
	t := &j.Training
	t.Precision, t.WeightsDType = spec.PrecisionBF16, spec.BF16
	t.MicroBatchSize, t.SequenceLength, t.GradAccumSteps = 1, 2048, accumulation
	t.Optimizer = spec.Optimizer{Name: "adamw", Implementation: "foreach", Library: "torch"}
	j.Runtime.Trainer = "plain"
	return j
}

var benchmarked = []struct {
	name string
	job  spec.Job
}{
	{"Llama-3-8B", llama(4096, 14336, 32, 32, 1)},
	{"Llama-3-70B", llama(8192, 28672, 80, 64, 1)},
	{"Llama-3-8B-accumulation-128", llama(4096, 14336, 32, 32, 128)},
}

var (
	benchCard  = spec.Device{Key: "A100-SXM4-80GB", Name: "A100 80GB", ComputeCapability: spec.Version{8, 0}, Total: 85174583296}
	benchPrior = spec.Coefficients{Context: spec.Coefficient{Mean: 450 * units.MiB, SD: 75 * units.MiB}}
)

// BenchmarkSteps writes down loading, the first step and a steady one, replays
// each once, and makes the breakdown and the timeline.
func BenchmarkSteps(b *testing.B) {
	for _, bb := range benchmarked {
		b.Run(bb.name, func(b *testing.B) {
			job, _, err := Resolve(bb.job)
			if err != nil {
				b.Fatal(err)
			}
			w, events := new(Workspace), 0
			b.ReportAllocs()
			for b.Loop() {
				plan, err := step.CompileIn(&w.memory, job, cardFor(benchCard, spec.Coefficients{}))
				if err != nil {
					b.Fatal(err)
				}
				played, err := w.run(plan, allocator.Config{})
				if err != nil {
					b.Fatal(err)
				}
				e := &Estimate{Job: job}
				e.measure(plan, played, 0)
				e.explain(plan, played, benchPrior)
				events = len(played.log)
			}
			b.ReportMetric(float64(events)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkSteadyReplay replays a steady step on a card that has seen the first,
// and makes the answer's breakdown and timeline.
func BenchmarkSteadyReplay(b *testing.B) {
	for _, bb := range benchmarked[:2] {
		b.Run(bb.name, func(b *testing.B) {
			job, _, err := Resolve(bb.job)
			if err != nil {
				b.Fatal(err)
			}
			plan, err := step.Compile(job, cardFor(benchCard, spec.Coefficients{}))
			if err != nil {
				b.Fatal(err)
			}
			w := new(Workspace)
			played, err := w.run(plan, allocator.Config{})
			if err != nil {
				b.Fatal(err)
			}
			last := plan.Program[len(plan.Program)-1]
			last.Repeat = 1
			events := 0
			b.ReportAllocs()
			for b.Loop() {
				r := &replay{log: w.log[:0], phase: step.SteadyStep}
				if err := w.allocator.Run(allocator.Program{last}, &allocator.Watcher{Event: r.event, Mark: r.mark, Carry: r.carry}); err != nil {
					b.Fatal(err)
				}
				e := &Estimate{Job: job}
				e.measure(plan, played, 0)
				walk := walk{e: e, plan: plan, r: r, peak: r.peakAt[step.SteadyStep], tally: newTally(plan, plan.Machine.Blocks()), keep: sample(r.log, timelinePoints)}
				walk.run()
				events = len(r.log)
			}
			b.ReportMetric(float64(events)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkAnswer is everything that Run does, the required bytes included.
func BenchmarkAnswer(b *testing.B) {
	for _, bb := range benchmarked {
		b.Run(bb.name, func(b *testing.B) {
			w := new(Workspace)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.Run(bb.job, benchCard, benchPrior); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
