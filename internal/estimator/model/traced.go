package model

import (
	"encoding/json"
	"fmt"
	"slices"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// Models that nobody listed come as a graph: what torch.export recorded of a
// module, written down by clients/python/memplan_export.py (docs/graph.md).

// tracedFamily is every such model.
var tracedFamily = Family{
	Name:           "graph",
	Source:         "the module's own trace by torch.export",
	AdapterTargets: []string{"q_proj", "v_proj", "query", "value", "qkv"},
	New:            newTraced,
}

// trace is a graph as it is written down, version 1.
type trace struct {
	Format     string        `json:"format"`
	Version    int           `json:"version"`
	Torch      string        `json:"torch"`
	Class      string        `json:"class"`
	Batch      int64         `json:"batch"` // samples it was recorded with
	Modules    []traceModule `json:"modules"`
	Parameters []traceParam  `json:"parameters"`
	Inputs     []traceInput  `json:"inputs"`
	Calls      []traceCall   `json:"calls"`
	Nodes      []traceNode   `json:"nodes"`
	Outputs    []string      `json:"outputs"`
	Loss       string        `json:"loss"`
}

type traceModule struct {
	Path  string `json:"path"`
	Class string `json:"class"`
}

type traceParam struct {
	Name   string   `json:"name"`
	Kind   string   `json:"kind"` // parameter, buffer, constant
	Shape  sizes    `json:"shape"`
	DType  typeName `json:"dtype"`
	Frozen bool     `json:"frozen"`
	Tied   string   `json:"tied"` // the name of the first that it is
}

type traceInput struct {
	Name  string   `json:"name"`
	Shape sizes    `json:"shape"`
	DType typeName `json:"dtype"`
}

// traceCall is a call of a module, inside another.
type traceCall struct {
	Module string `json:"module"`
	In     int    `json:"in"`
	Again  int    `json:"again"` // the how manieth of the module, from 0
}

// traceNode is an operation: its name in ATen with the overload, the call it is
// part of, its arguments by name, and what it makes.
type traceNode struct {
	Name   string         `json:"name"`
	Op     string         `json:"op"`
	Call   int            `json:"call"`
	Args   map[string]any `json:"args"`
	Out    []traceResult  `json:"out"`
	NoGrad bool           `json:"no_grad"`
}

type traceResult struct {
	Shape sizes    `json:"shape"`
	DType typeName `json:"dtype"`
}

// typeName is an element type as torch names it.
type typeName string

// tracedTypes are the types of the engine by torch's names. Those it has none
// for stand in by one of the nearest width.
var tracedTypes = map[typeName]graph.DType{
	"float32": graph.F32, "float16": graph.F16, "bfloat16": graph.BF16, "float64": graph.F32,
	"int64": graph.I64, "int32": graph.I32, "int16": graph.I32, "int8": graph.I8, "uint8": graph.U8, "bool": graph.Bool,
}

// of is the type that tensors have when floating ones are of type d: what was
// recorded in fp32 is trained in the job's type.
func (n typeName) of(d graph.DType) graph.DType {
	if t := tracedTypes[n]; !t.Floating() {
		return t
	}
	return d
}

// newTraced builds the module tree and the program of a graph. It reports
// every part of the graph that does not hold together by its path.
func newTraced(c Config, b Build) (*Network, error) {
	t, err := readTrace(c.values)
	if err != nil {
		return nil, err
	}
	p, err := newTracedProgram(t, b)
	if err != nil {
		return nil, err
	}
	return p.network(), nil
}

// readTrace decodes a graph. It fails with fault.Fields.
func readTrace(values map[string]any) (*trace, error) {
	text, err := json.Marshal(values)
	if err != nil {
		return nil, fault.Fields{{Path: "model.graph", Got: err.Error(), Want: "a graph that memplan_export.py wrote"}}
	}
	var t trace
	var fields fault.Fields
	if err := json.Unmarshal(text, &t); err != nil {
		fields.Add("model.graph", err.Error(), "a graph that memplan_export.py wrote (docs/graph.md)", "")
		return nil, fields
	}
	if t.Format != TraceFormat {
		fields.Add("model.graph.format", t.Format, TraceFormat, TraceFormat)
	}
	if t.Version != 1 {
		fields.Add("model.graph.version", t.Version, "1, the only version", "1")
	}
	t.check(&fields)
	return &t, fields.Err()
}

// TraceFormat is what a graph says it is.
const TraceFormat = "memplan-graph"

// tracedLosses are what may be put on a result.
var tracedLosses = []string{"", ClassLoss, squaredLoss, SumLoss}

// check reports what would not run.
func (t *trace) check(fields *fault.Fields) {
	if len(t.Inputs) == 0 || len(t.Inputs[0].Shape) == 0 {
		fields.Add("model.graph.inputs", len(t.Inputs), "at least one, whose first dimension is the batch", "")
	}
	if t.Batch < 1 || t.Batch > largestSize {
		fields.Add("model.graph.batch", t.Batch, "the number of samples that it was recorded with", "")
		return
	}
	if len(t.Nodes) == 0 || len(t.Outputs) == 0 {
		fields.Add("model.graph.nodes", len(t.Nodes), "the operations of a module, and outputs", "")
	}
	if near := nearest(t.Loss, tracedLosses[1:]); !slices.Contains(tracedLosses, t.Loss) {
		fields.Add("model.graph.loss", t.Loss, "one of "+join(tracedLosses[1:]), near)
	}
	for i, c := range t.Calls {
		if i > 0 && (c.In < 0 || c.In >= i) {
			fields.Add(fmt.Sprintf("model.graph.calls[%d].in", i), c.In, "the place of an earlier call", "")
		}
	}
	typed := func(path string, d typeName, s sizes) {
		if _, ok := tracedTypes[d]; !ok {
			fields.Add(path+".dtype", string(d), "a real or whole type of torch: "+join(sortedKeys(typeWords)), nearest(string(d), sortedKeys(typeWords)))
		}
		if len(s) > graph.MaxDims {
			fields.Add(path+".shape", len(s), fmt.Sprintf("at most %d dimensions", graph.MaxDims), "")
			return
		}
		if n, ok := s.elements(t.Batch); !ok {
			fields.Add(path+".shape", n, "sizes of at least 0 with at most 2^48 elements in all", "")
		}
	}
	for i, p := range t.Parameters {
		typed(fmt.Sprintf("model.graph.parameters[%d]", i), p.DType, p.Shape)
	}
	for i, in := range t.Inputs {
		typed(fmt.Sprintf("model.graph.inputs[%d]", i), in.DType, in.Shape)
	}
	for i, n := range t.Nodes {
		if n.Call < 0 || n.Call >= max(1, len(t.Calls)) {
			fields.Add(fmt.Sprintf("model.graph.nodes[%d].call", i), n.Call, "the place of a call", "")
		}
		for k, out := range n.Out {
			typed(fmt.Sprintf("model.graph.nodes[%d].out[%d]", i, k), out.DType, out.Shape)
		}
	}
}

// typeWords are the names in tracedTypes as text.
var typeWords = func() map[string]bool {
	words := map[string]bool{}
	for n := range tracedTypes {
		words[string(n)] = true
	}
	return words
}()

// IsGraph reports whether a job's model is a graph.
func IsGraph(m spec.Model) bool { return len(m.Graph) > 0 }
