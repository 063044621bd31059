package step

import (
	"testing"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// BenchmarkSteadyStep writes one steady step down; the model, loading and the
// first step are not timed.
func BenchmarkSteadyStep(b *testing.B) {
	for _, bb := range []struct {
		name                         string
		hidden, inner, layers, heads float64
	}{{"Llama-3-8B", 4096, 14336, 32, 32}, {"Llama-3-70B", 8192, 28672, 80, 64}} {
		b.Run(bb.name, func(b *testing.B) {
			var memory graph.Memory
			events := 0
			b.ReportAllocs()
			for range b.N {
				b.StopTimer()
				r, err := newRun(&memory, benchmarkJob(bb.hidden, bb.inner, bb.layers, bb.heads), graph.Device{Capability: spec.Version{8, 0}, Multiprocessors: 108, ThreadsPerSM: 2048}, 0)
				if err != nil {
					b.Fatal(err)
				}
				r.load()
				r.step(FirstStep)
				b.StartTimer()
				r.steady()
				b.StopTimer()
				events = 0
				for _, p := range r.parts {
					events += len(p.Events)
				}
				r.M.Close()
			}
			b.ReportMetric(float64(events)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

func benchmarkJob(hidden, inner, layers, heads float64) spec.Job {
	on := true
	j := spec.Job{Model: spec.Model{Config: map[string]any{
		"model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
		"num_attention_heads": heads, "num_key_value_heads": 8.0, "vocab_size": 128256.0, "tie_word_embeddings": false,
	}}}
	t := &j.Training
	t.Method, t.Precision, t.WeightsDType = "full", spec.PrecisionBF16, spec.BF16
	t.MicroBatchSize, t.SequenceLength, t.GradAccumSteps = 1, 2048, 1
	t.Optimizer = spec.Optimizer{Name: "adamw", Implementation: "foreach", Library: "torch", StateBits: 32}
	t.Attention.Kernel, t.Padding, t.ZeroGradAt = "sdpa", "none", "after_step"
	t.GradClipping, t.ZeroGradToNone, t.OptimizerStep = &on, &on, &on
	j.Parallelism.Data, j.Parallelism.Sharding = 1, "none"
	j.Runtime.Trainer, j.Runtime.FrameworkVersion = "plain", "2.15.0"
	j.Runtime.LibraryVersions = map[string]string{"transformers": "5.24.0"}
	return j
}
