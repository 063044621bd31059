package wire

import (
	"encoding/json"

	"memplan/internal/estimator"
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
