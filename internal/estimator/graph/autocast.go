package graph

// autocast is torch.autocast: while it is on, matrix products compute in a
// 16-bit type and some functions in fp32, and the casts of trained fp32 leaves
// are kept until the outermost autocast ends
// (aten/src/ATen/autocast_mode.cpp@v2.6.0).
type autocast struct {
	on    bool
	dtype DType
	depth int
	run   int32   // which outermost autocast this is: casts of another one do not count
	casts []*Leaf // leaves whose cast is held
}

// Autocast runs body with matrix products in d.
func (f *Frame) Autocast(d DType, body func()) {
	old := f.autocast
	if old.depth == 0 {
		f.openCasts()
	}
	f.autocast.on, f.autocast.dtype, f.autocast.depth = true, d, old.depth+1
	body()
	casts := f.autocast.casts
	f.autocast = old
	f.autocast.casts = casts
	if old.depth == 0 {
		f.clearCasts()
	}
}

// NoAutocast runs body under torch.autocast(enabled=False).
func (f *Frame) NoAutocast(body func()) {
	on := f.autocast.on
	f.autocast.on = false
	body()
	f.autocast.on = on
}

// openCasts begins an outermost autocast, whose cache is empty.
func (m *Machine) openCasts() {
	m.epoch++
	m.autocast.run, m.autocast.casts = m.epoch, nil
}

// clearCasts empties the cache when the outermost autocast ends.
func (m *Machine) clearCasts() {
	for _, l := range m.autocast.casts {
		m.release(l.cast)
		l.cast = nil
	}
	m.autocast.casts = nil
}

// Autocasting returns the type autocast computes in, and whether it is on.
func (m *Machine) Autocasting() (DType, bool) { return m.autocast.dtype, m.autocast.on }

// lower gives the operand a matrix product really sees: t itself, or its cast
// to autocast's type. The result is owned by the caller.
func (m *Machine) lower(t *Tensor) *Tensor {
	if t == nil {
		return nil
	}
	if !m.autocast.on || !t.DType.Floating() || t.DType == m.autocast.dtype {
		return m.alias(t)
	}
	cached := t.DType == F32 && t.NeedsGrad && t.leaf != nil && !t.view
	if cached && t.leaf.cast != nil && t.leaf.castRun == m.autocast.run {
		return m.alias(t.leaf.cast)
	}
	c := m.cast(t, m.autocast.dtype)
	if cached {
		t.leaf.cast, t.leaf.castRun = c, m.autocast.run
		m.autocast.casts = append(m.autocast.casts, t.leaf)
		return m.alias(c)
	}
	return c
}

// raise gives the operand of a function that autocast runs in fp32.
func (m *Machine) raise(t *Tensor) *Tensor {
	if t == nil {
		return nil
	}
	if !m.autocast.on || !t.DType.Floating() || t.DType == F32 {
		return m.alias(t)
	}
	return m.cast(t, F32)
}

var toCopy = &Rule{
	Name: "_to_copy", Source: "tools/autograd/derivatives.yaml:_to_copy",
	Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		return Grads{m.allocLike(dOut[0], n.attrs.DType)}
	},
}

// cast is t.to(d) with d different from t's type: an owned copy.
func (m *Machine) cast(t *Tensor, d DType) *Tensor {
	n := m.record(toCopy, t)
	if n != nil {
		n.attrs.DType = t.DType
	}
	r := m.resultLike(t.Shape, d, t) // infer_dense_strides
	m.output(n, r, 0)
	return r
}

// To is tensor.to(dtype): the tensor itself when it has that type already.
func (f *Frame) To(t *Tensor, d DType) *Tensor {
	if t.DType == d {
		return f.pass1(t)
	}
	r := f.cast(t, d)
	f.consume(t)
	return f.produce(r)
}

// pass1 hands an argument through as a result.
func (f *Frame) pass1(t *Tensor) *Tensor {
	if t.temp {
		return t
	}
	return f.produce(f.alias(t))
}
