package planner_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/units"
)

// highest is the most that was allocated in a trace.
func highest(rec *estimator.Recording) (peak units.Bytes) {
	for e := range rec.Events() {
		peak = max(peak, e.Allocated)
	}
	return peak
}

// A kept answer's job has its defaults filled in and its names as the user gave
// them: read anew, it must be the same run.
func TestTraceOfAKeptAnswer(t *testing.T) {
	p := real(t, planner.Config{Store: newStore(t)})
	for _, test := range []struct{ name, job string }{
		{"model by id", "{version: 1, model: {id: Qwen/Qwen2.5-0.5B}, training: {precision: bf16-mixed, micro_batch_size: 2, sequence_length: 128, optimizer: {name: adamw, implementation: foreach}}, target: {gpu: A10G}}"},
		{"model by count, card by memory", "{version: 1, model: {parameters: 5e8}, training: {micro_batch_size: 1, sequence_length: 128, optimizer: {name: adamw, implementation: foreach}}, target: {memory_gib: 40}}"},
		{"several micro batches", "{version: 1, model: {id: Qwen/Qwen2.5-0.5B}, training: {micro_batch_size: 1, sequence_length: 128, gradient_accumulation_steps: 4, optimizer: {name: adamw, implementation: foreach}}, target: {gpu: A100-SXM4-80GB}}"},
	} {
		t.Run(test.name, func(t *testing.T) {
			job := decode(t, test.job)
			est, err := p.Save(t.Context(), job, "")
			require.NoError(t, err)
			kept, err := p.Trace(t.Context(), est.ID)
			require.NoError(t, err)
			fresh, err := p.TraceJob(t.Context(), job)
			require.NoError(t, err)
			var want units.Bytes
			for _, m := range est.Timeline {
				want = max(want, m.Allocated)
			}
			require.Equal(t, want, highest(kept))
			require.Equal(t, want, highest(fresh))
			require.Equal(t, est.Engine, kept.Engine)
		})
	}
}

func TestTraceFails(t *testing.T) {
	p := real(t, planner.Config{Store: newStore(t)})
	_, err := p.Trace(t.Context(), "est_aaaaaaaaaaaaaaaa")
	require.Equal(t, fault.NotFound, fault.KindOf(err))

	job := gpt2()
	job.Model.ID = "nobody/nothing"
	_, err = p.TraceJob(t.Context(), job)
	require.Equal(t, "model.id", fault.FieldsOf(err)[0].Path)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = p.TraceJob(ctx, gpt2())
	require.ErrorIs(t, err, context.Canceled)

	tables, err := catalog.Open()
	require.NoError(t, err)
	_, err = planner.New(planner.Config{Catalog: tables}).Trace(t.Context(), "est_aaaaaaaaaaaaaaaa")
	require.Equal(t, fault.NotFound, fault.KindOf(err), "where nothing is kept")
}
