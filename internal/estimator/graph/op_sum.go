package graph

var sumDimRule = &Rule{Name: "sum", Source: "FunctionsManual.cpp:sum_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	v := m.alias(dOut[0]) // unsqueezed and expanded
	at := int(n.attrs.I)
	if v.Shape.N < n.attrs.Shape.N {
		v.Shape.N, v.Stride.N = v.Shape.N+1, v.Stride.N+1
		copy(v.Shape.D[at+1:], dOut[0].Shape.D[at:MaxDims-1])
		copy(v.Stride.D[at+1:], dOut[0].Stride.D[at:MaxDims-1])
	}
	v.Shape, v.view = n.attrs.Shape, true
	v.Stride.D[at] = 0
	return Grads{v}
}}

// SumOver is x.sum(dim), kept with size 1 or dropped; in fp32 under autocast.
func (f *Frame) SumOver(x *Tensor, dim int, keep bool) *Tensor {
	n := f.record(sumDimRule, x)
	dim = x.Shape.index(dim)
	d := x.DType
	if f.autocast.on {
		d = F32
	}
	if n != nil {
		n.attrs.Shape, n.attrs.I = x.Shape, int64(dim)
	}
	shape := x.Shape.With(dim, 1)
	if !keep {
		shape = x.Shape.without(dim)
	}
	out := f.alloc(shape, d)
	var kept [MaxDims]bool
	for i := range int(x.Shape.N) {
		kept[i] = i != dim
	}
	f.reduceScratch(reductionOf(x, kept))
	f.output(n, out, 0)
	f.consume(x)
	return f.produce(out)
}

var divideRule = &Rule{Name: "div", Source: "FunctionsManual.cpp:div_tensor_other_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	var g Grads
	x, y := n.saved[0], n.saved[1]
	if n.wants(1) { // "other" before "self": -grad * ((self / other) / other)
		wide := promote(x.DType, y.DType)
		once := m.allocLike(x, wide)
		twice := m.allocLike(x, wide)
		negative := m.allocLike(dOut[0], dOut[0].DType)
		g[1] = m.allocLike(dOut[0], promote(negative.DType, wide))
		m.letGo(negative, twice, once)
	}
	if n.wants(0) {
		g[0] = m.resultLike(dOut[0].Shape, promote(dOut[0].DType, y.DType), dOut[0])
	}
	return g
}}

// DivInPlace is x /= y of a y that broadcasts: a clone of x is kept, and y.
func (f *Frame) DivInPlace(x, y *Tensor) *Tensor {
	n := f.record(divideRule, x, y)
	if n != nil {
		before := f.allocLike(x, x.DType)
		f.save(n, before, y)
		f.release(before)
	}
	return f.produce(f.overwrite(n, x, y))
}
