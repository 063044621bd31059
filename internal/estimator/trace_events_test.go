package estimator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
	"memplan/internal/units"
)

// Storages that are resized in place, used by another stream, or of no bytes,
// and an emptied cache: what sharding does to an allocator.
func TestTraceOfEveryKindOfEvent(t *testing.T) {
	m := graph.NewMachine(spec.Versions{}, graph.Device{})
	unit := &graph.Rule{Name: "unit"}
	for range 2 {
		m.Make(unit, graph.Parameters, graph.F32, graph.D(1))
	}
	const mib = 1 << 20
	plan := &step.Plan{Machine: m, Program: allocator.Program{{Events: []allocator.Event{
		{Kind: allocator.Alloc, Block: 0, Bytes: 12 * mib, Category: uint8(graph.Parameters)},
		{Kind: allocator.Alloc, Block: 1, Category: uint8(graph.Buckets)}, // of no bytes
		{Kind: allocator.Resize, Block: 1, Bytes: 30 * mib, Stream: 1},
		{Kind: allocator.UseOn, Block: 1, Stream: 2},
		{Kind: allocator.Resize, Block: 0, Bytes: 20 * mib},
		{Kind: allocator.Recat, Block: 0, Category: uint8(graph.Activations)},
		{Kind: allocator.Resize, Block: 0},
		{Kind: allocator.Free, Block: 0}, // of no bytes
		{Kind: allocator.Free, Block: 1},
		{Kind: allocator.EmptyCache},
		{Kind: allocator.Mark, Site: step.MarkCode(step.Load, step.Whole)},
	}}}}
	tape, err := record(plan, allocator.Config{})
	require.NoError(t, err)
	r := Recording{plan: plan, tape: tape}

	type line struct {
		event               int
		action              string
		bytes               units.Bytes
		stream              uint8
		category            string
		allocated, reserved units.Bytes
	}
	var got []line
	for e := range r.Events() {
		require.Equal(t, "load", e.Phase)
		got = append(got, line{e.Event, e.Action, e.Bytes / mib, e.Stream, e.Category, e.Allocated / mib, e.Reserved / mib})
	}
	require.Equal(t, []line{
		{0, "segment_alloc", 12, 0, "", 0, 12},
		{0, "alloc", 12, 0, "parameters", 12, 12},
		{2, "segment_alloc", 30, 1, "", 12, 42},
		{2, "alloc", 30, 1, "buckets", 42, 42},
		{3, "record_stream", 30, 2, "buckets", 42, 42},
		{4, "segment_alloc", 20, 0, "", 42, 62},
		{4, "alloc", 20, 0, "parameters", 62, 62},
		{4, "free", 12, 0, "parameters", 50, 62},
		{5, "change_category", 20, 0, "activations", 50, 62},
		{6, "free", 20, 0, "activations", 30, 62},
		{8, "free", 30, 1, "buckets", 0, 62},
		{9, "segment_free", 12, 0, "", 0, 50},
		{9, "segment_free", 20, 0, "", 0, 30},
		{9, "segment_free", 30, 1, "", 0, 0},
		{9, "empty_cache", 0, 0, "", 0, 0},
		{10, "mark", 0, 0, "", 0, 0},
	}, got)
}
