package estimator_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

func llama8B(t testing.TB) spec.Job {
	var j spec.Job
	require.NoError(t, json.Unmarshal([]byte(`{"version":1,"model":{"config":{"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
	"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"tie_word_embeddings":false}},
	"training":{"precision":"bf16","weights_dtype":"bf16","micro_batch_size":1,"sequence_length":2048,"optimizer":{"name":"adamw","implementation":"foreach","library":"torch"}},
	"runtime":{"trainer":"plain"}}`), &j))
	return j
}

var a100 = spec.Device{Key: "A100-SXM4-80GB", Name: "A100 80GB", Vendor: "nvidia", ComputeCapability: spec.Version{8, 0}, Total: 85174583296}

var prior = spec.Coefficients{Calibration: "prior", Context: spec.Coefficient{Name: "context", Mean: 450 * units.MiB, SD: 75 * units.MiB}}

func TestBreakdownSumsToProcess(t *testing.T) {
	e, err := estimator.Run(llama8B(t), a100, prior)
	require.NoError(t, err)
	var sum units.Bytes
	for _, s := range e.Breakdown {
		sum += s.Bytes
	}
	require.Equal(t, e.Peak.Process, sum)
	require.LessOrEqual(t, len(e.Timeline), 400)
	require.Equal(t, int64(8030261248), e.Parameters.Total)
	t.Log(e.Summary)
}

// A workspace used again gives the answer a fresh one gives.
func TestWorkspaceHoldsNothingOfAnAnswer(t *testing.T) {
	w := new(estimator.Workspace)
	small := llama8B(t)
	small.Model.Config["num_hidden_layers"] = 8.0
	small.Training.Checkpointing.Mode = "full"
	for _, job := range []spec.Job{llama8B(t), small, llama8B(t), small} {
		got, err := w.Run(job, a100, prior)
		require.NoError(t, err)
		want, err := estimator.Run(job, a100, prior)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// Convolutions are answered with a doubt, and only they.
func TestConvolutionsWidenTheInterval(t *testing.T) {
	width := func(e *estimator.Estimate) float64 {
		return float64(e.Peak.Interval.High-e.Peak.Interval.Low) / float64(e.Peak.Required)
	}
	warned := func(e *estimator.Estimate) bool {
		return slices.ContainsFunc(e.Warnings, func(w estimator.Warning) bool { return w.Code == "convolutions" })
	}
	var resnet spec.Job
	require.NoError(t, json.Unmarshal([]byte(`{"version":1,"model":{"id":"torchvision/resnet50","implementation":"torchvision"},
	"training":{"objective":"classification","precision":"fp32","micro_batch_size":64,"image_size":[224,224]}}`), &resnet))
	with, err := estimator.Run(resnet, a100, prior)
	require.NoError(t, err)
	without, err := estimator.Run(llama8B(t), a100, prior)
	require.NoError(t, err)
	require.True(t, warned(with))
	require.Greater(t, width(with), 0.6)
	require.False(t, warned(without))
	require.Less(t, width(without), 0.1)
}
