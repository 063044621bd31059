package allocator

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/units"
)

// What is replayed under a capacity from a checkpoint of the unlimited run ends
// as what is replayed from the beginning.
func TestCheckpointsLeaveNothingOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := configs().Draw(t, "config")
		c.Capacity, c.MemoryFractionSet = 0, false
		events := steps(t, 60)
		cut := func(from int, name string) int { return rapid.IntRange(from, len(events)).Draw(t, name) }
		loaded := cut(0, "loaded")
		micro := cut(loaded, "micro batch")
		first := cut(micro, "first step")
		p := Program{
			{Label: 1, Events: events[:loaded]},
			{Label: 2, Parts: []Part{{Label: 3, Events: events[loaded:micro]}, {Label: 4, Events: events[micro:first]}}},
			{Label: 5, Events: events[first:]},
		}

		a := New(c)
		var points []*Checkpoint
		for _, x := range []struct {
			next Next
			part Part
		}{
			{Next{Part: 0}, p[0]},
			{Next{Part: 1}, p[1].Parts[0]},
			{Next{Part: 1, Inner: 1}, p[1].Parts[1]},
			{Next{Part: 2}, p[2]},
		} {
			point := new(Checkpoint)
			a.Save(x.next, point)
			points = append(points, point)
			require.NoError(t, a.Run(Program{x.part}, nil))
		}
		unlimitedRun := a.Stats()

		c.Capacity = granularity + units.Bytes(rapid.Int64Range(0, int64(unlimitedRun.Reserved.Peak)).Draw(t, "capacity"))
		from := latestOf(points, c)
		require.NotNil(t, from, "nothing is reserved at the first")
		whole := New(c)
		want := whole.Run(p, nil)
		a.restore(from, c)
		got := a.Run(from.next.rest(p), nil)
		require.Equal(t, want, got)
		require.Equal(t, whole.Stats(), a.Stats())
		require.Equal(t, whole.snapshot(nil), a.snapshot(nil))
		require.Equal(t, whole.serial, a.serial)

		required, err := New(c).RequiredAfter(c, p, unlimitedRun, 0)
		require.NoError(t, err)
		sooner, err := New(c).RequiredAfter(c, p, unlimitedRun, 0, points...)
		require.NoError(t, err)
		require.Equal(t, required, sooner)
	})
}
