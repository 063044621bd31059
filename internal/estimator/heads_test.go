package estimator_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

// Heads whose measured events depend on what lay in memory, which the no-op
// driver does not compute: their peaks do not. Measured by "oracle.py JOB".
func TestPeaksOfFusedHeads(t *testing.T) {
	h100 := spec.Device{Key: "H100-SXM5-80GB", Vendor: "nvidia", ComputeCapability: spec.Version{9, 0}, Total: a100.Total}
	tests := []struct {
		name  string
		card  spec.Device
		peaks [3]units.Bytes // allocated: load, first step, steady step
	}{
		{"trl-head", a100, [3]units.Bytes{71438848, 110751232, 112068608}},
		{"liger-cross-entropy", h100, [3]units.Bytes{335873024, 685438464, 692771840}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("testdata", "heads", test.name+".json"))
			require.NoError(t, err)
			var job spec.Job
			require.NoError(t, json.Unmarshal(data, &job))
			e, err := estimator.Run(job, test.card, prior)
			require.NoError(t, err)
			var got [3]units.Bytes
			for i, p := range e.Phases[:3] {
				got[i] = p.PeakAllocated
			}
			require.Equal(t, test.peaks, got)
		})
	}
}
