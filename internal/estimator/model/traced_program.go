package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/fault"
)

// tracedProgram is a graph as modules that call each other, with what every
// call does.
type tracedProgram struct {
	*trace
	build   Build
	root    *tracedModule
	modules map[string]*tracedModule // by path
	params  map[string]*graph.Param  // by name
	values  map[string]int           // first value of a node or input, by its name
	makers  map[int]*tracedCall      // of values
	calls   []*tracedModule          // by place in the trace's calls
	ops     []tracedOp               // by node; nil where no rule is known
	batch   int64                    // of the forward that runs
	opaque  map[int]bool             // nodes that ran without a rule
	differs map[int]bool             // nodes that made something else than they say
	wrong   fault.Fields
}

// tracedModule is a module and its calls in the order in which they were made.
type tracedModule struct {
	*graph.Module
	calls []*tracedCall
	next  int // of the calls, the one that the caller makes
}

// tracedCall is what one call of a module does: steps in order, from the values
// it takes to those it returns.
type tracedCall struct {
	program  *tracedProgram
	module   *tracedModule
	at       int // in the trace's calls
	parent   *tracedCall
	depth    int
	steps    []tracedStep
	in, out  []int
	produced map[int]bool
}

// tracedStep is an operation, or the call of another module; values in drop are
// used for the last time.
type tracedStep struct {
	node int
	call *tracedCall
	drop []int
}

func newTracedProgram(t *trace, b Build) (*tracedProgram, error) {
	p := &tracedProgram{trace: t, build: b, modules: map[string]*tracedModule{}, params: map[string]*graph.Param{}, values: map[string]int{}, makers: map[int]*tracedCall{}, opaque: map[int]bool{}, differs: map[int]bool{}}
	p.makeModules()
	p.makeParameters()
	p.findCalls()
	p.number()
	if len(p.wrong) > 0 {
		return nil, p.wrong
	}
	root := p.divide()
	p.connect(root)
	p.ops = make([]tracedOp, len(t.Nodes))
	for i, n := range t.Nodes {
		p.ops[i] = tracedOps[baseName(n.Op)]
	}
	return p, p.wrong.Err()
}

// baseName is an operation's name without its overload.
func baseName(op string) string {
	name, _, _ := strings.Cut(op, ".")
	return name
}

// makeModules makes the tree of modules.
func (p *tracedProgram) makeModules() {
	for i, m := range p.Modules {
		made := &tracedModule{Module: graph.NewModule(m.Class)}
		made.Forward = made.forward
		p.modules[m.Path] = made
		if m.Path == "" {
			p.root = made
			continue
		}
		parent, name := cutLast(m.Path)
		at := p.modules[parent]
		if at == nil {
			p.wrong.Add(fmt.Sprintf("model.graph.modules[%d].path", i), m.Path, "a module below one that was named before it", "")
			continue
		}
		at.Child(name, made.Module)
	}
	if p.root == nil {
		p.wrong.Add("model.graph.modules", len(p.Modules), `the modules, of which the first has the path ""`, "")
		p.root = &tracedModule{Module: graph.NewModule("Module")}
	}
}

// cutLast divides a path at its last point.
func cutLast(path string) (before, last string) {
	i := strings.LastIndexByte(path, '.')
	return path[:max(i, 0)], path[i+1:]
}

// makeParameters gives the modules their parameters and buffers. What the
// program makes for itself belongs to the root.
func (p *tracedProgram) makeParameters() {
	for i, given := range p.Parameters {
		path, name := cutLast(given.Name)
		owner := p.modules[path]
		if given.Kind == "constant" {
			owner, name = p.root, given.Name
		}
		at := fmt.Sprintf("model.graph.parameters[%d]", i)
		if owner == nil {
			p.wrong.Add(at+".name", given.Name, "a parameter of one of the modules", "")
			continue
		}
		shape, d := given.Shape.at(p.Batch).Slice(), given.DType.of(p.build.DType)
		if given.Kind != "parameter" {
			p.params[given.Name] = owner.Buffer(name, d, shape...)
			continue
		}
		made := owner.Param(name, d, shape...)
		made.Trained = !given.Frozen
		if given.Tied != "" {
			made.Tied = p.params[given.Tied]
			if made.Tied == nil {
				p.wrong.Add(at+".tied", given.Tied, "a parameter that was named before it", "")
			}
		}
		p.params[given.Name] = made
	}
}

// findCalls finds the module of every call.
func (p *tracedProgram) findCalls() {
	for i, c := range p.Calls {
		m := p.modules[c.Module]
		if m == nil {
			p.wrong.Add(fmt.Sprintf("model.graph.calls[%d].module", i), c.Module, "one of the modules", "")
		}
		p.calls = append(p.calls, m)
	}
	if len(p.calls) == 0 {
		p.calls, p.Calls = []*tracedModule{p.root}, []traceCall{{}}
	}
}

// number gives every value a number: those of an operation with several results
// follow each other. What takes one of several is that one.
func (p *tracedProgram) number() {
	next := 0
	name := func(n string, results int) {
		p.values[n] = next
		next += results
	}
	for _, in := range p.Inputs {
		name(in.Name, 1)
	}
	for i, n := range p.Nodes {
		if n.Op == "getitem" {
			from, ok := n.Args["0"].(string)
			at, whole := n.Args["1"].(float64)
			first, known := p.values[strings.TrimPrefix(from, "%")]
			if !ok || !whole || !known {
				p.wrong.Add(fmt.Sprintf("model.graph.nodes[%d].args", i), n.Args, "a value that was made before, and which of its results", "")
			}
			p.values[n.Name] = first + int(at)
			continue
		}
		p.eachArgument(i, func(ref string) {
			if _, ok := p.lookUp(ref); !ok {
				p.wrong.Add(fmt.Sprintf("model.graph.nodes[%d].args", i), ref, "a value that was made before (%), or a parameter (@)", "")
			}
		})
		name(n.Name, max(1, len(n.Out)))
	}
	for i, ref := range p.Outputs {
		if _, ok := p.lookUp(ref); !ok || !strings.HasPrefix(ref, "%") {
			p.wrong.Add(fmt.Sprintf("model.graph.outputs[%d]", i), ref, "a value that was made", "")
		}
	}
}

// lookUp finds a reference: the number of a value, or -1 for a parameter.
func (p *tracedProgram) lookUp(ref string) (int, bool) {
	if name, ok := strings.CutPrefix(ref, "@"); ok {
		return -1, p.params[name] != nil
	}
	at, ok := p.values[strings.TrimPrefix(ref, "%")]
	return at, ok
}

// eachArgument calls f for every reference among a node's arguments.
func (p *tracedProgram) eachArgument(node int, f func(ref string)) {
	var visit func(v any)
	visit = func(v any) {
		switch x := v.(type) {
		case string:
			if strings.HasPrefix(x, "%") || strings.HasPrefix(x, "@") {
				f(x)
			}
		case []any:
			for _, e := range x {
				visit(e)
			}
		}
	}
	for _, k := range sortedKeys(p.Nodes[node].Args) {
		visit(p.Nodes[node].Args[k])
	}
}

// divide puts every node into the call that it is part of.
func (p *tracedProgram) divide() *tracedCall {
	root := p.enter(nil, 0)
	current := root
	for i, n := range p.Nodes {
		if n.Op == "getitem" {
			continue
		}
		path := p.pathTo(n.Call)
		for current.depth >= len(path) || path[current.depth] != current.at {
			current = current.parent
		}
		for _, at := range path[current.depth+1:] {
			current = p.enter(current, at)
		}
		current.steps = append(current.steps, tracedStep{node: i})
	}
	return root
}

// pathTo is the calls from the root to one of them.
func (p *tracedProgram) pathTo(call int) []int {
	var path []int
	for at := call; at != 0; at = p.Calls[at].In {
		path = append(path, at)
	}
	path = append(path, 0)
	slices.Reverse(path)
	return path
}

// enter begins another call.
func (p *tracedProgram) enter(parent *tracedCall, at int) *tracedCall {
	m := p.calls[at]
	c := &tracedCall{program: p, module: m, at: at, parent: parent, produced: map[int]bool{}}
	if parent != nil {
		c.depth = parent.depth + 1
		parent.steps = append(parent.steps, tracedStep{node: -1, call: c})
	}
	m.calls = append(m.calls, c)
	return c
}

// connect finds what every call takes and returns, and where values are used for
// the last time.
func (p *tracedProgram) connect(root *tracedCall) {
	for i := range p.Inputs {
		root.in = append(root.in, i)
		p.makers[i] = root
	}
	p.collect(root)
	for _, ref := range p.Outputs {
		v, _ := p.lookUp(ref)
		bring(p.makers[v], root, v)
		root.out = append(root.out, v)
	}
	p.endLives(root)
}

// collect brings what each operation uses to the call that it is part of.
func (p *tracedProgram) collect(c *tracedCall) {
	for _, s := range c.steps {
		if s.call != nil {
			p.collect(s.call)
			continue
		}
		p.eachArgument(s.node, func(ref string) {
			if v, _ := p.lookUp(ref); v >= 0 {
				bring(p.makers[v], c, v)
			}
		})
		for _, v := range p.results(s.node) {
			c.produced[v], p.makers[v] = true, c
		}
	}
}

// results are the values that a node makes.
func (p *tracedProgram) results(node int) []int {
	n := &p.Nodes[node]
	all := make([]int, max(1, len(n.Out)))
	for k := range all {
		all[k] = p.values[n.Name] + k
	}
	return all
}

// bring has a value returned by the calls that it was made in, and handed down
// to the one that uses it.
func bring(from, to *tracedCall, v int) {
	for from != to {
		if from.depth >= to.depth {
			if !slices.Contains(from.out, v) {
				from.out = append(from.out, v)
			}
			from = from.parent
			from.produced[v] = true
			continue
		}
		if !slices.Contains(to.in, v) {
			to.in = append(to.in, v)
		}
		to = to.parent
	}
}

// endLives finds the last step that uses each value of a call.
func (p *tracedProgram) endLives(c *tracedCall) {
	last := map[int]int{}
	for i, s := range c.steps {
		if s.call != nil {
			p.endLives(s.call)
			for _, v := range slices.Concat(s.call.in, s.call.out) {
				last[v] = i
			}
			continue
		}
		p.eachArgument(s.node, func(ref string) {
			if v, _ := p.lookUp(ref); v >= 0 {
				last[v] = i
			}
		})
		for _, v := range p.results(s.node) {
			last[v] = i
		}
	}
	for v, i := range last {
		if c.produced[v] && !slices.Contains(c.out, v) {
			c.steps[i].drop = append(c.steps[i].drop, v)
		}
	}
	for i := range c.steps {
		slices.Sort(c.steps[i].drop)
	}
}

// forward runs the call that the caller is at.
func (m *tracedModule) forward(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	if len(m.calls) == 0 {
		return in
	}
	return m.calls[min(m.next, len(m.calls)-1)].run(f, in)
}

// run executes a call's steps.
func (c *tracedCall) run(f *graph.Frame, in []*graph.Tensor) []*graph.Tensor {
	values := map[int]*graph.Tensor{}
	for i, v := range c.in {
		values[v] = in[i]
	}
	for _, s := range c.steps {
		var made []*graph.Tensor
		var names []int
		if s.call != nil {
			names = s.call.out
			made = s.call.called(f, values)
		} else {
			names = c.program.results(s.node)
			made = c.program.operate(f, s.node, values)
		}
		for k, t := range made {
			values[names[k]] = f.Let(valueName(names[k]), t)
		}
		for _, v := range s.drop {
			f.Del(valueName(v))
			delete(values, v)
		}
	}
	out := make([]*graph.Tensor, len(c.out))
	for i, v := range c.out {
		out[i] = values[v]
	}
	return out
}

// called calls c's module with what it takes.
func (c *tracedCall) called(f *graph.Frame, values map[int]*graph.Tensor) []*graph.Tensor {
	in := make([]*graph.Tensor, len(c.in))
	for i, v := range c.in {
		in[i] = values[v]
	}
	c.module.next = slices.Index(c.module.calls, c)
	return f.Call(c.module.Module, in...)
}

// valueName is the Python name a value goes by.
func valueName(v int) string { return strconv.Itoa(v) }
