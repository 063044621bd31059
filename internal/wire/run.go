package wire

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

// Run is a measured job: section 3 of the public formats. The fields from
// Trust on are those of a file of measured jobs; runs that users report have
// none of them.
type Run struct {
	ID          string        `json:"id,omitempty"`
	Source      string        `json:"source,omitempty"`
	Job         spec.Job      `json:"job"`
	Environment Environment   `json:"environment,omitzero"`
	Measured    []Measurement `json:"measured"`
	Notes       string        `json:"notes,omitempty"`
	Tags        []string      `json:"tags"`

	Trust     string         `json:"trust,omitempty"`     // A: every setting stated; B: some inferred
	Tolerance float64        `json:"tolerance,omitempty"` // relative error a perfect model may still show
	RankNote  string         `json:"rank_note,omitempty"`
	Reference map[string]any `json:"reference,omitempty"` // figures of other tools for the same job
	Params    int64          `json:"params,omitempty"`    // parameters, as counted
	Trainable int64          `json:"trainable,omitempty"`
}

// Environment is what a run was measured on.
type Environment struct {
	GPU    string `json:"gpu,omitempty"`
	Driver string `json:"driver,omitempty"`
	CUDA   string `json:"cuda,omitempty"`
	Host   string `json:"host,omitempty"`
}

// Measurement is one figure of a run. Without a phase it is the larger of
// first_step and steady_step.
type Measurement struct {
	Metric   string      `json:"metric"`
	Phase    string      `json:"phase,omitempty"`
	Rank     string      `json:"rank,omitempty"`
	Bytes    units.Bytes `json:"bytes"`
	Relation string      `json:"relation"` // equals | at_most | more_than
	Rounding units.Bytes `json:"rounding_bytes"`
	Method   string      `json:"method,omitempty"`
	Note     string      `json:"note,omitempty"`
}

// RunSchema is the JSON Schema of a run, in which job stands for the job's own.
//
//go:embed run.schema.json
var RunSchema []byte

// runRule is the compiled schema of a run.
var runRule = sync.OnceValue(func() *rule {
	r, err := compileSchema(RunSchema)
	if err != nil {
		panic(err) // the embedded schema is part of the build, and tested
	}
	return r
})

// informative are names of metrics that only files of measured jobs use.
var informative = []string{"allocated_after_step", "first_logged_peak_allocated", "context", "first_step_allocated", "first_step_reserved"}

// DecodeRun reads one run from JSON, with the errors of DecodeJSON; the job's
// paths begin with job.
func DecodeRun(data []byte) (Run, error) { return decodeRun(data, false) }

// DecodeRow reads one row of a file of measured jobs. It differs from
// DecodeRun in that metrics which only such files use are left out.
func DecodeRow(data []byte) (Run, error) { return decodeRun(data, true) }

func decodeRun(data []byte, row bool) (Run, error) {
	found := &Invalid{}
	root, err := readJSON(data, found)
	if err != nil {
		return Run{}, err
	}
	run, err := readRun(root, "", row, found)
	if err != nil {
		return Run{}, err
	}
	return run, found.err()
}

// DecodeRuns reads a list of runs, or one; the paths of a list's runs begin
// with their index: [2].job.training.
func DecodeRuns(data []byte) ([]Run, error) {
	found := &Invalid{}
	root, err := readJSON(data, found)
	if err != nil {
		return nil, err
	}
	if root.kind != list {
		run, err := readRun(root, "", false, found)
		if err != nil {
			return nil, err
		}
		return []Run{run}, found.err()
	}
	runs := make([]Run, len(root.items))
	for i, n := range root.items {
		if runs[i], err = readRun(n, fmt.Sprintf("[%d]", i), false, found); err != nil {
			return nil, err
		}
	}
	return runs, found.err()
}

// readRun checks the tree of a run and builds it.
func readRun(n *node, path string, row bool, found *Invalid) (Run, error) {
	c := &check{d: standard(), found: found}
	if row {
		leaveOut(n.get("also_measured"))
	}
	job := n.get("job")
	if !c.value(runRule(), path, n) || job == nil {
		return Run{}, nil
	}
	jobCheck := &check{d: standard(), found: &Invalid{}}
	read, err := jobCheck.job(job)
	found.include(join(path, "job"), jobCheck.found)
	if err != nil || len(found.Fields) > 0 {
		return Run{}, nil
	}
	n.drop("job")
	return buildRun(n, read)
}

// leaveOut takes out the figures that only inform.
func leaveOut(also *node) {
	if also == nil {
		return
	}
	also.items = slices.DeleteFunc(also.items, func(x *node) bool {
		metric := x.get("metric")
		return metric != nil && slices.Contains(informative, metric.text)
	})
}

// include adds the faults of a part that was read by itself.
func (e *Invalid) include(path string, part *Invalid) {
	for i, f := range part.Fields {
		at := join(path, f.Path)
		if f.Path == "job" {
			at = path
		}
		e.add(at, part.At[i], f.Got, f.Want, f.Nearest)
	}
}

// buildRun makes a run of a checked tree and its job.
func buildRun(n *node, job spec.Job) (Run, error) {
	if m := n.get("measured"); m.kind == object {
		n.set("measured", &node{kind: list, items: []*node{m}})
	}
	for _, m := range append(slices.Clone(n.get("measured").items), itemsOf(n.get("also_measured"))...) {
		if rank := m.get("rank"); rank != nil {
			rank.kind = text
		}
	}
	var row struct {
		Run
		Also      []Measurement `json:"also_measured"`
		GPU       string        `json:"gpu"`
		Reference struct {
			Tensor units.Bytes `json:"tensor_peak_bytes"` // of a trace of the model's own live tensors
		} `json:"reference"`
	}
	if err := json.Unmarshal(n.appendJSON(nil), &row); err != nil {
		return Run{}, fmt.Errorf("wire: a checked run does not fit its type: %w", err)
	}
	run := row.Run
	run.Job = job
	run.Measured = append(run.Measured, row.Also...)
	if row.Reference.Tensor > 0 {
		run.Measured = append(run.Measured, Measurement{Metric: "tensor", Bytes: row.Reference.Tensor})
	}
	for i := range run.Measured {
		if run.Measured[i].Relation == "" {
			run.Measured[i].Relation = "equals"
		}
	}
	if run.Environment.GPU == "" {
		run.Environment.GPU = row.GPU
	}
	if run.Tags == nil {
		run.Tags = []string{}
	}
	return run, nil
}

func itemsOf(n *node) []*node {
	if n == nil {
		return nil
	}
	return n.items
}
