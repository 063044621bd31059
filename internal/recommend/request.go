package recommend

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/recommend/throughput"
)

// Goal is what is asked for.
type Goal string

// The goals.
const (
	LargestMicroBatch Goal = "largest_micro_batch"
	FastestStep       Goal = "fastest_step"
	LongestSequence   Goal = "longest_sequence"
	FewestGPUs        Goal = "fewest_gpus"
	SmallestChange    Goal = "smallest_change"
)

// Goals lists them, the one meant where none is named first.
func Goals() []Goal {
	return []Goal{SmallestChange, FastestStep, LargestMicroBatch, LongestSequence, FewestGPUs}
}

// Probability is how likely a recommended job is to fit where nothing else is
// asked for.
const Probability = 0.95

// Request is what a recommendation is asked about.
type Request struct {
	Goal        Goal
	Probability float64  // of fitting; 0 means Probability
	Allow       []string // paths that may change; none means every path but the method and the samples' length
	GlobalBatch int      // samples of an optimizer step, of all ranks; 0: the job's own
}

// Check reports every wrong field.
func (r *Request) Check() fault.Fields {
	var f fault.Fields
	if !slices.Contains(Goals(), r.Goal) {
		var all []string
		for _, g := range Goals() {
			all = append(all, string(g))
		}
		f.Add("goal", string(r.Goal), "one of "+strings.Join(all, ", "), string(SmallestChange))
	}
	if r.Probability < 0 || r.Probability >= 1 {
		f.Add("probability", r.Probability, "above 0 and below 1", fmt.Sprint(Probability))
	}
	if r.GlobalBatch < 0 {
		f.Add("global_batch_size", r.GlobalBatch, "1 or more", "1")
	}
	for i, path := range r.Allow {
		if !known(path) {
			f.Add(fmt.Sprintf("allow.%d", i), path, "a path that may change: "+strings.Join(Paths(), ", "), "")
		}
	}
	return f
}

// known reports whether a path is one that may change, or stands above one.
func known(path string) bool {
	return slices.ContainsFunc(Paths(), func(p string) bool { return allows([]string{path}, p) || allows([]string{p}, path) })
}

// Card is a card the job may run on.
type Card struct {
	Device spec.Device
	Rates  throughput.Rates
}

// Problem is a request about a job, and what answers its questions. The engine's
// functions are called from several goroutines.
type Problem struct {
	Request
	Job   spec.Job // as asked, its model given by a configuration
	Cards []Card   // those allowed, the job's own first

	// Runs fails with fault.Fields where the engine has no rules for a job; Fit says
	// whether a job fits a card, and Work what it computes.
	Runs func(job spec.Job, card int) error
	Fit  func(job spec.Job, card int, look estimator.Look) (estimator.Fitness, error)
	Work func(job spec.Job, card int) (*estimator.Work, error)
	// Progress is told how far the search is, one call at a time; nil: nobody is.
	Progress func(Progress)
}

// Progress is how far a search is.
type Progress struct {
	Candidates int    `json:"candidates"` // known so far
	Simulated  int    `json:"simulated"`  // asked of the engine
	Refused    int    `json:"refused"`    // combinations the engine has no rules for
	Decided    int    `json:"decided"`    // by an answer about another
	Found      int    `json:"found"`      // options
	Doing      string `json:"doing"`
}

// Solve searches. It fails with the job's own fault.Fields where not even the
// job itself can be resolved, and with the context's error.
func Solve(ctx context.Context, p Problem) (*Recommendation, error) {
	s, err := newSolver(ctx, p)
	if err != nil {
		return nil, err
	}
	return s.solve()
}
