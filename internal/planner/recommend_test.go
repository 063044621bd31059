package planner

import (
	"context"
	"encoding/json"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/recommend"
)

// adviser is a planner with the real engine.
func adviser(t *testing.T) *Planner {
	t.Helper()
	tables, err := catalog.Open()
	require.NoError(t, err)
	return New(Config{Catalog: tables, CacheEntries: -1})
}

func gpt2On(card string, micro int) spec.Job {
	j := spec.Job{Version: 1, Model: spec.Model{ID: "gpt2"}}
	j.Training.Precision, j.Training.MicroBatchSize, j.Training.SequenceLength = spec.PrecisionFP16Mixed, micro, 1024
	j.Target.GPU = card
	return j
}

// Every goal's options fit, and their patches turn the job into what was
// estimated.
func TestEveryGoal(t *testing.T) {
	t.Parallel()
	p := adviser(t)
	several := gpt2On("RTX-3090", 32)
	several.Target.Count, several.Training.Precision = 2, spec.PrecisionBF16Mixed
	for _, tt := range []struct {
		name   string
		advice Advice
		check  func(t *testing.T, r *recommend.Recommendation)
	}{
		{"smallest change", Advice{Job: gpt2On("T4", 16)}, func(t *testing.T, r *recommend.Recommendation) {
			require.LessOrEqual(t, len(r.Options[0].Patch), 2)
		}},
		{"nothing to change", Advice{Job: gpt2On("T4", 1)}, func(t *testing.T, r *recommend.Recommendation) {
			require.Empty(t, r.Options[0].Patch)
		}},
		{"fastest step", Advice{Job: gpt2On("T4", 16), Goal: recommend.FastestStep}, func(t *testing.T, r *recommend.Recommendation) {
			for _, o := range r.Options {
				require.Equal(t, 16, o.Job.Training.MicroBatchSize*max(1, o.Job.Training.GradAccumSteps), "the global batch stays")
			}
		}},
		{"longest sequence", Advice{Job: gpt2On("T4", 8), Goal: recommend.LongestSequence}, func(t *testing.T, r *recommend.Recommendation) {
			require.LessOrEqual(t, r.Options[0].Estimate.Job.Training.SequenceLength, 1024, "positions are learnt")
		}},
		{"fewest cards", Advice{Job: several, Goal: recommend.FewestGPUs}, func(t *testing.T, r *recommend.Recommendation) {
			require.Equal(t, 1, r.Options[0].Estimate.Job.Target.Count)
		}},
		{"on other cards", Advice{Job: gpt2On("T4", 16), Goal: recommend.LargestMicroBatch, GPUs: []string{"T4", "A100-SXM4-80GB"}}, func(t *testing.T, r *recommend.Recommendation) {
			require.Equal(t, "A100-SXM4-80GB", r.Options[0].Estimate.Target.GPU)
			require.Contains(t, r.Options[0].Patch, recommend.Change{Path: "target.gpu", From: "T4", To: "A100-SXM4-80GB"})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := p.Recommend(context.Background(), tt.advice, nil)
			require.NoError(t, err)
			require.NotEmpty(t, r.Options, r.Note)
			for _, o := range r.Options {
				require.GreaterOrEqual(t, o.Estimate.Target.ProbabilityFits, 0.95, o.Why)
				require.NotEmpty(t, o.Snippets)
			}
			tt.check(t, r)
		})
	}
}

// Answers do not depend on how many processors work on them.
func TestRecommendationsAreTheSameEverywhere(t *testing.T) {
	ask := func(processors int) string {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
		r, err := adviser(t).Recommend(context.Background(), Advice{Job: gpt2On("T4", 16), Goal: recommend.FastestStep}, nil)
		require.NoError(t, err)
		text, err := json.Marshal(r)
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, ask(1), ask(4))
}

func TestASearchStopsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	_, err := adviser(t).Recommend(ctx, Advice{Job: gpt2On("T4", 16), Goal: recommend.FastestStep}, func(p recommend.Progress) {
		if p.Simulated == 3 {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
}

func TestWhatTheEngineRefusesIsNoNothing(t *testing.T) {
	t.Parallel()
	j := gpt2On("T4", 1)
	j.Training.Optimizer.Name = "no such optimizer"
	_, err := adviser(t).Recommend(context.Background(), Advice{Job: j}, nil)
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	require.NotEmpty(t, fault.FieldsOf(err))
}
