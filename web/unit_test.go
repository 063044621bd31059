package web

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/units"
)

func TestColumnAddsUpAndStaysClose(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(0, 1<<42), 1, 20).Draw(t, "sizes")
		u := rapid.SampledFrom([]unit{binary, decimal}).Draw(t, "unit")
		parts := make([]units.Bytes, len(sizes))
		var all units.Bytes
		for i, n := range sizes {
			parts[i] = units.Bytes(n)
			all += parts[i]
		}
		printed, total := u.column(parts)
		var sum int64
		for i, s := range printed {
			n := wholeHundredths(t, s)
			sum += n
			require.InDelta(t, float64(parts[i])/float64(u.size())*100, float64(n), 1.001, "a part moves by less than a hundredth")
		}
		require.Equal(t, wholeHundredths(t, total), sum)
		require.InDelta(t, float64(all)/float64(u.size())*100, float64(sum), 0.501)
	})
}

func wholeHundredths(t require.TestingT, s string) int64 {
	n, err := strconv.ParseInt(strings.ReplaceAll(s, ".", ""), 10, 64)
	require.NoError(t, err)
	return n
}

func TestSizesSayTheirUnit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		unit  unit
		bytes units.Bytes
		want  string
	}{
		{"three figures", binary, 61*units.GiB + 307*units.MiB, "61.3\u00a0GiB"},
		{"no decimals from a hundred", binary, 143*units.GiB + units.GiB/3, "143\u00a0GiB"},
		{"two decimals below ten", binary, 8 * units.GiB, "8.00\u00a0GiB"},
		{"small sizes do not change the unit", binary, 3 * units.MiB, "0.00\u00a0GiB"},
		{"a boundary rounds with its figures", binary, 99*units.GiB + 999*units.MiB, "100\u00a0GiB"},
		{"decimal", decimal, 80 * units.GB, "80.0\u00a0GB"},
		{"negative", binary, -12 * units.GiB, "-12.0\u00a0GiB"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, tt.unit.text(tt.bytes))
		})
	}
}

func TestExactBytesAreGrouped(t *testing.T) {
	t.Parallel()
	require.Equal(t, "1,234,567 bytes", exact(1234567))
	require.Equal(t, "999 bytes", exact(999))
	require.Equal(t, "−1,000 bytes", exact(-1000))
}
