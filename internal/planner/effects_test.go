package planner_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/planner"
	"memplan/internal/units"
)

func TestEffectsAreThoseOfTheOtherValue(t *testing.T) {
	t.Parallel()
	p := real(t, planner.Config{})
	job := decode(t, "{model: {id: gpt2}, training: {micro_batch_size: 2, sequence_length: 512}, target: {gpu: H100-SXM5-80GB}}")
	est, err := p.Estimate(t.Context(), job)
	require.NoError(t, err)
	effects := map[string]units.Bytes{}
	for _, a := range p.WithEffects(t.Context(), job, est).Assumptions {
		effects[a.Path] = a.Effect
	}
	require.Negative(t, effects["training.activation_checkpointing"], "full checkpointing in the place of none")
	require.Negative(t, effects["training.method"], "LoRA in the place of all weights")
	require.Positive(t, effects["training.attention"], "eager attention keeps its scores")
	require.Negative(t, effects["training.precision"], "weights, gradients and states in bf16")
	require.Negative(t, effects["training.weights_dtype"])
	require.Zero(t, effects["runtime.trainer"])
	for _, a := range est.Assumptions {
		require.Zero(t, a.Effect, "the answer that was given is not changed")
	}

	job.Training.Checkpointing.Mode = "full"
	saved, err := p.Estimate(t.Context(), job)
	require.NoError(t, err)
	require.Equal(t, saved.Peak.Required-est.Peak.Required, effects["training.activation_checkpointing"])
}

func TestRival(t *testing.T) {
	for _, test := range []struct {
		name  string
		taken estimator.Assumption
		want  string
	}{
		{"one", estimator.Assumption{Path: "training.attention", Value: "sdpa"}, "eager"},
		{"the other", estimator.Assumption{Path: "training.attention", Value: "eager"}, "sdpa"},
		{"a third", estimator.Assumption{Path: "training.attention", Value: "flash"}, ""},
		{"another setting", estimator.Assumption{Path: "training.loss", Value: "default"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) { require.Equal(t, test.want, planner.Rival(test.taken)) })
	}
}
