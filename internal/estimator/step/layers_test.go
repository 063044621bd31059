package step_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/estimator"
	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
)

// TestCopiedLayersAreExact draws jobs and compares the program with copied
// layers with the one in which every layer ran: event for event, up to the
// names of storages.
func TestCopiedLayersAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		job := drawJob(t)
		job, _, err := estimator.Resolve(job)
		require.NoError(t, err)
		card := graph.Device{Capability: spec.Version{8, 0}, Multiprocessors: 108, ThreadsPerSM: 2048}
		whole, err := step.CompileEveryLayer(job, card)
		if err != nil {
			t.Skip(err)
		}
		short, err := step.Compile(job, card)
		require.NoError(t, err)
		require.False(t, short.Machine.Inexact(), "the layers are alike")
		sameProgram(t, whole, short)
	})
}

func drawJob(t *rapid.T) spec.Job {
	layers := float64(rapid.IntRange(7, 12).Draw(t, "layers"))
	config := map[string]any{"model_type": "llama", "hidden_size": 64.0, "intermediate_size": 160.0, "num_attention_heads": 8.0,
		"num_key_value_heads": 2.0, "vocab_size": 128.0, "num_hidden_layers": layers, "tie_word_embeddings": rapid.Bool().Draw(t, "tied")}
	if rapid.Bool().Draw(t, "gpt2") {
		config = map[string]any{"model_type": "gpt2", "n_embd": 64.0, "n_head": 8.0, "n_positions": 128.0, "vocab_size": 128.0, "n_layer": layers}
	}
	job := spec.Job{Model: spec.Model{Config: config}}
	tr := &job.Training
	tr.Precision = rapid.SampledFrom([]spec.Precision{"bf16", "bf16-mixed", "fp32", "fp16-mixed"}).Draw(t, "precision")
	tr.MicroBatchSize, tr.SequenceLength = 2, 64
	tr.GradAccumSteps = rapid.SampledFrom([]int{1, 2, 5}).Draw(t, "accumulation")
	tr.Padding = rapid.SampledFrom([]string{"none", "mask"}).Draw(t, "padding")
	tr.Attention.Kernel = rapid.SampledFrom([]string{"sdpa", "eager"}).Draw(t, "attention")
	if rapid.Bool().Draw(t, "checkpointing") {
		reentrant := rapid.Bool().Draw(t, "reentrant")
		tr.Checkpointing = spec.Checkpointing{Mode: "full", Reentrant: &reentrant}
	}
	if method := rapid.SampledFrom([]string{"full", "lora", "dora"}).Draw(t, "method"); method != "full" {
		tr.Method = method
		tr.Adapter = &spec.Adapter{Rank: 4, Dropout: rapid.SampledFrom([]float64{0, 0.1}).Draw(t, "dropout"), TargetModules: spec.Targets{AllLinear: true}}
	}
	job.Runtime.Trainer = rapid.SampledFrom([]string{"plain", "hf"}).Draw(t, "trainer")
	if rapid.Bool().Draw(t, "old") {
		job.Runtime.FrameworkVersion = "2.6.0"
	}
	return job
}

// sameProgram compares two programs under the bijection of their storages that
// the events themselves define.
func sameProgram(t *rapid.T, a, b *step.Plan) {
	x, y := written(a.Program, nil), written(b.Program, nil)
	require.Equal(t, len(x), len(y), "events")
	names := map[int32]int32{}
	for i := range x {
		e, f := x[i], y[i]
		if e.Kind == allocator.Alloc {
			names[e.Block] = f.Block
			require.Equal(t, a.Machine.Describe(e.Block), b.Machine.Describe(f.Block), "what event %d is for", i)
		}
		if e.Kind != allocator.Mark {
			if e.Kind != allocator.Free { // consecutive frees may come in another order
				require.Equal(t, names[e.Block], f.Block, "event %d: %s of %s", i, e.Kind, a.Machine.Describe(e.Block))
			}
			e.Block, f.Block = 0, 0
		}
		require.Equal(t, e, f, "event %d", i)
	}
	for i := 0; i < len(x); {
		want, got := map[int32]bool{}, map[int32]bool{}
		for ; i < len(x) && x[i].Kind == allocator.Free; i++ {
			want[names[x[i].Block]], got[y[i].Block] = true, true
		}
		require.Equal(t, want, got, "storages freed before event %d", i)
		for ; i < len(x) && x[i].Kind != allocator.Free; i++ {
			if x[i].Kind == allocator.Alloc {
				names[x[i].Block] = y[i].Block
			}
		}
	}
}

// written lists a program's events once, repetitions not written out.
func written(parts []allocator.Part, out []allocator.Event) []allocator.Event {
	for _, p := range parts {
		out = append(out, p.Events...)
		out = written(p.Parts, out)
	}
	return out
}
