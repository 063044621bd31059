package planner_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/planner"
)

func TestEstimateLooksUpTheModel(t *testing.T) {
	c, err := catalog.Open()
	require.NoError(t, err)
	var seen spec.Job
	p := planner.New(planner.Config{Catalog: c, Engine: func(job spec.Job, _ spec.Device, _ spec.Coefficients) (*estimator.Estimate, error) {
		seen = job
		return &estimator.Estimate{Job: job}, nil
	}})
	est, err := p.Estimate(t.Context(), spec.Job{Model: spec.Model{ID: "gpt2"}})
	require.NoError(t, err)
	require.Equal(t, "gpt2", seen.Model.Config["model_type"])
	require.Equal(t, "gpt2", est.Job.Model.ID, "the answer names the model as the user did")
	require.Empty(t, est.Job.Model.Config)
}
