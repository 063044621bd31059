package recommend

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/units"
)

// The search finds the boundary of any need that grows with size, asks about
// both sides of it, and asks no more than bisection would a few times over.
func TestLargestFindsTheBoundary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 4096).Draw(t, "limit")
		fixed := rapid.Int64Range(0, 1000).Draw(t, "fixed")
		slope := rapid.Int64Range(1, 100).Draw(t, "slope")
		bend := rapid.Int64Range(0, 3).Draw(t, "bend")
		usable := rapid.Int64Range(0, 200000).Draw(t, "usable")
		bound := rapid.Bool().Draw(t, "bound")
		asked := map[int]bool{}
		best, above, err := Largest(context.Background(), limit, func(size int) (Trial, error) {
			asked[size] = true
			n := int64(size)
			needs := fixed + slope*n + bend*n*n/64
			trial := Trial{Size: size, Fits: needs <= usable, Needs: units.Bytes(needs), Usable: units.Bytes(usable)}
			if !trial.Fits && bound {
				trial.Needs, trial.Bound = units.Bytes(usable)*41/40, true
			}
			return trial, nil
		})
		require.NoError(t, err)
		if best.Size > 0 {
			require.True(t, best.Fits)
			require.True(t, asked[best.Size])
		}
		if best.Size == limit {
			require.Zero(t, above.Size)
		} else {
			require.Equal(t, best.Size+1, above.Size)
			require.False(t, above.Fits)
		}
		require.LessOrEqual(t, len(asked), 60)
	})
}

func TestLargestStopsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	tries := 0
	_, _, err := Largest(ctx, 4096, func(size int) (Trial, error) {
		if tries++; tries == 3 {
			cancel()
		}
		return Trial{Size: size, Fits: size < 1000, Needs: units.Bytes(size), Usable: 999}, nil
	})
	require.ErrorIs(t, err, context.Canceled)
}
