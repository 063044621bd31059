package graph

// Matrix products (aten/src/ATen/native/cuda/Blas.cpp). Operands are cast to
// autocast's type, the last argument first, as its wrapper evaluates them.

var linearRule = &Rule{Name: "linear", Product: true, Source: "aten/src/ATen/native/Linear.cpp; FunctionsManual.cpp:mm_mat1_backward", Backward: linearBackward}

// Linear is F.linear: x times the transposed weight, and a bias. The input is
// kept when the weight needs a gradient, the weight when the input does; under
// autocast it is their casts that are kept.
func (f *Frame) Linear(x, weight, bias *Tensor) *Tensor {
	f.rule = linearRule
	bs := f.lower(bias)
	ws := f.lower(weight)
	xs := f.lower(x)
	f.consume(x)
	var out *Tensor
	if f.linearFunction {
		out = f.linearAsFunction(xs, ws, bs)
	} else if bs != nil && !xs.Contiguous() && xs.Shape.N > 2 { // matmul, then the bias in place
		out = f.AddInPlace(f.linear(xs, ws, nil), bs)
	} else {
		out = f.linear(xs, ws, bs)
	}
	f.letGo(xs, ws, bs)
	return out
}

// linear is Linear of tensors in the type they are multiplied in, which the
// caller holds. What does not lie in order is copied into rows first.
func (f *Frame) linear(xs, ws, bs *Tensor) *Tensor {
	flat := f.alias(xs)
	if !xs.Contiguous() && xs.Shape.N > 2 {
		f.release(flat)
		flat = f.own1(f.Reshape(xs, -1, xs.Shape.At(-1)))
	}
	n := f.recordLinear(flat, ws, bs)
	f.saveOperands(n, flat, f.transposed(ws))
	out := f.alloc(xs.Shape.With(-1, ws.Shape.D[0]), xs.DType)
	f.product(bs != nil)
	f.multiplies(xs.DType, 1, flat.Numel()/flat.Shape.At(-1), flat.Shape.At(-1), ws.Shape.D[0])
	f.output(n, out, 0)
	if n != nil {
		n.attrs.Shape = flat.Shape
	}
	f.release(flat)
	return f.produce(out)
}

// recordLinear orders the inputs as their gradients arrive: the bias's at once,
// the others through the nodes of a view that flattens the input and of the
// weight's transpose, whichever was recorded last first. With a bias the
// transpose is recorded after the view, without one before it.
func (f *Frame) recordLinear(x, weight, bias *Tensor) *Node {
	if bias != nil && x.Shape.N > 2 {
		return f.record(linearRule, bias, weight, x)
	}
	return f.record(linearRule, bias, x, weight)
}

// saveOperands keeps each factor whose partner needs a gradient.
func (f *Frame) saveOperands(n *Node, a, b *Tensor) {
	if f.needs(b) {
		f.save(n, a)
	}
	if f.needs(a) {
		f.save(n, b)
	}
}

// product is the workspace of a two-dimensional product, with a bias or not.
func (m *Machine) product(bias bool) {
	if bias {
		m.gemmLt()
	} else {
		m.gemm()
	}
}

// letGo releases owned tensors; nil is none.
func (m *Machine) letGo(ts ...*Tensor) {
	for _, t := range ts {
		if t != nil {
			m.release(t)
		}
	}
}

// own1 takes a temporary's reference for the caller.
func (f *Frame) own1(t *Tensor) *Tensor {
	f.own(t)
	return t
}

// folded reports whether foldAhead has made the gradient's rows.
func (m *Machine) folded(n *Node, g *Tensor) bool { return g.Shape.N == 2 && n.attrs.Shape.N > 2 }

// foldAhead makes the rows of a gradient that must be copied for it, where the
// product's factors are yet to be computed again: the view that divides rows has
// a backward of its own, which asks for nothing that was saved.
func (m *Machine) foldAhead(n *Node) {
	g := n.outs[0]
	if r := n.region; r == nil || r.recomputed != nil || len(n.saved) == 0 || g == nil || n.attrs.Shape.N <= 2 {
		return
	}
	width := g.Shape.At(-1)
	rows := m.reshaped(g, D(g.Numel()/width, width))
	if rows.storage == g.storage {
		m.release(rows)
		return
	}
	m.release(g)
	n.outs[0] = rows
}

// linearBackward: without a bias mm's, the weight's gradient first ("mat2"
// before "self"); with one addmm's, the input's first ("mat1" before "mat2"),
// then the bias's: the gradient itself, to be summed over rows.
func linearBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	var g Grads
	width := dOut[0].Shape.At(-1)
	rows := m.reshaped(dOut[0], D(dOut[0].Numel()/width, width))
	if rows.storage != dOut[0].storage || m.folded(n, dOut[0]) { // a view's backward of its own made it
		m.release(dOut[0])
		dOut[0] = nil
	}
	biased, x, w := n.in[0].meta != nil, 1, 2
	if biased && n.attrs.Shape.N > 2 {
		x, w = 2, 1
	}
	inner := n.attrs.Shape.At(-1)
	weight := func() {
		if n.wants(w) {
			g[w] = m.allocLike(n.in[w].meta, rows.DType)
			g[w].view = true // the transpose of what was computed
			m.gemm()
			m.multiplies(rows.DType, 1, width, rows.Shape.D[0], inner)
		}
	}
	if !biased {
		weight()
	}
	if n.wants(x) {
		g[x] = m.alloc(n.attrs.Shape, rows.DType)
		g[x].view = n.attrs.Shape.N > 2
		m.gemm()
		m.multiplies(rows.DType, 1, rows.Shape.D[0], width, inner)
	}
	if biased {
		weight()
	}
	if n.wants(0) {
		g[0] = m.alias(rows)
	}
	m.release(rows)
	return g
}

var addmmRule = &Rule{Name: "addmm", Product: true, Source: "derivatives.yaml:addmm", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	var g Grads
	for i, shape := range []Dims{D(n.attrs.Shape.D[0], n.attrs.Shape.D[1]), D(n.attrs.Shape.D[1], n.attrs.Shape.D[2])} {
		if n.wants(i) {
			g[i] = m.alloc(shape, dOut[0].DType)
			m.gemm()
			m.multiplies(dOut[0].DType, 1, n.attrs.Shape.D[0], n.attrs.Shape.D[1], n.attrs.Shape.D[2])
		}
	}
	if n.wants(2) {
		g[2] = m.alias(dOut[0])
	}
	return g
}}

// Addmm is torch.addmm(bias, a, b) with a vector for a bias.
func (f *Frame) Addmm(bias, a, b *Tensor) *Tensor {
	f.rule = addmmRule
	bs := f.lower(b)
	as := f.lower(a)
	cs := f.lower(bias)
	f.consume(bias, a, b)
	n := f.record(addmmRule, as, bs, cs)
	f.saveOperands(n, as, bs)
	if n != nil {
		n.attrs.Shape = D(as.Shape.D[0], as.Shape.D[1], bs.Shape.D[1])
	}
	out := f.alloc(D(as.Shape.D[0], bs.Shape.D[1]), as.DType)
	f.gemmLt()
	f.multiplies(as.DType, 1, as.Shape.D[0], as.Shape.D[1], bs.Shape.D[1])
	f.output(n, out, 0)
	f.letGo(as, bs, cs)
	return f.produce(out)
}

var bmmRule = &Rule{Name: "bmm", Product: true, Source: "derivatives.yaml:bmm", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	var g Grads
	b, rows, inner, cols := n.attrs.Shape.D[0], n.attrs.Shape.D[1], n.attrs.Shape.D[2], n.attrs.Shape.D[3]
	for i := 1; i >= 0; i-- { // "mat2" before "self"
		if !n.wants(i) {
			continue
		}
		shape := D(b, rows, inner)
		if i == 1 {
			shape = D(b, inner, cols)
		}
		g[i] = m.alloc(shape, dOut[0].DType)
		m.bgemm(dOut[0])
		m.multiplies(dOut[0].DType, b, rows, inner, cols)
	}
	return g
}}

// bmm is a batched product of [b, n, m] and [b, m, k].
func (f *Frame) bmm(a, b *Tensor) *Tensor {
	n := f.record(bmmRule, a, b)
	f.saveOperands(n, a, b)
	if n != nil {
		n.attrs.Shape = D(a.Shape.D[0], a.Shape.D[1], a.Shape.D[2], b.Shape.D[2])
	}
	out := f.alloc(D(a.Shape.D[0], a.Shape.D[1], b.Shape.D[2]), a.DType)
	f.bgemm(a, b)
	f.multiplies(a.DType, a.Shape.D[0], a.Shape.D[1], a.Shape.D[2], b.Shape.D[2])
	f.output(n, out, 0)
	f.consume(a, b)
	return f.produce(out)
}

// Bmm is torch.bmm of [b, n, m] and [b, m, k].
func (f *Frame) Bmm(a, b *Tensor) *Tensor {
	f.rule = bmmRule
	bs := f.lower(b)
	as := f.lower(a)
	out := f.bmm(f.produce(as), f.produce(bs))
	f.consume(a, b)
	return out
}

// bgemm is a batched product's memory: operands whose layout no leading
// dimension describes are copied (prepare_batch_matrix_for_cublas).
func (m *Machine) bgemm(operands ...*Tensor) {
	var copies []*Tensor
	for _, t := range operands {
		s := t.Stride.D
		if s[2] != 1 && s[1] != 1 && !t.Contiguous() {
			copies = append(copies, m.alloc(t.Shape, t.DType))
		}
	}
	m.gemm()
	m.letGo(copies...)
}

// Matmul is torch.matmul of two tensors whose leading dimensions broadcast: both
// are folded to three dimensions, copied where no view will do
// (aten/src/ATen/native/LinearAlgebra.cpp:_matmul_impl). Arguments and their
// casts live until it returns.
func (f *Frame) Matmul(a, b *Tensor) *Tensor {
	f.rule = bmmRule
	bs := f.lower(b)
	as := f.lower(a)
	f.retain(as) // the caller's arguments, and autocast's wrapper, hold on to the end
	f.retain(bs)
	lead, other := as.Shape, bs.Shape
	lead.N, other.N = lead.N-2, other.N-2
	lead = broadcast(lead, other)
	fold := func(t *Tensor) *Tensor {
		rows, cols := t.Shape.At(-2), t.Shape.At(-1)
		return f.Reshape(f.Expand(f.produce(t), append(lead.Slice(), rows, cols)...), lead.Numel(), rows, cols)
	}
	shape := D(append(lead.Slice(), as.Shape.At(-2), bs.Shape.At(-1))...)
	left := fold(as)
	right := fold(bs)
	out := f.View(f.bmm(left, right), shape.Slice()...)
	f.letGo(as, bs)
	f.consume(a, b)
	return out
}

var baddbmmRule = &Rule{Name: "baddbmm", Product: true, Source: "derivatives.yaml:baddbmm", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	var g Grads
	b, rows, inner, cols := n.attrs.Shape.D[0], n.attrs.Shape.D[1], n.attrs.Shape.D[2], n.attrs.Shape.D[3]
	for i, shape := range []Dims{D(b, rows, inner), D(b, inner, cols)} {
		if !n.wants(i) {
			continue
		}
		product := m.alloc(shape, dOut[0].DType)
		m.bgemm(dOut[0])
		m.multiplies(dOut[0].DType, b, rows, inner, cols)
		g[i] = m.allocLike(product, product.DType) // times alpha
		m.release(product)
	}
	return g
}}

// Baddbmm is bias.baddbmm(a, b, alpha=number) of [b, n, m] and [b, m, k] for a
// bias without gradient.
func (f *Frame) Baddbmm(bias, a, b *Tensor) *Tensor {
	f.rule = baddbmmRule
	bs := f.lower(b)
	as := f.lower(a)
	cs := f.lower(bias)
	f.consume(bias, a, b)
	n := f.record(baddbmmRule, as, bs)
	f.saveOperands(n, as, bs)
	if n != nil {
		n.attrs.Shape = D(as.Shape.D[0], as.Shape.D[1], as.Shape.D[2], bs.Shape.D[2])
	}
	out := f.alloc(D(as.Shape.D[0], as.Shape.D[1], bs.Shape.D[2]), as.DType)
	f.bgemm(as, bs)
	f.multiplies(as.DType, as.Shape.D[0], as.Shape.D[1], as.Shape.D[2], bs.Shape.D[2])
	f.output(n, out, 0)
	f.letGo(as, bs, cs)
	return f.produce(out)
}

var mmRule = &Rule{Name: "mm", Product: true, Source: "FunctionsManual.cpp:mm_mat2_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	var g Grads
	if n.wants(1) { // "mat2" before "self"
		g[1] = m.allocLike(n.in[1].meta, dOut[0].DType)
		g[1].view = true
		m.gemm()
		m.multiplies(dOut[0].DType, 1, n.attrs.Shape.D[1], n.attrs.Shape.D[0], dOut[0].Shape.D[1])
	}
	if n.wants(0) {
		g[0] = m.alloc(n.attrs.Shape, dOut[0].DType)
		m.gemm()
		m.multiplies(dOut[0].DType, 1, n.attrs.Shape.D[0], dOut[0].Shape.D[1], n.attrs.Shape.D[1])
	}
	return g
}}

// MatmulMatrix is torch.matmul of a tensor of any number of dimensions and a
// matrix: the first is folded to two.
func (f *Frame) MatmulMatrix(a, b *Tensor) *Tensor {
	f.rule = mmRule
	bs := f.lower(b)
	as := f.lower(a)
	f.retain(as)
	f.retain(bs)
	shape := as.Shape.With(-1, bs.Shape.D[1])
	left := f.own1(f.Reshape(f.produce(as), -1, as.Shape.At(-1)))
	n := f.record(mmRule, left, bs)
	f.saveOperands(n, left, bs)
	if n != nil {
		n.attrs.Shape = left.Shape
	}
	out := f.alloc(D(left.Shape.D[0], bs.Shape.D[1]), left.DType)
	f.gemm()
	f.multiplies(left.DType, 1, left.Shape.D[0], left.Shape.D[1], bs.Shape.D[1])
	f.output(n, out, 0)
	f.letGo(left, bs)
	result := f.View(f.produce(out), shape.Slice()...)
	result.view = false // _unsafe_view: autograd knows no view of it
	f.letGo(as, bs)
	f.consume(a, b)
	return result
}
