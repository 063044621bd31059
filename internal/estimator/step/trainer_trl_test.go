package step_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
	"memplan/internal/fault"
)

func TestWhatTRLIsNotRunWithIsRefused(t *testing.T) {
	tests := []struct {
		name, kind, objective, reference, loss string
		want                                   []string
	}{
		{"fine-tuning", "llama", "sft", "none", "default", nil},
		{"preferences", "llama", "dpo", "copy", "default", nil},
		{"preferences without a reference", "llama", "dpo", "none", "default", []string{"training.reference_model"}},
		{"adapters off where there are none", "llama", "dpo", "adapter-off", "default", []string{"training.reference_model"}},
		{"rewards", "llama", "reward", "none", "default", []string{"training.objective"}},
		{"another family", "bloom", "sft", "none", "default", []string{"runtime.trainer"}},
		{"two fused heads", "llama", "sft", "none", "fused-linear", []string{"training.loss"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			job := spec.Job{Model: spec.Model{Config: map[string]any{"model_type": test.kind}}}
			job.Runtime.Trainer = "trl"
			job.Training.Objective, job.Training.Loss.Kind, job.Training.ReferenceModel = test.objective, test.loss, test.reference
			_, err := step.Compile(job, cards["A100-SXM4-80GB"])
			seen := map[string]bool{}
			var got []string
			for _, f := range fault.FieldsOf(err) {
				if !seen[f.Path] && (f.Path == "runtime.trainer" || f.Path == "training.reference_model" || f.Path == "training.objective" || f.Path == "training.loss") {
					seen[f.Path] = true
					got = append(got, f.Path)
				}
			}
			require.Equal(t, test.want, got)
		})
	}
}
