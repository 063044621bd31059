package planner

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/estimator/spec"
	"memplan/internal/recommend"
)

// proved is the jobs that recommendations are proved on: models of several
// families and sizes, methods, precisions and cards.
func proved() []spec.Job {
	type shape struct {
		id       string
		length   int
		card     string
		method   string
		quant    string
		precise  spec.Precision
		checks   string
		accumule int
	}
	var jobs []spec.Job
	for _, s := range []shape{
		{"gpt2", 1024, "T4", "full", "", "fp16-mixed", "none", 1},
		{"gpt2", 512, "T4", "full", "", "fp32", "none", 1},
		{"gpt2", 1024, "RTX-3090", "full", "", "bf16-mixed", "none", 4},
		{"gpt2", 1024, "A100-SXM4-40GB", "full", "", "bf16", "full", 1},
		{"meta-llama/Llama-3.2-1B", 2048, "RTX-3090", "full", "", "bf16", "none", 1},
		{"meta-llama/Llama-3.2-1B", 4096, "A100-SXM4-40GB", "full", "", "bf16-mixed", "full", 1},
		{"meta-llama/Llama-3.2-1B", 2048, "L4", "lora", "", "bf16", "none", 1},
		{"meta-llama/Llama-3.2-1B", 8192, "A100-SXM4-80GB", "full", "", "bf16-mixed", "none", 1},
		{"meta-llama/Llama-3.1-8B", 2048, "A100-SXM4-80GB", "lora", "", "bf16", "none", 1},
		{"meta-llama/Llama-3.1-8B", 4096, "H100-SXM5-80GB", "full", "", "bf16", "full", 1},
		{"meta-llama/Llama-3.1-8B", 2048, "L40S", "lora", "nf4", "bf16", "full", 1},
		{"meta-llama/Llama-3.1-8B", 2048, "RTX-4090", "lora", "nf4-double", "bf16", "full", 2},
		{"mistralai/Mistral-7B-v0.1", 2048, "A100-SXM4-80GB", "lora", "", "bf16-mixed", "full", 1},
		{"mistralai/Mistral-7B-v0.1", 4096, "H100-SXM5-80GB", "lora", "", "bf16", "none", 1},
		{"Qwen/Qwen2.5-0.5B", 1024, "T4", "lora", "", "fp16-mixed", "none", 1},
		{"Qwen/Qwen2.5-0.5B", 2048, "RTX-3090", "full", "", "bf16", "none", 1},
		{"Qwen/Qwen2.5-1.5B", 2048, "L4", "full", "", "bf16", "full", 1},
		{"Qwen/Qwen2.5-7B", 4096, "H200-SXM-141GB", "full", "", "bf16", "full", 1},
		{"Qwen/Qwen2-0.5B", 2048, "RTX-4090", "full", "", "bf16-mixed", "full", 1},
		{"HuggingFaceTB/SmolLM2-360M", 512, "T4", "full", "", "fp32", "none", 1},
		{"gpt2-medium", 512, "V100-SXM2-32GB", "full", "", "fp16-mixed", "none", 1},
	} {
		j := spec.Job{Version: 1, Model: spec.Model{ID: s.id}}
		t := &j.Training
		t.Method, t.Precision, t.SequenceLength, t.MicroBatchSize, t.GradAccumSteps = s.method, s.precise, s.length, 1, s.accumule
		t.Checkpointing.Mode = s.checks
		if s.quant != "" {
			t.Quantization = &spec.Quantization{Type: s.quant}
		}
		j.Target.GPU = s.card
		jobs = append(jobs, j)
	}
	return jobs
}

// What is recommended is simulated and fits, and one sample more does not: for
// the job as it is, with only the micro batch free, and with all that may change.
func TestTheLargestMicroBatchFitsAndOneMoreDoesNot(t *testing.T) {
	tables, err := catalog.Open()
	require.NoError(t, err)
	p := New(Config{Catalog: tables, CacheEntries: -1})
	for _, job := range proved() {
		for _, allow := range [][]string{{"training.micro_batch_size"}, nil} {
			name := fmt.Sprintf("%s %s %s all=%v", job.Model.ID, job.Target.GPU, job.Training.Precision, allow == nil)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r, err := p.Recommend(context.Background(), Advice{Job: job, Goal: recommend.LargestMicroBatch, Allow: allow}, nil)
				require.NoError(t, err)
				require.NotEmpty(t, r.Options, r.Note)
				for _, o := range r.Options[:1] {
					require.GreaterOrEqual(t, o.Estimate.Target.ProbabilityFits, 0.95, o.Why)
					above := o.Job
					above.Training.MicroBatchSize++
					above.Model = job.Model
					est, err := p.Estimate(context.Background(), above)
					require.NoError(t, err)
					require.Less(t, est.Target.ProbabilityFits, 0.95, "micro batch %d fits too", above.Training.MicroBatchSize)
				}
			})
		}
	}
}
