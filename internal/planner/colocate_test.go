package planner_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/units"
)

// needing is a job whose fake estimate requires its micro batch in GiB.
func needing(n int) spec.Job {
	job := gpt2()
	job.Target.GPU = "A100-SXM4-80GB"
	job.Training.MicroBatchSize = n
	return job
}

func byMicroBatch(job spec.Job) units.Bytes { return units.Bytes(job.Training.MicroBatchSize) * gib }

func TestColocate(t *testing.T) {
	for _, test := range []struct {
		name     string
		needs    []int // of a card that gives 79 GiB
		together estimator.Verdict
		pairs    []estimator.Verdict
		cards    [][]int
	}{
		{"two that fit", []int{20, 30}, estimator.Fits, []estimator.Verdict{estimator.Fits}, [][]int{{0, 1}}},
		{"two that do not", []int{50, 60}, estimator.Exceeds, []estimator.Verdict{estimator.Exceeds}, [][]int{{1}, {0}}},
		{"three, of which pairs fit", []int{30, 40, 20}, estimator.Exceeds, []estimator.Verdict{estimator.Fits, estimator.Fits, estimator.Fits}, [][]int{{0, 1}, {2}}},
		{"one that never fits", []int{200, 10}, estimator.Exceeds, []estimator.Verdict{estimator.Exceeds}, [][]int{{0}, {1}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, e := newPlanner(t, planner.Config{})
			e.required = byMicroBatch
			var jobs []spec.Job
			for _, n := range test.needs {
				jobs = append(jobs, needing(n))
			}
			c, err := p.Colocate(t.Context(), jobs)
			require.NoError(t, err)
			require.Equal(t, test.together, c.Together.Verdict)
			var pairs []estimator.Verdict
			for _, pair := range c.Pairs {
				pairs = append(pairs, pair.Verdict)
			}
			require.Equal(t, test.pairs, pairs)
			require.Equal(t, test.cards, c.Cards)
			require.NotEmpty(t, c.Summary)
		})
	}
}

func TestColocateRefuses(t *testing.T) {
	elsewhere := needing(10)
	elsewhere.Target.GPU = "L40S"
	for _, test := range []struct {
		name string
		jobs []spec.Job
		path string
	}{
		{"one job", []spec.Job{needing(1)}, ""},
		{"two cards", []spec.Job{needing(1), elsewhere}, "[1].target.gpu"},
		{"a wrong job", []spec.Job{needing(1), {}}, "[1].model"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, e := newPlanner(t, planner.Config{})
			e.required = byMicroBatch
			_, err := p.Colocate(t.Context(), test.jobs)
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			if test.path != "" {
				require.Equal(t, test.path, fault.FieldsOf(err)[0].Path)
			}
		})
	}
}

// Every job is on one card, no card but a lone job's is overfull, and more
// company never fits better.
func TestColocationProperties(t *testing.T) {
	p, e := newPlanner(t, planner.Config{CacheEntries: -1})
	e.required = byMicroBatch
	rapid.Check(t, func(rt *rapid.T) {
		var jobs []spec.Job
		for _, n := range rapid.SliceOfN(rapid.IntRange(1, 100), 2, 8).Draw(rt, "GiB") {
			jobs = append(jobs, needing(n))
		}
		c, err := p.Colocate(t.Context(), jobs)
		require.NoError(rt, err)
		seen := map[int]bool{}
		for _, card := range c.Cards {
			needs := units.Bytes(0)
			for _, i := range card {
				require.False(rt, seen[i])
				seen[i] = true
				needs += c.Jobs[i].Interval.High
			}
			require.True(rt, len(card) == 1 || needs <= c.Usable)
		}
		require.Len(rt, seen, len(jobs))
		for _, pair := range c.Pairs {
			require.GreaterOrEqual(rt, pair.Probability, c.Together.Probability)
			require.LessOrEqual(rt, pair.Required, c.Together.Required)
		}
	})
}
