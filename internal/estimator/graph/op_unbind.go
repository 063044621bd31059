package graph

var unbindRule = &Rule{Name: "unbind", Source: "FunctionsManual.cpp:unbind_backward"}

// Unbind is t.unbind(0) of a tensor with at most three rows.
func (f *Frame) Unbind(t *Tensor) []*Tensor { return f.UnbindAt(t, 0) }

// UnbindAt is t.unbind(dim): views of one node, whose backward stacks their
// gradients. A row nobody used counts as zeros.
func (f *Frame) UnbindAt(t *Tensor, dim int) []*Tensor {
	n := f.record(unbindRule, t)
	m, shape, d := f.Machine, t.Shape, t.DType
	dim = shape.index(dim)
	row := shape.without(dim)
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
	out := make([]*Tensor, shape.D[dim])
	for i := range out {
		v := f.alias(t)
		v.Shape, v.Stride, v.view = row, t.Stride.without(dim), true
		v.node, v.nr, v.leaf, v.NeedsGrad = nil, 0, nil, false
		f.output(n, v, int16(i))
		out[i] = v
	}
	f.consume(t)
	for _, v := range out {
		f.produce(v)
	}
	return out
}
