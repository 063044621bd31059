package estimator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/step"
	"memplan/internal/units"
)

// TestQuietStepsAreNotTheLast replays steps of which only the third raises the
// peak: each replaces the oldest of three storages, and the smallest, the last
// in the row, makes room for a larger one there.
func TestQuietStepsAreNotTheLast(t *testing.T) {
	const large, small = int64(30 * units.MiB), int64(20 * units.MiB)
	mark := func(ph step.Phase) allocator.Event {
		return allocator.Event{Kind: allocator.Mark, Site: step.MarkCode(ph, step.OptimizerPart)}
	}
	alloc := func(storage int32, bytes int64) allocator.Event {
		return allocator.Event{Kind: allocator.Alloc, Block: storage, Bytes: bytes}
	}
	plan := &step.Plan{Program: allocator.Program{
		{Label: int32(step.FirstStep), Events: []allocator.Event{alloc(0, large), alloc(1, large), alloc(2, small), mark(step.FirstStep)}},
		{
			Label: int32(step.SteadyStep), Repeat: 3,
			Events: []allocator.Event{{Kind: allocator.Free, Block: 0}, alloc(3, large), mark(step.SteadyStep)},
			Carry:  []allocator.Carry{{From: 1, To: 0}, {From: 2, To: 1}, {From: 3, To: 2}},
		},
	}}
	var w Workspace
	played, err := w.run(plan, allocator.Config{})
	require.NoError(t, err)
	require.Equal(t, units.Bytes(3*large), played.phases[step.SteadyStep].allocated)
	require.Equal(t, units.Bytes(2*large+small), played.phases[step.FirstStep].allocated)
	require.Len(t, played.log, 7, "of the steady steps the first is written down")
}

// TestRequiredFromCheckpoints compares what is required as replays from the
// unlimited run's checkpoints find it with replays from the beginning.
func TestRequiredFromCheckpoints(t *testing.T) {
	for _, x := range []struct {
		name         string
		accumulation int
		expandable   bool
	}{
		{"one micro batch", 1, false},
		{"accumulation", 8, false},
		{"expandable segments", 2, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			job, _, err := Resolve(llama(512, 1408, 8, 8, x.accumulation))
			require.NoError(t, err)
			job.Runtime.Allocator.ExpandableSegments = x.expandable
			plan, err := step.Compile(job, cardFor(benchCard, benchPrior))
			require.NoError(t, err)
			cfg := settings(job.Runtime, benchCard.Total)
			var w Workspace
			played, err := w.run(plan, cfg)
			require.NoError(t, err)
			require.Equal(t, 3, w.saved)
			want, err := allocator.New(cfg).RequiredAfter(cfg, plan.Program, played.stats, requiredWithin)
			require.NoError(t, err)
			got, err := w.required(plan.Program, cfg, played.stats)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}
