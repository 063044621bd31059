package model

import (
	"math"
	"strings"

	"memplan/internal/estimator/graph"
)

// operation is a node while it runs: its arguments by the names of ATen's
// schema.
type operation struct {
	*graph.Frame
	program *tracedProgram
	node    *traceNode
	at      int // of the nodes
	values  map[int]*graph.Tensor
}

// operate runs a node and returns what it makes.
func (p *tracedProgram) operate(f *graph.Frame, node int, values map[int]*graph.Tensor) []*graph.Tensor {
	o := &operation{Frame: f, program: p, node: &p.Nodes[node], at: node, values: values}
	op := p.ops[node]
	if op == nil {
		op = (*operation).unknown
	}
	var made []*graph.Tensor
	run := func() {
		if made = op(o); made == nil { // a case the rule is not for
			made = o.unknown()
		}
	}
	if o.node.NoGrad {
		f.NoGrad(run)
	} else {
		run()
	}
	for i, out := range o.node.Out {
		if i < len(made) && made[i].Shape != out.Shape.at(p.batch) {
			p.differs[node] = true
		}
	}
	return made
}

// results are the node's own account of what it makes.
func (o *operation) results() []graph.Result {
	all := make([]graph.Result, max(1, len(o.node.Out)))
	for i, out := range o.node.Out {
		all[i] = graph.Result{Shape: out.Shape.at(o.program.batch), DType: out.DType.of(o.floating())}
	}
	return all
}

// floating is the type of what was recorded in fp32: that of the first floating
// argument.
func (o *operation) floating() graph.DType {
	for _, t := range o.tensors() {
		if t.DType.Floating() {
			return t.DType
		}
	}
	return o.program.build.DType
}

// shape is that of the node's first result.
func (o *operation) shape() graph.Dims { return o.results()[0].Shape }

// rule is a rule in the operation's name.
func (o *operation) rule() *graph.Rule { return graph.PointwiseRule(baseName(o.node.Op)) }

// read finds what a reference stands for.
func (o *operation) read(v any) *graph.Tensor {
	ref, _ := v.(string)
	if name, ok := strings.CutPrefix(ref, "@"); ok {
		return o.program.params[name].T()
	}
	if !strings.HasPrefix(ref, "%") {
		return nil
	}
	at, _ := o.program.lookUp(ref)
	return o.values[at]
}

// tensor is an argument, nil where it is none.
func (o *operation) tensor(name string) *graph.Tensor { return o.read(o.node.Args[name]) }

// list is an argument of several tensors.
func (o *operation) list(name string) []*graph.Tensor {
	all, _ := o.node.Args[name].([]any)
	ts := make([]*graph.Tensor, len(all))
	for i, v := range all {
		ts[i] = o.read(v)
	}
	return ts
}

// tensors are all there are among the arguments, each once.
func (o *operation) tensors() []*graph.Tensor {
	var ts []*graph.Tensor
	seen := map[*graph.Tensor]bool{}
	visit := func(v any) {
		if t := o.read(v); t != nil && !seen[t] {
			seen[t] = true
			ts = append(ts, t)
		}
	}
	for _, k := range sortedKeys(o.node.Args) {
		if all, ok := o.node.Args[k].([]any); ok {
			for _, v := range all {
				visit(v)
			}
			continue
		}
		visit(o.node.Args[k])
	}
	return ts
}

// int is a whole argument, or the default.
func (o *operation) int(name string, otherwise int64) int64 {
	if s, ok := readSize(o.node.Args[name]); ok {
		return s.at(o.program.batch)
	}
	return otherwise
}

// ints is an argument of several whole numbers, nil where there are none; one
// alone stands for a list of it.
func (o *operation) ints(name string) []int64 {
	all, ok := o.node.Args[name].([]any)
	if !ok {
		if s, ok := readSize(o.node.Args[name]); ok {
			return []int64{s.at(o.program.batch)}
		}
		return nil
	}
	var out []int64
	for _, v := range all {
		s, _ := readSize(v)
		out = append(out, s.at(o.program.batch))
	}
	return out
}

// each is an argument of one number for each of n dimensions, of which a list of
// one stands for all.
func (o *operation) each(name string, n int8, otherwise int64) graph.Dims {
	given := o.ints(name)
	if len(given) == 0 {
		return repeated(n, otherwise)
	}
	d := graph.Dims{N: n}
	for i := range int(n) {
		d.D[i] = given[min(i, len(given)-1)]
	}
	return d
}

// dims is an argument that names dimensions; all of x's where it is absent.
func (o *operation) dims(name string, x *graph.Tensor) []int {
	var dims []int
	for _, d := range o.ints(name) {
		dims = append(dims, int(d))
	}
	if len(dims) == 0 {
		for i := range int(x.Shape.N) {
			dims = append(dims, i)
		}
	}
	return dims
}

// float is a number, or the default.
func (o *operation) float(name string, otherwise float64) float64 {
	if v, ok := o.node.Args[name].(float64); ok && !math.IsNaN(v) {
		return v
	}
	return otherwise
}

// flag is a switch, or the default.
func (o *operation) flag(name string, otherwise bool) bool {
	if v, ok := o.node.Args[name].(bool); ok {
		return v
	}
	return otherwise
}

// dtype is an argument that names a type, or the default.
func (o *operation) dtype(name string, otherwise graph.DType) graph.DType {
	text, _ := o.node.Args[name].(string)
	if d, ok := tracedTypes[typeName(strings.TrimPrefix(text, "dtype:"))]; ok {
		return d
	}
	return otherwise
}
