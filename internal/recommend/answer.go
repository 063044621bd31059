package recommend

import (
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/recommend/throughput"
	"memplan/internal/units"
)

// Recommendation is the answer: section 5 of the public format.
type Recommendation struct {
	Goal        Goal          `json:"goal"`
	Probability float64       `json:"probability"`
	Options     []Option      `json:"options"` // best first
	Pareto      []Point       `json:"pareto"`  // memory against speed: no other of them needs less and is faster
	Largest     []LargestCell `json:"largest_micro_batch"`
	Singles     []Single      `json:"single_changes"` // by what they save
	Considered  Progress      `json:"considered"`
	Note        string        `json:"note,omitempty"` // why there is no option, or what to read with them
}

// Change is one value of a job: where it stands, what it is (or is taken to be
// where the job did not say), what it becomes. To is null for a value to leave
// out.
type Change struct {
	Path string `json:"path"`
	From any    `json:"from"`
	To   any    `json:"to"`
}

// Option is one answer: a patch, what it gives and what it costs.
type Option struct {
	Rank            int                 `json:"rank"`
	Patch           []Change            `json:"patch"`
	Why             string              `json:"why"`
	Costs           []string            `json:"costs"`
	Estimate        *estimator.Estimate `json:"estimate"`
	RelativeSpeed   throughput.Span     `json:"relative_speed"` // times the job's own, in tokens a second
	TokensPerSecond throughput.Span     `json:"tokens_per_second"`
	MFU             float64             `json:"mfu"`
	Snippets        []Snippet           `json:"snippets"`

	Job  spec.Job `json:"-"` // the patched job
	Card int      `json:"-"` // which of the problem's cards
	Risk Risk     `json:"-"`
}

// Snippet is an option in the words of another tool.
type Snippet struct {
	Tool   string   `json:"tool"`
	Title  string   `json:"title"`
	Text   string   `json:"text"`
	Unsaid []string `json:"unsaid"` // job paths that the tool has no words for
}

// Point is one candidate of the front of memory against speed.
type Point struct {
	Patch         []Change    `json:"patch"`
	Required      units.Bytes `json:"required_bytes"`
	RelativeSpeed float64     `json:"relative_speed"`
}

// LargestCell is the largest micro batch of the job, otherwise as it is, at one
// length of its samples. Zero means that not even one sample fits.
type LargestCell struct {
	GPU        string `json:"gpu"`
	Length     int    `json:"sequence_length"`
	MicroBatch int    `json:"micro_batch_size"`
	AtLeast    bool   `json:"at_least"` // the search ended at its limit
}

// Single is what one change alone would save.
type Single struct {
	Path  string      `json:"path"`
	To    any         `json:"to"`
	Saves units.Bytes `json:"saves_bytes"`
	What  string      `json:"what"`
	Cost  string      `json:"cost"`
	Patch []Change    `json:"patch"`
}
