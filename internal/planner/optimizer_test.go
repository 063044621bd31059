package planner_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/planner"
	"memplan/internal/wire"
)

// What an answer says of the optimizer can be asked again: every library that the
// engine takes one from is a word of the format.
func TestOptimizersCanBeAskedAgain(t *testing.T) {
	tables, err := catalog.Open()
	require.NoError(t, err)
	p := planner.New(planner.Config{Catalog: tables})
	for _, name := range []string{
		"adamw", "sgd", "lion", "ademamix", "muon", "adafactor", "galore_adamw", "apollo_adamw", "adam-mini", "prodigy", "sophia", "lamb",
		"adamw_torch_4bit", "adamw_torch_8bit", "schedule_free_adamw",
	} {
		t.Run(name, func(t *testing.T) {
			job, err := wire.DecodeJSON([]byte(`{"model":{"id":"gpt2"},"training":{"precision":"fp32","sequence_length":64,"optimizer":"` + name + `"},"runtime":{"trainer":"plain"}}`))
			require.NoError(t, err)
			est, err := p.Estimate(t.Context(), job)
			require.NoError(t, err)
			text, err := wire.Encode(est.Job)
			require.NoError(t, err)
			again, err := wire.DecodeJSON(text)
			require.NoError(t, err)
			same, err := p.Estimate(t.Context(), again)
			require.NoError(t, err)
			require.Equal(t, est.Peak.Requested, same.Peak.Requested)
		})
	}
}
