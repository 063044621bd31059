package graph

var permuteRule = &Rule{Name: "permute", Source: "derivatives.yaml:permute", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	v := m.alias(dOut[0])
	for i := range int(n.attrs.Shape.N) { // attrs.Shape holds where each dimension went
		at := n.attrs.Shape.D[i]
		v.Shape.D[at], v.Stride.D[at] = dOut[0].Shape.D[i], dOut[0].Stride.D[i]
	}
	v.view = true
	return Grads{v}
}}

// Permute is t.permute(dims...).
func (f *Frame) Permute(t *Tensor, dims ...int) *Tensor {
	shape, stride := t.Shape, t.Stride
	order := Dims{N: t.Shape.N}
	for i, d := range dims {
		at := t.Shape.index(d)
		shape.D[i], stride.D[i], order.D[i] = t.Shape.D[at], t.Stride.D[at], int64(at)
	}
	v := f.viewOf(permuteRule, t, shape, stride)
	if v.node != nil {
		v.node.attrs.Shape = order
	}
	return v
}

var unbindRule = &Rule{Name: "unbind", Source: "FunctionsManual.cpp:unbind_backward"}

// Unbind is t.unbind(0) of a tensor with at most three rows: views of one node,
// whose backward stacks their gradients. A row nobody used counts as zeros.
func (f *Frame) Unbind(t *Tensor) []*Tensor {
	n := f.record(unbindRule, t)
	m, shape, d := f.Machine, t.Shape, t.DType
	row := shape.without(0)
	if n != nil {
		n.apply = func(_ *Node, dOut []*Tensor) Grads {
			var missing []*Tensor
			for _, g := range dOut {
				if g == nil {
					missing = append(missing, m.alloc(row, d))
				}
			}
			g := m.alloc(shape, d)
			m.letGo(missing...)
			return Grads{g}
		}
	}
	out := make([]*Tensor, shape.D[0])
	for i := range out {
		v := f.alias(t)
		v.Shape, v.Stride, v.view = row, t.Stride.without(0), true
		v.node, v.nr, v.leaf, v.NeedsGrad = nil, 0, nil, false
		f.output(n, v, int8(i))
		out[i] = v
	}
	f.consume(t)
	for _, v := range out {
		f.produce(v)
	}
	return out
}
