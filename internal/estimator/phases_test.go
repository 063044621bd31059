package estimator_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/units"
)

func phase(t *testing.T, e *estimator.Estimate, name string) estimator.Phase {
	t.Helper()
	i := slices.IndexFunc(e.Phases, func(p estimator.Phase) bool { return p.Name == name })
	require.GreaterOrEqual(t, i, 0, name)
	return e.Phases[i]
}

// tokens of the batches of tiny, and the sizes they lead to.
const (
	tinyTokens = 2 * 512
	tinyVocab  = 8192
)

// The phases a job asks for follow the steps, and only those.
func TestPhasesThatWereAskedFor(t *testing.T) {
	plain, err := estimator.Run(tiny(t, "", ""), a100, prior)
	require.NoError(t, err)
	require.Len(t, plain.Phases, 3)
	e, err := estimator.Run(tiny(t, `"evaluation":{},"generation":{"prompt_length":8,"completion_length":8},"checkpoint_save":"full",`, ""), a100, prior)
	require.NoError(t, err)
	var names []string
	for _, p := range e.Phases {
		names = append(names, p.Name)
		require.GreaterOrEqual(t, p.PeakAllocated, p.StartAllocated)
	}
	require.Equal(t, []string{"load", "first_step", "steady_step", "evaluation", "generation", "checkpoint_save"}, names)
	require.Equal(t, plain.Phases, e.Phases[:3], "what comes after changes nothing before")
	save := phase(t, e, "checkpoint_save")
	require.Equal(t, save.StartAllocated, save.PeakAllocated, "tensors are copied to the host one by one")
}

// Logits that are kept for a metric grow with the batches, and joining them
// takes their size once more. Measured on real PyTorch: 407,992,860 bytes
// requested for three batches of this model.
func TestEvaluationKeepsLogits(t *testing.T) {
	peak := func(training string) units.Bytes {
		e, err := estimator.Run(tiny(t, training, ""), a100, prior)
		require.NoError(t, err)
		return phase(t, e, "evaluation").PeakRequested
	}
	logits := units.Bytes(tinyTokens * tinyVocab * 2)
	require.InDelta(t, 407_992_860, int64(peak(`"evaluation":{"batches_held":3,"logits_kept":true},`)), 512)
	forgets := peak(`"evaluation":{"batches_held":100},`)
	require.Greater(t, peak(`"evaluation":{"batches_held":3,"logits_kept":true},`), forgets)
	forty, fifty := peak(`"evaluation":{"batches_held":40,"logits_kept":true},`), peak(`"evaluation":{"batches_held":50,"logits_kept":true},`)
	require.InDelta(t, float64(2*10*logits), float64(fifty-forty), 2*10*tinyTokens*8+1e5, "the old and the new of each batch")
}

// The cache is 2 x layers x batch x heads x tokens x width, and of one tensor
// twice while it grows.
func TestGenerationKeepsACache(t *testing.T) {
	peak := func(training string) units.Bytes {
		e, err := estimator.Run(tiny(t, training, ""), a100, prior)
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(e.Warnings, func(w estimator.Warning) bool { return w.Code == "generation" }))
		return phase(t, e, "generation").PeakRequested
	}
	long, longer := peak(`"generation":{"prompt_length":8,"completion_length":4088},`), peak(`"generation":{"prompt_length":8,"completion_length":8184},`)
	require.Equal(t, units.Bytes((2*2+1)*2*1024*2*4096), longer-long)
}

// What lies beside the model is there in every phase, and what is loaded beside
// it may go before the first step.
func TestWhatLiesBeside(t *testing.T) {
	run := func(training string) *estimator.Estimate {
		e, err := estimator.Run(tiny(t, training, ""), a100, prior)
		require.NoError(t, err)
		return e
	}
	bare := run("")
	for _, c := range []struct {
		name, training string
		load, step     units.Bytes
	}{
		{"an encoder", `"resident_modules":[{"name":"vae","parameters":80000000,"dtype":"fp32"}],`, 320e6, 320e6},
		{"an encoder that goes", `"load":{"also_resident":[{"name":"t5","parameters":500000000,"dtype":"bf16"}],"freed_before_first_step":true},`, 1000e6, 0},
		{"an average of the weights", `"ema":true,`, 84944896, 84944896},
		{"an average in fp32", `"ema":{"device":"gpu","dtype":"fp32"},`, 169889792, 169889792},
		{"an average on the host", `"ema":{"device":"cpu"},`, 0, 0},
		{"an inference engine", `"objective":"sft","generation":{"engine_memory_fraction":0.1},`, a100.Total / 10, a100.Total / 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := run(c.training)
			more := func(name string) float64 {
				return float64(phase(t, e, name).PeakRequested - phase(t, bare, name).PeakRequested)
			}
			require.InDelta(t, float64(c.load), more("load"), 1)
			require.InDelta(t, float64(c.step), more("steady_step"), 100e6/20, "and what its update takes for a moment")
		})
	}
	require.Equal(t, units.Bytes(84944896), run(`"ema":{"device":"cpu"},`).HostMemory)
}

// Without dropout no masks are kept; with gradients from the start the first
// step has them.
func TestWhatALoopPrepares(t *testing.T) {
	job := tiny(t, "", "")
	job.Model.Config["attention_dropout"] = 0.1
	with, err := estimator.Run(job, a100, prior)
	require.NoError(t, err)
	job.Training.DropoutDisabled = true
	without, err := estimator.Run(job, a100, prior)
	require.NoError(t, err)
	require.LessOrEqual(t, without.Peak.Requested, with.Peak.Requested)
	require.Equal(t, 0.1, job.Model.Config["attention_dropout"], "the caller's job stays as it is")

	job = tiny(t, "", "")
	job.Training.GradsResident = true
	e, err := estimator.Run(job, a100, prior)
	require.NoError(t, err)
	require.Greater(t, phase(t, e, "load").EndAllocated, 2*units.Bytes(84_000_000)-1)
}
