package planner_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/units"
)

// linear is a job of so much at rest and so much a sample.
func linear(rest, sample units.Bytes) func(spec.Job) units.Bytes {
	return func(j spec.Job) units.Bytes { return rest + sample*units.Bytes(j.Training.MicroBatchSize) }
}

func TestFits(t *testing.T) {
	p, e := newPlanner(t, planner.Config{})
	e.required = linear(10*gib, 2*gib)
	fits, err := p.Fits(t.Context(), gpt2(), []string{"T4", "a100 sxm4 80gb", "RTX-3070"})
	require.NoError(t, err)
	require.Len(t, fits, 3)

	require.Equal(t, "T4", fits[0].GPU)
	require.Equal(t, 2, fits[0].MicroBatch)
	require.Equal(t, 14*gib, fits[0].Required)
	require.Equal(t, 16*gib, fits[0].Above)
	require.Equal(t, estimator.Fits, fits[0].Verdict)

	require.Equal(t, 34, fits[1].MicroBatch, "79 GiB less one percent")
	require.Equal(t, 0, fits[2].MicroBatch)
	require.Equal(t, estimator.Exceeds, fits[2].Verdict)
	require.Equal(t, 12*gib, fits[2].Required, "of one sample")
}

func TestFitsEndsAtItsLimit(t *testing.T) {
	p, e := newPlanner(t, planner.Config{})
	e.required = linear(gib, 1)
	fits, err := p.Fits(t.Context(), gpt2(), []string{"T4"})
	require.NoError(t, err)
	require.True(t, fits[0].AtLeast)
	require.Equal(t, 4096, fits[0].MicroBatch)
	require.Zero(t, fits[0].Above)
}

// On any rising curve the answer fits, one sample more does not, and the search
// is short.
func TestFitsIsTheLargest(t *testing.T) {
	p, e := newPlanner(t, planner.Config{})
	rapid.Check(t, func(t *rapid.T) {
		rest := units.Bytes(rapid.Int64Range(0, int64(20*gib)).Draw(t, "rest"))
		sample := units.Bytes(rapid.Int64Range(1, int64(10*gib)).Draw(t, "sample"))
		bend := rapid.Int64Range(0, int64(gib)).Draw(t, "bend")
		knee := rapid.IntRange(1, 5000).Draw(t, "knee")
		e.required = func(j spec.Job) units.Bytes {
			m := j.Training.MicroBatchSize
			b := rest + sample*units.Bytes(m)
			if m > knee {
				b += units.Bytes(bend) * units.Bytes(m-knee)
			}
			return b
		}
		e.calls = nil
		fits, err := p.Fits(context.Background(), gpt2(), []string{"T4"})
		if err != nil {
			t.Fatal(err)
		}
		f := fits[0]
		within := func(m int) bool {
			j := spec.Job{}
			j.Training.MicroBatchSize = m
			b := e.required(j)
			return b <= f.Usable && b/100*101 <= f.Usable
		}
		if f.MicroBatch > 0 && !within(f.MicroBatch) {
			t.Fatalf("%d does not fit", f.MicroBatch)
		}
		if f.MicroBatch < 4096 && within(f.MicroBatch+1) {
			t.Fatalf("%d fits as well", f.MicroBatch+1)
		}
		probed := map[int]int{}
		for _, c := range e.calls {
			probed[c.job.Training.MicroBatchSize]++
			if probed[c.job.Training.MicroBatchSize] > 1 {
				t.Fatalf("%d was estimated twice", c.job.Training.MicroBatchSize)
			}
		}
		if !f.AtLeast && probed[f.MicroBatch+1] != 1 || f.MicroBatch > 0 && probed[f.MicroBatch] != 1 {
			t.Fatalf("%d and one above were not both estimated", f.MicroBatch)
		}
		if len(e.calls) > 45 {
			t.Fatalf("%d estimates", len(e.calls))
		}
	})
}

func TestFitsIsQuickOnAStraightLine(t *testing.T) {
	for _, sample := range []units.Bytes{3 * units.MiB, 100 * units.MiB, gib} {
		p, e := newPlanner(t, planner.Config{})
		e.required = linear(gib, sample)
		_, err := p.Fits(t.Context(), gpt2(), []string{"A100-SXM4-80GB"})
		require.NoError(t, err)
		require.LessOrEqual(t, e.count(), 6, "%s a sample", sample)
	}
}

func TestFitsOnTheUsualCards(t *testing.T) {
	for _, test := range []struct {
		name   string
		target spec.Target
		first  string
	}{
		{"default", spec.Target{}, "A100-SXM4-80GB"},
		{"a card that is no usual one", spec.Target{GPU: "Tesla P40"}, "P40"},
		{"a usual one comes first, once", spec.Target{GPU: "B200"}, "B200"},
		{"an unknown one is left out", spec.Target{GPU: "mine", MemoryGiB: gib}, "T4"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, _ := newPlanner(t, planner.Config{})
			job := gpt2()
			job.Target = test.target
			fits, err := p.Fits(t.Context(), job, nil)
			require.NoError(t, err)
			require.Equal(t, test.first, fits[0].GPU)
			seen := map[string]bool{}
			for _, f := range fits {
				require.NoError(t, f.Err)
				require.False(t, seen[f.GPU], f.GPU)
				seen[f.GPU] = true
			}
			require.GreaterOrEqual(t, len(fits), 15)
		})
	}
}

func TestFitsKeepsWhatBelongsToTheOwnCard(t *testing.T) {
	p, e := newPlanner(t, planner.Config{})
	e.required = linear(gib, gib)
	job := gpt2()
	job.Target = spec.Target{GPU: "A100-SXM4-80GB", MIGProfile: "1g.10gb", HeadroomGiB: gib}
	fits, err := p.Fits(t.Context(), job, []string{"A100-SXM4-80GB", "T4"})
	require.NoError(t, err)
	require.Less(t, fits[0].Usable, 9*gib, "the slice less the headroom")
	require.Greater(t, fits[1].Usable, 13*gib, "no slice, but the headroom")
	require.Less(t, fits[1].Usable, 14*gib)
}

func TestFitsReportsUnknownCards(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{})
	_, err := p.Fits(t.Context(), gpt2(), []string{"T4", "T5", "nothing like it"})
	fields := fault.FieldsOf(err)
	require.Len(t, fields, 2)
	require.Equal(t, "gpus.1", fields[0].Path)
	require.Equal(t, "gpus.2", fields[1].Path)
}

func TestFitsOfAWrongJob(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{})
	_, err := p.Fits(t.Context(), spec.Job{}, nil)
	require.Equal(t, fault.Invalid, fault.KindOf(err))
}

func TestFitsShowsTheCardThatRefuses(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{Engine: func(j spec.Job, d spec.Device, c spec.Coefficients) (*estimator.Estimate, error) {
		if d.Key == "T4" {
			return nil, fault.Fields{{Path: "training.precision", Got: "bf16", Want: "fp16: the card has no bf16"}}
		}
		return (&engine{required: linear(gib, gib)}).run(j, d, c)
	}})
	fits, err := p.Fits(t.Context(), gpt2(), []string{"T4", "A10G"})
	require.NoError(t, err)
	require.ErrorContains(t, fits[0].Err, "the card has no bf16")
	require.NoError(t, fits[1].Err)
	require.Positive(t, fits[1].MicroBatch)
}

func TestFitsEndsWithItsContext(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := p.Fits(ctx, gpt2(), nil)
	require.ErrorIs(t, err, context.Canceled)
}
