package estimator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

// Fit says what Run says.
func TestFitAgreesWithRun(t *testing.T) {
	for _, tt := range []struct {
		name  string
		job   spec.Job
		total units.Bytes
	}{
		{"fits by far", llama(1024, 4096, 12, 16, 1), 80 * units.GiB},
		{"exceeds by far", llama(1024, 4096, 12, 16, 1), 3 * units.GiB},
		{"in doubt", llama(1024, 4096, 12, 16, 1), 6*units.GiB + 512*units.MiB},
		{"accumulates", llama(1024, 4096, 12, 16, 4), 7 * units.GiB},
	} {
		t.Run(tt.name, func(t *testing.T) {
			card := benchCard
			card.Total = tt.total
			e, err := Run(tt.job, card, benchPrior)
			require.NoError(t, err)
			w := new(Workspace)
			for _, probable := range []float64{0.5, 0.95} {
				exact, err := w.Fit(tt.job, card, benchPrior, probable, Exact)
				require.NoError(t, err)
				require.Equal(t, e.Peak.Required, exact.Required)
				require.Equal(t, e.Target.ProbabilityFits, exact.Probability)
				require.Equal(t, e.Target.ProbabilityFits >= probable, exact.Fits)
				quick, err := w.Fit(tt.job, card, benchPrior, probable, Decide)
				require.NoError(t, err)
				require.Equal(t, exact.Fits, quick.Fits)
				if quick.Fits {
					require.GreaterOrEqual(t, quick.Required, exact.Required)
				} else {
					require.LessOrEqual(t, quick.Required, exact.Required)
				}
			}
		})
	}
}

func BenchmarkFit(b *testing.B) {
	for _, bb := range benchmarked {
		b.Run(bb.name, func(b *testing.B) {
			w := new(Workspace)
			for b.Loop() {
				if _, err := w.Fit(bb.job, benchCard, benchPrior, 0.95, Decide); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkWork(b *testing.B) {
	for _, bb := range benchmarked[:2] {
		b.Run(bb.name, func(b *testing.B) {
			w := new(Workspace)
			for b.Loop() {
				if _, err := w.Work(bb.job, benchCard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
