package estimator_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
)

// Samples of several lengths: the peak is that of the longest batch, and the
// first step is a common one.
func TestLengthsThatVary(t *testing.T) {
	run := func(length int, l *spec.Lengths) *estimator.Estimate {
		job := tiny(t, "", "")
		job.Training.SequenceLength, job.Training.SequenceLengths = length, l
		e, err := estimator.Run(job, a100, prior)
		require.NoError(t, err)
		return e
	}
	varied, longest := run(0, &spec.Lengths{Longest: 2048, Mean: 300, P95: 1024}), run(2048, nil)
	require.Equal(t, longest.Peak.Requested, varied.Peak.Requested)
	require.Less(t, phase(t, varied, "first_step").PeakRequested, phase(t, longest, "first_step").PeakRequested)
	require.Equal(t, varied, run(0, &spec.Lengths{Longest: 2048, Mean: 300, P95: 1024}), "no chance is involved")
}

// What is saved for backward goes to the host. Measured with torch 2.15 and
// torch.autograd.graph.save_on_cpu: the requested and reserved bytes of a later
// step.
func TestActivationsOnTheHost(t *testing.T) {
	job := tiny(t, "", "")
	job.Training.Precision, job.Training.WeightsDType, job.Training.MicroBatchSize = spec.PrecisionBF16Mixed, spec.FP32, 8
	job.Training.Optimizer = spec.Optimizer{Name: "sgd", Implementation: "foreach", Library: "torch"}
	kept, err := estimator.Run(job, a100, prior)
	require.NoError(t, err)
	job.Parallelism.Offload = []string{"activations"}
	e, err := estimator.Run(job, a100, prior)
	require.NoError(t, err)
	step := phase(t, e, "steady_step")
	require.EqualValues(t, 758272588, step.PeakRequested)
	require.EqualValues(t, 1063256064, step.PeakReserved)
	require.Greater(t, kept.Peak.Requested, e.Peak.Requested)
	require.Greater(t, e.HostMemory, kept.Peak.Requested-e.Peak.Requested)
}

// A compiled job is answered with a doubt.
func TestCompileIsDoubted(t *testing.T) {
	job := tiny(t, "", "")
	eager, err := estimator.Run(job, a100, prior)
	require.NoError(t, err)
	job.Training.Compile = true
	e, err := estimator.Run(job, a100, prior)
	require.NoError(t, err)
	require.Equal(t, "compile", e.Warnings[0].Code)
	require.Equal(t, eager.Peak.Requested, e.Peak.Requested)
	require.Greater(t, e.Peak.Interval.High-e.Peak.Interval.Low, eager.Peak.Interval.High-eager.Peak.Interval.Low)
}

// Every second block recomputed lies between none and all.
func TestEverySecondBlock(t *testing.T) {
	peak := func(c spec.Checkpointing) int64 {
		job := tiny(t, "", "")
		job.Model.Config["num_hidden_layers"] = 6.0
		job.Training.Checkpointing, job.Training.MicroBatchSize = c, 8
		e, err := estimator.Run(job, a100, prior)
		require.NoError(t, err)
		return int64(e.Peak.Requested)
	}
	none, half, all := peak(spec.Checkpointing{Mode: "none"}), peak(spec.Checkpointing{Mode: "selective", Every: 2}), peak(spec.Checkpointing{Mode: "full"})
	require.Less(t, all, half)
	require.Less(t, half, none)
}
