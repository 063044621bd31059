package estimator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// flopsOf sums a kind of kernel over the passes.
func flopsOf(w *Work, kind graph.Kind) (byPass [graph.Backward + 1]float64) {
	for _, k := range w.Kernels {
		if k.Kind == kind {
			byPass[k.Pass] += k.FLOPs * float64(k.Count)
		}
	}
	return byPass
}

// The products of a decoder are two FLOPs for each weight of its linear layers
// and each token, and twice as many backward.
func TestWorkCountsTheProductsOfADecoder(t *testing.T) {
	const (
		tokens = 2048.0
		layer  = 4096*4096*2 + 4096*1024*2 + 3*4096*14336
		head   = 4096 * 128256
		all    = 2 * tokens * (32*layer + head)
	)
	for _, tt := range []struct {
		name                      string
		checkpointing             string
		method                    string
		forward, again, backwards float64
	}{
		{"full", "none", "full", all, 0, 2 * all},
		{"recomputed", "full", "full", all, 32 * 2 * tokens * (layer - 4096*14336), 2 * all}, // the last input is kept before the last product: early stop
	} {
		t.Run(tt.name, func(t *testing.T) {
			job := llama(4096, 14336, 32, 32, 1)
			job.Training.Checkpointing.Mode, job.Training.Method = tt.checkpointing, tt.method
			w, err := new(Workspace).Work(job, benchCard)
			require.NoError(t, err)
			got := flopsOf(w, graph.Multiplies)
			require.InEpsilon(t, tt.forward, got[graph.Forward], 0.001)
			require.InDelta(t, tt.again, got[graph.Recomputing], 0.001*all)
			require.InEpsilon(t, tt.backwards, got[graph.Backward], 0.001)
			attention := flopsOf(w, graph.Attends)
			forward := 32 * 2 * 2 * 32 * tokens * tokens * 128 / 2
			require.InEpsilon(t, forward, attention[graph.Forward], 0.001)
			require.InEpsilon(t, 2.5*forward, attention[graph.Backward], 0.001)
			require.Equal(t, int64(8030261248), w.Total)
			require.Equal(t, 2*w.Total, w.Stored)
		})
	}
}

// Copies of layers count as the layers they stand for.
func TestWorkIsTheSameWithEveryLayerRun(t *testing.T) {
	job := llama(1024, 4096, 12, 16, 1)
	short, err := new(Workspace).Work(job, benchCard)
	require.NoError(t, err)
	job.Parallelism = spec.Parallelism{Data: 2, Sharding: "ddp"}
	job.Target.Count = 2
	long, err := new(Workspace).Work(job, benchCard) // whose hooks want every layer
	require.NoError(t, err)
	require.Greater(t, len(long.Kernels), len(short.Kernels))
	for _, kind := range []graph.Kind{graph.Multiplies, graph.Attends} {
		require.Equal(t, flopsOf(long, kind), flopsOf(short, kind))
	}
	bytes := func(w *Work) (sum float64) {
		for _, k := range w.Kernels {
			sum += k.Bytes * float64(k.Count)
		}
		return sum
	}
	require.InEpsilon(t, bytes(long), bytes(short), 0.01)
}
