package estimator

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

func TestSpread(t *testing.T) {
	eager := spec.Modules{Probability: 0.25, Coefficient: spec.Coefficient{Mean: 900 * units.MiB, SD: 100 * units.MiB}}
	for _, test := range []struct {
		name      string
		spread    spread
		low, high float64 // MiB from the estimate
	}{
		{"normal", spread{sd: 100 * float64(units.MiB)}, -164, 164},
		{"every kernel may be loaded", spread{100 * float64(units.MiB), eager}, -150, 1019},
		{"certain", spread{}, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := test.spread.around(10 * units.GiB)
			require.InDelta(t, test.low, (r.Low-10*units.GiB).GiB()*1024, 1)
			require.InDelta(t, test.high, (r.High-10*units.GiB).GiB()*1024, 1)
		})
	}
}

func TestQuantilesAreProbabilities(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mib := rapid.Float64Range(1, 4000)
		s := spread{mib.Draw(t, "sd") * (1 << 20), spec.Modules{Probability: rapid.Float64Range(0, 1).Draw(t, "p"), Coefficient: spec.Coefficient{
			Mean: units.Bytes(mib.Draw(t, "mean") * (1 << 20)), SD: units.Bytes(mib.Draw(t, "modules sd") * (1 << 20)),
		}}}
		q := rapid.Float64Range(0.01, 0.99).Draw(t, "q")
		require.InDelta(t, q, s.below(s.quantile(q)), 1e-4)
	})
}

func TestJointSpread(t *testing.T) {
	c := spec.Coefficients{
		Context: spec.Coefficient{SD: 3}, NCCL: spec.Coefficient{Mean: 1, SD: 4},
		ConvWorkspace: spec.Ratio{SD: 0.5}, EngineBias: spec.Ratio{SD: 0.1},
	}
	require.InDelta(t, 9+16+25+1, c.Variance(10, 10), 1e-9, "independent without a covariance")
	c.Joint = [4][4]float64{{9, 0, 0, -0.3}, {}, {}, {-0.3, 0, 0, 0.01}}
	require.InDelta(t, 9+1-2*0.3*10, c.Variance(10, 10), 1e-9, "what is found together cancels")
	c.NCCL.Mean, c.Joint = 0, [4][4]float64{}
	require.InDelta(t, 9+25+1, c.Variance(10, 10), 1e-9, "one rank has no communicator")
}
