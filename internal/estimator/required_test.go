package estimator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
	"memplan/internal/units"
)

// A job whose cache grows beyond what it needs is not said to need it: the
// program completes with what is said and not with one percent less.
func TestRequiredLeavesTheCacheOut(t *testing.T) {
	mixed := llama(4096, 14336, 32, 32, 1)
	mixed.Training.Precision, mixed.Training.WeightsDType = spec.PrecisionBF16Mixed, spec.FP32
	mixed.Runtime.Trainer = "hf"
	full := mixed
	full.Training.Checkpointing.Mode = "full"
	for _, x := range []struct {
		name string
		job  spec.Job
	}{
		{"mixed", mixed},
		{"mixed, checkpointing", full},
	} {
		t.Run(x.name, func(t *testing.T) {
			e, err := Run(x.job, benchCard, benchPrior)
			require.NoError(t, err)
			require.Less(t, e.Peak.Required, e.Peak.Process-units.GiB, "a job that needs no search proves nothing")
			job, _, err := Resolve(x.job)
			require.NoError(t, err)
			plan, err := step.Compile(job, cardFor(benchCard, spec.Coefficients{}))
			require.NoError(t, err)
			required := e.Peak.Required - benchPrior.Context.Mean
			for _, y := range []struct {
				capacity units.Bytes
				want     bool
			}{{required, true}, {required * 99 / 100, false}} {
				cfg := settings(job.Runtime, 0)
				cfg.Capacity = y.capacity
				ok, err := allocator.Completes(cfg, plan.Program)
				require.NoError(t, err)
				require.Equal(t, y.want, ok, "at %v", y.capacity)
			}
		})
	}
}
