package estimator_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

// pairs is TRL's DPOTrainer on a small Qwen 2.
func pairs(t *testing.T, training string) spec.Job {
	var j spec.Job
	require.NoError(t, json.Unmarshal(fmt.Appendf(nil, `{"version":1,"model":{"config":{"model_type":"qwen2","hidden_size":256,"intermediate_size":1024,"num_hidden_layers":5,
	"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":40000,"tie_word_embeddings":true,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"max_position_embeddings":32768,"use_sliding_window":false,"hidden_act":"silu"}},
	"training":{"method":"full","precision":"bf16-mixed","weights_dtype":"fp32","optimizer":{"name":"adamw","implementation":"fused","library":"torch"},
	"objective":"dpo","sequence_length":256,"micro_batch_size":4,"padding":"none",%s},"runtime":{"trainer":"trl"}}`, training), &j))
	return j
}

// Peaks of TRL 1.16 on torch 2.15 and transformers 5.24, measured with the real
// allocator: requested and allocated.
func TestPreferencesAgreeWithTRL(t *testing.T) {
	type peak struct{ requested, allocated units.Bytes }
	for _, c := range []struct {
		name, training      string
		load, first, steady peak
	}{
		{
			"a copy as reference", `"reference_model":"copy","activation_checkpointing":{"mode":"none"},"attention":{"kernel":"sdpa"}`,
			peak{60642560, 61626368},
			peak{519217592, 521724928},
			peak{640502456, 643894272},
		},
		{
			"a copy, recomputed", `"reference_model":"copy","activation_checkpointing":{"mode":"full","reentrant":false},"attention":{"kernel":"eager"}`,
			peak{60642560, 61626368},
			peak{343468392, 345978880},
			peak{464753256, 468140032},
		},
		{
			"scored before", `"reference_model":"precomputed","activation_checkpointing":{"mode":"none"},"attention":{"kernel":"sdpa"}`,
			peak{60642560, 61626368},
			peak{},
			peak{579859928, 582268928},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := estimator.Run(pairs(t, c.training), a100, prior)
			require.NoError(t, err)
			for i, want := range []peak{c.load, c.first, c.steady} {
				if p := e.Phases[i]; want != (peak{}) {
					require.Equal(t, want, peak{p.PeakRequested, p.PeakAllocated}, p.Name)
				}
			}
		})
	}
}

// With its adapters off the model is its own reference, whatever is recomputed:
// no copy is kept.
func TestAdaptersOffAreTheReference(t *testing.T) {
	for _, checkpointing := range []string{`{"mode":"none"}`, `{"mode":"full","reentrant":true}`, `{"mode":"full","reentrant":false}`} {
		run := func(reference string) *estimator.Estimate {
			job := pairs(t, `"reference_model":"`+reference+`","activation_checkpointing":`+checkpointing)
			job.Training.Method, job.Training.WeightsDType = "lora", spec.BF16
			job.Training.Adapter = &spec.Adapter{Rank: 8, Alpha: 16, TargetModules: spec.Targets{AllLinear: true}, DType: spec.FP32}
			e, err := estimator.Run(job, a100, prior)
			require.NoError(t, err)
			return e
		}
		off, before := run("adapter-off"), run("precomputed")
		require.Equal(t, before.Phases[0], off.Phases[0])
		require.GreaterOrEqual(t, off.Peak.Allocated, before.Peak.Allocated)
		for _, s := range off.Breakdown {
			require.NotEqual(t, "resident_modules", s.Category)
		}
	}
}
