package step_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
	"memplan/internal/fault"
)

func TestKernelsLigerLacksAreRefusedByName(t *testing.T) {
	tests := []struct {
		name    string
		kind    string
		kernels []string
		loss    string
		want    []string
	}{
		{"all of Llama's", "llama", []string{"rms_norm", "swiglu", "rope"}, "fused-linear", nil},
		{"a norm it has not", "llama", []string{"rope", "layer_norm"}, "", []string{"training.fused_kernels[1]"}},
		{"scaled logits", "granite", []string{"rope"}, "fused-linear", []string{"training.loss"}},
		{"another family", "gpt2", []string{"rope"}, "", []string{"training.fused_kernels"}},
		{"the loss alone", "gpt2", nil, "fused-linear", []string{"training.fused_kernels"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			job := spec.Job{Model: spec.Model{Config: map[string]any{"model_type": test.kind}}}
			job.Training.FusedKernels, job.Training.Loss.Kind = test.kernels, test.loss
			_, err := step.Compile(job, cards["A100-SXM4-80GB"])
			var got []string
			for _, f := range fault.FieldsOf(err) {
				if f.Path == "training.loss" || len(f.Path) >= 22 && f.Path[:22] == "training.fused_kernels" {
					got = append(got, f.Path)
				}
			}
			require.Equal(t, test.want, got)
		})
	}
}
