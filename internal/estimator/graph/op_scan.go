package graph

// Functions that recurrent layers are written with where no kernel of theirs is
// installed (tools/autograd/derivatives.yaml; aten/src/ATen/native/BatchLinearAlgebra.cpp).

var softplusRule = &Rule{Name: "softplus", Source: "derivatives.yaml:softplus", Backward: likeGrad}

// Softplus is F.softplus, in fp32 under autocast: it keeps its input.
func (f *Frame) Softplus(x *Tensor) *Tensor { return f.inFP32(softplusRule, x, true, false) }

// PadDim is F.pad of one dimension by so many at its end; by none, a copy.
func (f *Frame) PadDim(t *Tensor, dim int, by int64) *Tensor {
	n := f.record(padRule, t)
	if n != nil {
		n.attrs.Shape = t.Shape
	}
	r := f.alloc(t.Shape.With(dim, t.Shape.At(dim)+by), t.DType)
	if by == 0 {
		r.Stride = denseIn(t)
	}
	f.output(n, r, 0)
	f.consume(t)
	return f.produce(r)
}

var cumsumDimRule = &Rule{Name: "cumsum", Source: "FunctionsManual.cpp:cumsum_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	flipped := m.allocLike(dOut[0], dOut[0].DType)
	summed := m.allocLike(flipped, flipped.DType)
	g := m.allocLike(summed, summed.DType)
	m.letGo(summed, flipped)
	return Grads{g}
}}

// CumsumLast is x.cumsum(-1) of rows in fp32, of which gradients may be wanted.
// What does not lie in order is copied first.
func (f *Frame) CumsumLast(x *Tensor) *Tensor {
	n := f.record(cumsumDimRule, x)
	out := f.alloc(x.Shape, x.DType)
	ordered := f.inFormat(x, false)
	f.output(n, out, 0)
	f.release(ordered)
	f.consume(x)
	return f.produce(out)
}

var triangularRule = &Rule{Name: "linalg_solve_triangular", Product: true, Source: "FunctionsManual.cpp:linalg_solve_triangular_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	var g Grads
	a := n.saved[0]
	g[1] = m.triangular(a, dOut[0])
	if n.wants(0) {
		product := m.alloc(a.Shape, a.DType)
		m.gemm()
		m.multiplies(a.DType, a.Numel()/(a.Shape.At(-1)*a.Shape.At(-2)), a.Shape.At(-2), dOut[0].Shape.At(-1), a.Shape.At(-1))
		negative := m.allocLike(product, product.DType)
		m.release(product)
		g[0] = m.alloc(a.Shape, a.DType) // its triangle
		m.release(negative)
	}
	if !n.wants(1) {
		m.release(g[1])
		g[1] = nil
	}
	return g
}}

// SolveTriangular is torch.linalg.solve_triangular of batches of triangular
// matrices a [..., n, n] and right sides b [..., n, k]: the result's columns lie
// in order. It keeps a and the result.
func (f *Frame) SolveTriangular(a, b *Tensor) *Tensor {
	n := f.record(triangularRule, a, b)
	f.save(n, a)
	out := f.triangular(a, b)
	f.output(n, out, 0)
	f.save(n, out)
	f.consume(a, b)
	return f.produce(out)
}

// triangular is the memory of a batched solve: the result, a pointer to every
// matrix on both sides, and cuBLAS's workspace.
func (m *Machine) triangular(a, b *Tensor) *Tensor {
	out := m.alloc(b.Shape, b.DType)
	last := int(out.Shape.N) - 1
	out.Stride.D[last-1], out.Stride.D[last] = 1, out.Shape.D[last-1]
	batch := b.Numel() / (b.Shape.At(-1) * b.Shape.At(-2))
	left, right := m.alloc(D(batch), I64), m.alloc(D(batch), I64)
	m.gemm()
	m.multiplies(a.DType, batch, a.Shape.At(-2), a.Shape.At(-1), b.Shape.At(-1))
	m.letGo(right, left)
	return out
}

// ToContiguous is t.to(d, memory_format=torch.contiguous_format): t itself,
// however it lies, when it has that type already.
func (f *Frame) ToContiguous(t *Tensor, d DType) *Tensor {
	if t.DType == d {
		return f.pass1(t)
	}
	r := f.cast(t, d)
	r.Stride = r.Shape.contiguous()
	f.consume(t)
	return f.produce(r)
}

// ZerosLike is torch.zeros_like: t's layout, no gradient.
func (f *Frame) ZerosLike(t *Tensor) *Tensor {
	f.rule = emptyRule
	return f.produce(f.allocLike(t, t.DType))
}
