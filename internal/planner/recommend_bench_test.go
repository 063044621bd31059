package planner

import (
	"testing"

	"memplan/internal/catalog"
	"memplan/internal/estimator/spec"
	"memplan/internal/recommend"
)

// seventy is a full fine-tuning of Llama 3.1 70B on nodes of H100.
func seventy(global int) Advice {
	j := spec.Job{Version: 1, Model: spec.Model{ID: "meta-llama/Llama-3.1-70B"}}
	j.Training.Precision, j.Training.MicroBatchSize, j.Training.SequenceLength = spec.PrecisionBF16Mixed, 1, 4096
	j.Training.GradAccumSteps = global / 32
	j.Target = spec.Target{GPU: "H100-SXM5-80GB", Count: 32}
	j.Parallelism.Sharding, j.Parallelism.FSDP = "fsdp", &spec.FSDP{Version: 1}
	return Advice{Job: j, Goal: recommend.FastestStep}
}

// BenchmarkRecommend70B searches for the fastest step of a 70B job, tables and
// estimates of the options included.
func BenchmarkRecommend70B(b *testing.B) {
	tables, err := catalog.Open()
	if err != nil {
		b.Fatal(err)
	}
	for _, bb := range []struct {
		name   string
		global int
	}{{"640", 32}, {"1280", 32 * 2}, {"2560", 32 * 8}} {
		b.Run(bb.name, func(b *testing.B) {
			candidates, simulated := 0, 0
			for b.Loop() {
				r, err := New(Config{Catalog: tables, CacheEntries: -1}).Recommend(b.Context(), seventy(bb.global), nil)
				if err != nil {
					b.Fatal(err)
				}
				candidates, simulated = r.Considered.Candidates, r.Considered.Simulated
			}
			b.ReportMetric(float64(candidates), "candidates")
			b.ReportMetric(float64(simulated), "simulated")
		})
	}
}
