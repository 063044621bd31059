package graph

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/spec"
)

// Measured with torch.ops.aten.embedding_dense_backward on a no-op CUDA driver:
// 32,000 rows, int64 indices.
func TestTemporaryStorageOfCub(t *testing.T) {
	for _, c := range []struct {
		name               string
		torch              spec.Version
		device             Device
		count              int64
		sort, unique, scan int64
	}{
		{"Ampere, few", torchToday, ampere, 3073, 55295, 1279, 1279},
		{"Ampere", torchToday, ampere, 24576, 404991, 1535, 1535},
		{"Ampere, many", torchToday, ampere, 524288, 8533503, 7423, 1791},
		{"Ampere, before", torchOld, ampere, 262144, 4281855, 1791, 1535},
		{"Hopper", torchToday, hopper, 65536, 1068543, 1279, 1791},
		{"Hopper, before", torchOld, hopper, 524288, 8522239, 1535, 1535},
		{"Ada", torchToday, ada, 16384, 271871, 2047, 1535},
		{"Ada, before", torchOld, ada, 100000, 1644543, 3071, 1535},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := machine(c.torch, c.device)
			require.Equal(t, c.sort, m.cubSortBytes(c.count, 32000), "sort")
			require.Equal(t, c.unique, m.cubUniqueBytes(c.count), "unique")
			require.Equal(t, c.scan, m.cubScanBytes(min(c.count, 32000)), "scan")
		})
	}
}

// Where a table has few rows that are hit often, their sums need no tensor of
// all parts.
func TestFewRows(t *testing.T) {
	for _, c := range []struct {
		name               string
		count, rows, width int64
		want               bool
	}{
		{"last length with parts", 9009, 300, 64, false},
		{"first length without", 9010, 300, 64, true},
		{"most rows an A100 leaves idle", 100000, 431, 64, true},
		{"one more", 100000, 432, 64, false},
		{"wide rows count more", 30000, 108, 4096, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := machine(torchToday, ampere)
			require.Equal(t, c.want, m.fewRows(c.count/10+c.rows, c.rows, c.width))
		})
	}
}
