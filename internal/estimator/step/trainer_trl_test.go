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
		name, kind, objective, loss string
		want                        []string
	}{
		{"fine-tuning", "llama", "sft", "default", nil},
		{"preferences", "llama", "dpo", "default", []string{"training.objective"}},
		{"another family", "bloom", "sft", "default", []string{"runtime.trainer"}},
		{"two fused heads", "llama", "sft", "fused-linear", []string{"training.loss"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			job := spec.Job{Model: spec.Model{Config: map[string]any{"model_type": test.kind}}}
			job.Runtime.Trainer = "trl"
			job.Training.Objective, job.Training.Loss.Kind = test.objective, test.loss
			_, err := step.Compile(job, cards["A100-SXM4-80GB"])
			seen := map[string]bool{}
			var got []string
			for _, f := range fault.FieldsOf(err) {
				if !seen[f.Path] && (f.Path == "runtime.trainer" || f.Path == "training.objective" || f.Path == "training.loss") {
					seen[f.Path] = true
					got = append(got, f.Path)
				}
			}
			require.Equal(t, test.want, got)
		})
	}
}
