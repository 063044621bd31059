//go:build torch

package microbench

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/planner"
	"memplan/internal/units"
)

// TestSavedTensorsOnTheCPU runs the script itself in a Python with PyTorch: what
// autograd keeps does not depend on the device.
func TestSavedTensorsOnTheCPU(t *testing.T) {
	program := os.Getenv("MEMPLAN_TORCH_PYTHON")
	require.NotEmpty(t, program, "run make probes-cpu PYTHON=python3")
	r := planner.ProbeResult{State: planner.ProbeDone}
	out := &outcome{result: &r}
	none := func(int) *units.Bytes { return nil }
	require.NoError(t, New(Config{Python: program}).process(t.Context(), nil, plan{Probe: "saved_tensors", Device: "cpu"}, out, none))
	require.Equal(t, planner.ProbeDone, r.State, r.Error)
	require.True(t, out.ended)
	got := map[string]units.Bytes{}
	for _, f := range r.Figures {
		got[f.Name] = units.Bytes(f.Value)
	}
	const tokens = 4 * 64 * 128 * 4 // bytes of the activations
	for name, want := range map[string]units.Bytes{
		"gelu.fp32": tokens, "silu.fp32": tokens, "softmax.fp32": tokens, "relu.fp32": tokens, // one of input and output each
		"linear.fp32":     tokens + 256*128*4, // the input and the weight
		"mul.fp32":        2 * tokens,         // both
		"add.fp32":        0,
		"matmul.fp32":     tokens + 4*128*64*4,
		"layer_norm.fp32": tokens + 128*4 + 2*4*64*4, // input, weight, mean and deviation of each token
	} {
		require.Equal(t, want, got[name], name)
	}
}
