package estimator_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
)

func TestUnmodelled(t *testing.T) {
	tests := []struct {
		name string
		job  spec.Job
		want []string
	}{
		{name: "nothing said", want: nil},
		{name: "a setting without rules", job: spec.Job{Training: spec.Training{LabelSmoothing: true}}, want: []string{"training.label_smoothing"}},
		{
			name: "all of them, and what contradicts",
			job: spec.Job{Training: spec.Training{
				LabelSmoothing: true, Precision: spec.PrecisionBF16, WeightsDType: spec.FP32,
				Attention: spec.Attention{Kernel: "flex"}, Checkpointing: spec.Checkpointing{Mode: "selective"},
			}},
			want: []string{"training.activation_checkpointing", "training.attention", "training.label_smoothing", "training.weights_dtype"},
		},
		{name: "another implementation", job: spec.Job{Model: spec.Model{Implementation: "llm-foundry"}}, want: []string{"model.implementation"}},
		{name: "a model is not looked at", job: spec.Job{Model: spec.Model{Config: map[string]any{"model_type": "none"}}}, want: nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, f := range estimator.Unmodelled(tt.job) {
				got = append(got, f.Path)
			}
			require.Equal(t, tt.want, got)
		})
	}
}
