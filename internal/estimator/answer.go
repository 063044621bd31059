package estimator

import (
	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

// Estimate is the answer to one job: section 2 of the public format. Its JSON
// form is what every door shows.
type Estimate struct {
	Version      int            `json:"version"`
	ID           string         `json:"id,omitempty"`
	Engine       Engine         `json:"engine"`
	Summary      string         `json:"summary"`
	Job          spec.Job       `json:"job"`
	Peak         Peak           `json:"peak"`
	Breakdown    []Share        `json:"breakdown"`
	PerParameter []PerParameter `json:"per_parameter"`
	Phases       []Phase        `json:"phases"`
	Ranks        []Rank         `json:"ranks"`
	Tensors      []Tensor       `json:"tensors"`
	Timeline     Timeline       `json:"timeline"`
	Target       TargetAnswer   `json:"target"`
	HostMemory   units.Bytes    `json:"host_memory_bytes"`
	Parameters   Parameters     `json:"parameters"`
	Assumptions  []Assumption   `json:"assumptions"`
	Warnings     []Warning      `json:"warnings"`
}

// Engine names the build and the tables an answer was made with.
type Engine struct {
	Version string `json:"version"`
	Catalog string `json:"catalog"`
}

// Peak is the largest phase, by every way of counting it (DESIGN section 2's
// words: tensor, requested, allocated, reserved, process, required).
type Peak struct {
	Tensor          units.Bytes `json:"tensor_bytes"`
	Requested       units.Bytes `json:"requested_bytes"`
	Allocated       units.Bytes `json:"allocated_bytes"`
	Reserved        units.Bytes `json:"reserved_bytes"`
	Process         units.Bytes `json:"process_bytes"`
	Required        units.Bytes `json:"required_bytes"`
	Activations     units.Bytes `json:"activations_bytes"`
	Interval        Interval    `json:"interval"`
	ProcessInterval Range       `json:"process_interval"`
	At              Where       `json:"at"`
}

// Range is a low and a high end in bytes.
type Range struct {
	Low  units.Bytes `json:"low_bytes"`
	High units.Bytes `json:"high_bytes"`
}

// Interval is the 5th to 95th percentile of required bytes.
type Interval struct {
	Low    units.Bytes `json:"low_bytes"`
	High   units.Bytes `json:"high_bytes"`
	Level  float64     `json:"level"`
	Of     string      `json:"of"`
	Source string      `json:"source"` // prior, or the calibration's id
}

// Where names a moment of the job.
type Where struct {
	Phase      string `json:"phase"`
	Part       string `json:"part"`
	Module     string `json:"module"`
	Op         string `json:"op"`
	MicroBatch int    `json:"micro_batch"`
	Rank       string `json:"rank,omitempty"`
}

// Share is one category's bytes at the allocated peak. The shares of a
// breakdown sum exactly to process bytes.
type Share struct {
	Category string      `json:"category"`
	Bytes    units.Bytes `json:"bytes"`
}

// PerParameter is bytes per parameter of one term of the model state.
type PerParameter struct {
	Term  string  `json:"term"`
	Bytes float64 `json:"bytes"`
}

// Phase is load, first_step, steady_step, or one that was asked for.
type Phase struct {
	Name           string      `json:"name"`
	StartAllocated units.Bytes `json:"start_allocated_bytes"`
	PeakTensor     units.Bytes `json:"peak_tensor_bytes"`
	PeakRequested  units.Bytes `json:"peak_requested_bytes"`
	PeakAllocated  units.Bytes `json:"peak_allocated_bytes"`
	PeakReserved   units.Bytes `json:"peak_reserved_bytes"`
	PeakProcess    units.Bytes `json:"peak_process_bytes"`
	EndAllocated   units.Bytes `json:"end_allocated_bytes"`
	Parts          []Part      `json:"parts"`
}

// Part is forward, loss, backward or optimizer within a phase.
type Part struct {
	Name          string      `json:"name"`
	PeakAllocated units.Bytes `json:"peak_allocated_bytes"`
	EndAllocated  units.Bytes `json:"end_allocated_bytes"`
}

// Rank is one distinct kind of rank.
type Rank struct {
	Name        string         `json:"name"`
	Coordinates map[string]int `json:"coordinates,omitempty"`
	Count       int            `json:"count"`
	Layers      string         `json:"layers,omitempty"`
	Peak        Peak           `json:"peak"`
}

// Tensor is one of the largest live tensors at the peak, and the rule that
// made it.
type Tensor struct {
	Module   string      `json:"module"`
	Op       string      `json:"op"`
	Shape    []int64     `json:"shape"`
	DType    string      `json:"dtype"`
	Bytes    units.Bytes `json:"bytes"`
	Category string      `json:"category"`
	Rule     string      `json:"rule"`
	Source   string      `json:"source"`
}

// Verdict is whether the job fits its target.
type Verdict string

// The verdicts: the 95th percentile of required fits; only the median fits;
// the median does not.
const (
	Fits    Verdict = "fits"
	Tight   Verdict = "tight"
	Exceeds Verdict = "exceeds"
)

// TargetAnswer is the verdict on the target card.
type TargetAnswer struct {
	GPU             string      `json:"gpu"`
	Usable          units.Bytes `json:"usable_bytes"`
	Headroom        units.Bytes `json:"headroom_bytes"` // usable less required; negative when it exceeds
	Verdict         Verdict     `json:"verdict"`
	ProbabilityFits float64     `json:"probability_fits"`
}

// Parameters counts the model's parameters.
type Parameters struct {
	Total     int64 `json:"total"`
	Trainable int64 `json:"trainable"`
	Active    int64 `json:"active"`
	PerRank   int64 `json:"per_rank"`
}

// Assumption is a value the job did not give: what was taken, why, whether it
// decides the answer, and by how much the answer would move with the most
// likely other value (0 when not computed).
type Assumption struct {
	Path    string      `json:"path"`
	Value   any         `json:"value"`
	Why     string      `json:"why"`
	Decides bool        `json:"decides"`
	Effect  units.Bytes `json:"effect_bytes"`
}

// Warning is a doubt about the estimate that the user must see.
type Warning struct {
	Code  string      `json:"code"`
	Text  string      `json:"text"`
	Bytes units.Bytes `json:"bytes"`
	Path  string      `json:"path"`
}
