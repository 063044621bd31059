package step_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/estimator"
	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
	"memplan/internal/fault"
)

// litgptJob is a small job of LitGPT.
func litgptJob(kind string, layers int) spec.Job {
	job := spec.Job{Model: spec.Model{Implementation: model.LitGPT, Config: map[string]any{
		"model_type": kind, "hidden_size": 64.0, "intermediate_size": 160.0, "num_attention_heads": 8.0, "vocab_size": 512.0,
		"num_hidden_layers": float64(layers), "max_position_embeddings": 1024.0,
	}}}
	job.Training.Precision, job.Training.MicroBatchSize, job.Training.SequenceLength = "bf16", 2, 300
	return job
}

func litgptPlan(t require.TestingT, job spec.Job, compile func(spec.Job, graph.Device) (*step.Plan, error)) *step.Plan {
	job, _, err := estimator.Resolve(job)
	require.NoError(t, err)
	plan, err := compile(job, graph.Device{Capability: spec.Version{8, 0}, Multiprocessors: 108, ThreadsPerSM: 2048})
	require.NoError(t, err)
	return plan
}

func TestLitGPTTrainsItsAdapters(t *testing.T) {
	for _, test := range []struct {
		name      string
		kind      string
		groups    float64
		targets   []string
		trainable int64
	}{
		{"queries and values of one product", "llama", 8, []string{"q_proj", "v_proj"}, 2 * (2*4*64 + 128*4)},
		{"values with fewer heads", "mistral", 2, []string{"q_proj", "v_proj"}, 2 * (2*4*64 + 80*4)},
		{"all of it", "llama", 8, []string{"q_proj", "k_proj", "v_proj"}, 2 * (3*4*64 + 192*4)},
		{"its own names", "llama", 8, []string{"query", "mlp", "head"}, 2*(4*64+64*4+3*4*(64+160)) + 4*(64+512)},
		{"a plain MLP", "gpt_neox", 8, []string{"up_proj"}, 2 * 2 * 4 * (64 + 160)},
	} {
		t.Run(test.name, func(t *testing.T) {
			job := litgptJob(test.kind, 2)
			job.Model.Config["num_key_value_heads"] = test.groups
			job.Training.Method = "lora"
			job.Training.Adapter = &spec.Adapter{Rank: 4, TargetModules: spec.Targets{Names: test.targets}}
			require.Equal(t, test.trainable, litgptPlan(t, job, step.Compile).Trainable)
		})
	}
}

func TestCopiedLayersOfLitGPTAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		job := litgptJob(rapid.SampledFrom([]string{"llama", "gemma", "gpt_neox", "phi", "falcon"}).Draw(t, "family"), rapid.IntRange(7, 9).Draw(t, "layers"))
		job.Runtime.LibraryVersions = rapid.SampledFrom([]map[string]string{{"lit_gpt": "8641822"}, {"litgpt": "0.4.8"}, {"litgpt": "0.5.13"}}).Draw(t, "version")
		job.Training.Method = rapid.SampledFrom([]string{"full", "lora"}).Draw(t, "method")
		job.Training.GradAccumSteps = rapid.SampledFrom([]int{1, 3}).Draw(t, "accumulation")
		sameProgram(t, litgptPlan(t, job, step.CompileEveryLayer), litgptPlan(t, job, step.Compile))
	})
}

// TestOldBitsAndBytesKeepsInputs counts what is left after the steps: before
// 0.43.2 the graph, which the loop holds, keeps the input of every 4-bit product.
func TestOldBitsAndBytesKeepsInputs(t *testing.T) {
	left := func(version string) (bytes int64) {
		job := litgptJob("llama", 2)
		job.Training.Method, job.Training.Quantization = "lora", &spec.Quantization{Type: "nf4"}
		job.Runtime.LibraryVersions = map[string]string{"litgpt": "0.4.8", "bitsandbytes": version}
		sizes := map[int32]int64{}
		for _, e := range written(litgptPlan(t, job, step.Compile).Program, nil) {
			switch e.Kind {
			case allocator.Alloc:
				sizes[e.Block] = e.Bytes
			case allocator.Free:
				delete(sizes, e.Block)
			}
		}
		for _, n := range sizes {
			bytes += n
		}
		return bytes
	}
	const rows = 2 * 300
	hidden := int64(6) // of attn.proj and the MLP in both layers, of attn.attn in the second, of the head
	inner := int64(2)  // of mlp.proj in both
	require.Equal(t, rows*2*(hidden*64+inner*160), left("0.43.1")-left("0.43.2"))
}

func TestLitGPTRefuses(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(j *spec.Job)
		path   string
	}{
		{"another loop", func(j *spec.Job) { j.Runtime.Trainer = "hf" }, "runtime.trainer"},
		{"whole replicas", func(j *spec.Job) {
			j.Parallelism.Data, j.Parallelism.Sharding, j.Target.Count = 2, "ddp", 2
		}, "parallelism.sharding"},
		{"its loop around another model", func(j *spec.Job) { j.Model.Implementation, j.Runtime.Trainer = "hf", "lightning" }, "model.implementation"},
		{"an adapter on what is not there", func(j *spec.Job) {
			j.Training.Method, j.Training.Adapter = "lora", &spec.Adapter{TargetModules: spec.Targets{Names: []string{"c_attn"}}}
		}, "training.adapter.target_modules"},
	} {
		t.Run(test.name, func(t *testing.T) {
			job := litgptJob("llama", 2)
			test.change(&job)
			job, _, err := estimator.Resolve(job)
			require.NoError(t, err)
			_, err = step.Compile(job, graph.Device{Capability: spec.Version{8, 0}})
			var paths []string
			for _, f := range fault.FieldsOf(err) {
				paths = append(paths, f.Path)
			}
			require.Contains(t, paths, test.path)
		})
	}
}
