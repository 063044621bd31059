package graph

var splitRule = &Rule{Name: "split", Source: "torch/csrc/autograd/FunctionsManual.cpp:split_with_sizes_backward"}

// Split is t.split(t.size(dim)/parts, dim) into at most three equal parts.
func (f *Frame) Split(t *Tensor, parts int64, dim int) []*Tensor {
	sizes := make([]int64, parts)
	for i := range sizes {
		sizes[i] = t.Shape.At(dim) / parts
	}
	return f.SplitSizes(t, dim, sizes...)
}

// SplitSizes is t.split(sizes, dim) into at most three parts: views of one
// node, whose backward joins their gradients.
func (f *Frame) SplitSizes(t *Tensor, dim int, sizes ...int64) []*Tensor {
	n := f.record(splitRule, t)
	m, shape, d := f.Machine, t.Shape, t.DType
	if n != nil {
		n.apply = func(_ *Node, dOut []*Tensor) Grads { return m.joinParts(dOut, sizes, dim, shape, d) }
	}
	out := make([]*Tensor, len(sizes))
	for i := range out {
		v := f.alias(t)
		v.Shape, v.view = shape.With(dim, sizes[i]), true
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

// joinParts joins the gradients of parts; a part nobody used counts as zeros.
func (m *Machine) joinParts(dOut []*Tensor, sizes []int64, dim int, shape Dims, d DType) Grads {
	var missing []*Tensor
	for i, g := range dOut {
		if g == nil {
			missing = append(missing, m.alloc(shape.With(dim, sizes[i]), d))
		}
	}
	g := m.allocFormat(shape, d, allChannelsLast(dOut)) // at::cat of the parts
	m.letGo(missing...)
	return Grads{g}
}
