package wire

import (
	"encoding/json"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

// Page is one page of a list, newest first. NextCursor is empty on the last.
type Page[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"next_cursor"`
}

// NewPage returns a page whose items are a list even when there are none.
func NewPage[T any](items []T, next string) Page[T] {
	return Page[T]{Items: list0(items), NextCursor: next}
}

// Decision is what the launcher should do with a job.
type Decision string

// The decisions of a check.
const (
	Allow Decision = "allow"
	Warn  Decision = "warn"
	Deny  Decision = "deny"
)

// CheckRequest asks whether a job may start: the job itself, as section 1 has
// it.
type CheckRequest = spec.Job

// CheckResponse answers a check: section 4 of the public formats.
type CheckResponse struct {
	Decision Decision            `json:"decision"`
	Verdict  estimator.Verdict   `json:"verdict"`
	Summary  string              `json:"summary"`
	Estimate *estimator.Estimate `json:"estimate"`
	Fixes    []Fix               `json:"fixes"`
	Policy   *Policy             `json:"policy"` // null when no policy decided
}

// Fix is a change after which the job fits.
type Fix struct {
	Text  string   `json:"text"`
	Patch []Change `json:"patch"`
}

// Change is one key of a job, by its dotted path, before and after.
type Change struct {
	Path string `json:"path"`
	From any    `json:"from"`
	To   any    `json:"to"`
}

// Policy names the rule that decided.
type Policy struct {
	Name string `json:"name"`
	Rule string `json:"rule"`
}

// FitRow is one row of the table of largest micro batches.
type FitRow struct {
	GPU            string            `json:"gpu"`
	SequenceLength int               `json:"sequence_length"`
	MicroBatchSize int               `json:"micro_batch_size"` // the largest that fits; 0: not even one does
	Required       units.Bytes       `json:"required_bytes"`   // at that size, or at 1
	Usable         units.Bytes       `json:"usable_bytes"`
	Verdict        estimator.Verdict `json:"verdict"`
}

// EncodeEstimate writes an answer, every list of it a list: none is null.
func EncodeEstimate(e *estimator.Estimate) ([]byte, error) { return json.Marshal(NonNull(*e)) }

// NonNull returns e with every missing list made an empty one, as readers of
// the wire may expect.
func NonNull(e estimator.Estimate) estimator.Estimate {
	e.Breakdown, e.PerParameter = list0(e.Breakdown), list0(e.PerParameter)
	e.Phases, e.Ranks, e.Tensors = clone0(e.Phases), list0(e.Ranks), clone0(e.Tensors)
	e.Timeline, e.Assumptions, e.Warnings = list0(e.Timeline), list0(e.Assumptions), list0(e.Warnings)
	for i := range e.Phases {
		e.Phases[i].Parts = list0(e.Phases[i].Parts)
	}
	for i := range e.Tensors {
		e.Tensors[i].Shape = list0(e.Tensors[i].Shape)
	}
	return e
}

// list0 is s, or an empty list for none.
func list0[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// clone0 is a copy of s, never nil.
func clone0[T any](s []T) []T { return append([]T{}, s...) }
