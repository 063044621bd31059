package graph

var splitRule = &Rule{Name: "split", Source: "torch/csrc/autograd/FunctionsManual.cpp:split_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	var missing []*Tensor // an output nobody used counts as zeros
	for _, g := range dOut {
		if g == nil {
			missing = append(missing, m.alloc(n.attrs.Shape.With(int(n.attrs.I), n.attrs.J), n.attrs.DType))
		}
	}
	g := m.alloc(n.attrs.Shape, n.attrs.DType)
	for _, t := range missing {
		m.release(t)
	}
	return Grads{g}
}}

// Split is t.split(t.size(dim)/parts, dim) into at most three equal parts:
// views of one node, whose backward joins their gradients.
func (f *Frame) Split(t *Tensor, parts int64, dim int) []*Tensor {
	n := f.record(splitRule, t)
	at := t.Shape.index(dim)
	size := t.Shape.D[at] / parts
	if n != nil {
		n.attrs = Attrs{I: int64(at), J: size, Shape: t.Shape, DType: t.DType}
	}
	out := make([]*Tensor, parts)
	for i := range out {
		v := f.alias(t)
		v.Shape, v.view = t.Shape.With(at, size), true
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
