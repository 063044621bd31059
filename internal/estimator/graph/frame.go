package graph

// Frame is a running Python function: its named locals, and the operations
// they are computed with. Model programs and training loops are written
// against it.
//
// An operation's result is a temporary: the next operation or call that takes
// it consumes it, as Python drops an unnamed value after use. What is used more
// than once gets a name with Let; a name is released when it is bound again
// (after the new value exists), by Del, or when the function returns.
type Frame struct {
	*Machine
	module *Module
	names  []local
	temps0 int
}

type local struct {
	name string
	t    *Tensor
}

// produce marks t as the unnamed result of an operation.
func (m *Machine) produce(t *Tensor) *Tensor {
	t.temp = true
	m.temps = append(m.temps, t)
	return t
}

// own takes t's temporary reference away from the expression.
func (m *Machine) own(t *Tensor) {
	t.temp = false
	for i := len(m.temps) - 1; i >= 0; i-- {
		if m.temps[i] == t {
			m.temps = append(m.temps[:i], m.temps[i+1:]...)
			return
		}
	}
	panic("graph: a temporary was consumed twice")
}

// consume drops the arguments that were temporaries.
func (m *Machine) consume(ts ...*Tensor) {
	for _, t := range ts {
		if t != nil && t.temp {
			m.own(t)
			m.release(t)
		}
	}
}

// Let binds a name to t and returns t, releasing what the name held before.
// Binding nil is binding None.
func (f *Frame) Let(name string, t *Tensor) *Tensor {
	if t != nil {
		if t.temp {
			f.own(t)
		} else {
			f.retain(t)
		}
	}
	for i := range f.names {
		if f.names[i].name == name {
			if old := f.names[i].t; old != nil {
				f.release(old)
			}
			f.names[i].t = t
			return t
		}
	}
	f.names = append(f.names, local{name, t})
	return t
}

// Del unbinds names: Python's del.
func (f *Frame) Del(names ...string) {
	for _, name := range names {
		f.Let(name, nil)
	}
}

// Drop releases a temporary nobody uses.
func (f *Frame) Drop(ts ...*Tensor) { f.consume(ts...) }

// Call runs a module's forward on its inputs, which stay alive until it
// returns. The results are temporaries.
func (f *Frame) Call(mod *Module, in ...*Tensor) []*Tensor {
	if mod.Recompute != KeepAll && f.pass == Forward && !f.Evaluating {
		return f.Checkpoint(mod.Recompute == Reentrant, mod, in...)
	}
	return f.invoke(mod, mod.Forward, in)
}

// Call1 is Call for a module with one result.
func (f *Frame) Call1(mod *Module, in ...*Tensor) *Tensor { return f.Call(mod, in...)[0] }

// Func runs a plain Python function in a frame of its own.
func (f *Frame) Func(fn func(f *Frame, in ...*Tensor) []*Tensor, in ...*Tensor) []*Tensor {
	return f.invoke(f.module, fn, in)
}

func (f *Frame) invoke(mod *Module, fn func(f *Frame, in ...*Tensor) []*Tensor, in []*Tensor) []*Tensor {
	held := f.hold(in)
	g := f.push(mod)
	out := fn(g, in...)
	for i, t := range out {
		if t != nil && !t.temp {
			out[i] = f.alias(t)
		} else if t != nil {
			f.own(t)
		}
	}
	f.pop(g)
	for i, t := range in {
		if held&(1<<i) != 0 {
			f.release(t)
		}
	}
	for _, t := range out {
		if t != nil {
			f.produce(t)
		}
	}
	return out
}

// hold takes over the temporaries among a call's arguments for its duration
// and says which they were.
func (f *Frame) hold(in []*Tensor) uint64 {
	var held uint64
	for i, t := range in {
		if t != nil && t.temp {
			f.own(t)
			held |= 1 << i
		}
	}
	return held
}

func (m *Machine) push(mod *Module) *Frame {
	if m.depth == len(m.frames) {
		m.frames = append(m.frames, &Frame{Machine: m})
	}
	g := m.frames[m.depth]
	m.depth++
	g.module, g.names, g.temps0 = mod, g.names[:0], len(m.temps)
	if mod != nil {
		m.module = mod.index
	}
	return g
}

func (m *Machine) pop(g *Frame) {
	if len(m.temps) > g.temps0 {
		panic("graph: " + m.Describe(m.temps[len(m.temps)-1].storage) + " was computed and never used")
	}
	m.unwind(g)
}

// unwind releases g's names and returns to its caller.
func (m *Machine) unwind(g *Frame) {
	for _, l := range g.names {
		if l.t != nil {
			m.release(l.t)
		}
	}
	g.names = g.names[:0]
	m.depth--
	if m.depth > 0 {
		if mod := m.frames[m.depth-1].module; mod != nil {
			m.module = mod.index
		}
	}
}

// Run executes body as a script's top-level frame and returns when it does;
// its names die then.
func (m *Machine) Run(body func(f *Frame)) {
	g := m.push(nil)
	body(g)
	m.pop(g)
}

// Open starts a frame that lives until Close: a training loop's own names
// survive from one step to the next.
func (m *Machine) Open() *Frame { return m.push(nil) }

// NoGrad runs body under torch.no_grad.
func (f *Frame) NoGrad(body func()) {
	old := f.noGrad
	f.noGrad = true
	body()
	f.noGrad = old
}

// EnableGrad runs body under torch.enable_grad.
func (f *Frame) EnableGrad(body func()) {
	old := f.noGrad
	f.noGrad = false
	body()
	f.noGrad = old
}

// Own takes a temporary's reference for the caller, who gives it back with
// Forget: how a returned object keeps its tensors.
func (f *Frame) Own(t *Tensor) *Tensor {
	if t.temp {
		f.own(t)
		return t
	}
	return f.alias(t)
}

// Give turns a reference taken by Own, Keep or Make into a temporary of the
// frame.
func (f *Frame) Give(t *Tensor) *Tensor { return f.produce(t) }
