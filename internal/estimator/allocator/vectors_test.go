package allocator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/units"
)

func TestFirstAllocation(t *testing.T) {
	for _, x := range []struct {
		name                string
		bytes               int64
		allocated, reserved units.Bytes
	}{
		{"one byte", 1, 512, 2 * units.MiB},
		{"largest small block", 1048576, 1048576, 2 * units.MiB},
		{"smallest large block", 1048577, 1049088, 20 * units.MiB},
		{"cublas workspace", 8519680, 8519680, 20 * units.MiB},
		{"just under 10 MiB", 10485248, 10485248, 20 * units.MiB},
		{"10 MiB", 10485760, 10485760, 10 * units.MiB},
		{"just over 10 MiB", 10485761, 10486272, 12 * units.MiB},
		{"1 MiB stays unsplit", 11534336, 12582912, 12 * units.MiB},
	} {
		t.Run(x.name, func(t *testing.T) {
			a := New(Config{})
			require.NoError(t, a.Run(Program{{Events: []Event{{Kind: Alloc, Block: 1, Bytes: x.bytes}}}}, nil))
			s := a.Stats()
			require.Equal(t, x.allocated, s.Allocated.Current)
			require.Equal(t, x.reserved, s.Reserved.Current)
			require.Equal(t, units.Bytes(x.bytes), s.Requested.Current)
		})
	}
}

func TestReuseWithoutSplit(t *testing.T) {
	a := New(Config{})
	require.NoError(t, a.Run(Program{{Events: []Event{
		{Kind: Alloc, Block: 0, Bytes: 20 << 20},
		{Kind: Free, Block: 0},
		{Kind: Alloc, Block: 0, Bytes: 39 << 19},
	}}}, nil))
	require.Equal(t, 20*units.MiB, a.Stats().Allocated.Current)
	require.Equal(t, 20*units.MiB, a.Stats().Reserved.Current)
}
