package graph

var gatherDimRule = &Rule{Name: "gather", Source: "aten/src/ATen/native/TensorAdvancedIndexing.cpp:gather_out"}

// GatherDim is torch.gather: x's entries by the indices, in their shape. x has
// no gradient.
func (f *Frame) GatherDim(x, indices *Tensor) *Tensor {
	f.rule = gatherDimRule
	out := f.alloc(indices.Shape, x.DType)
	f.consume(x, indices)
	return f.produce(out)
}

// IndexLast is x[:, [...]] with a list of n columns, which goes to the card
// first.
func (f *Frame) IndexLast(x *Tensor, n int64) *Tensor {
	f.rule = gatherRule
	columns := f.alloc(D(n), I64)
	out := f.alloc(x.Shape.With(-1, n), x.DType)
	f.release(columns)
	f.consume(x)
	return f.produce(out)
}

var (
	arangeRule = &Rule{Name: "arange", Source: "aten/src/ATen/native/cuda/RangeFactories.cu"}
	emptyRule  = &Rule{Name: "empty", Source: "aten/src/ATen/native/cuda/EmptyTensor.cpp"}
	copyRule   = &Rule{Name: "to", Source: "aten/src/ATen/native/TensorConversions.cpp"}
	padRule    = &Rule{Name: "constant_pad_nd", Source: "FunctionsManual.cpp:constant_pad_nd_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		return Grads{m.alloc(n.attrs.Shape, dOut[0].DType)}
	}}
)

// Arange is torch.arange(n) on the card.
func (f *Frame) Arange(n int64) *Tensor {
	f.rule = arangeRule
	return f.produce(f.alloc(D(n), I64))
}

// Empty is torch.empty, zeros or ones.
func (f *Frame) Empty(d DType, sizes ...int64) *Tensor {
	f.rule = emptyRule
	return f.produce(f.alloc(D(sizes...), d))
}

// Input copies a batch tensor to the card.
func (f *Frame) Input(d DType, sizes ...int64) *Tensor {
	f.rule = copyRule
	old := f.cat
	f.cat = Inputs
	t := f.alloc(D(sizes...), d)
	f.cat = old
	return f.produce(t)
}

// PadLast is F.pad of the last dimension.
func (f *Frame) PadLast(t *Tensor, by int64) *Tensor {
	n := f.record(padRule, t)
	if n != nil {
		n.attrs.Shape = t.Shape
	}
	r := f.alloc(t.Shape.With(-1, t.Shape.At(-1)+by), t.DType)
	f.output(n, r, 0)
	f.consume(t)
	return f.produce(r)
}

var pickRule = &Rule{Name: "index", Source: "FunctionsManual.cpp:index_backward; aten/src/ATen/native/cuda/Indexing.cu:index_put_with_sort_kernel", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	g := m.alloc(n.attrs.Shape, dOut[0].DType)
	wrapped := m.alloc(D(1), I64)
	linear := m.alloc(D(1), I64)
	m.release(wrapped)
	sorted, origin, order := m.alloc(D(1), I64), m.alloc(D(1), I64), m.alloc(D(1), I64)
	sorter := m.alloc(D(1), U8)
	m.letGo(sorter, order, origin, sorted, linear)
	return Grads{g}
}}

// Pick is t[..., [i], ...] with a list of one index, which is put on the card
// and kept: a copy.
func (f *Frame) Pick(t *Tensor, dim int) *Tensor {
	n := f.record(pickRule, t)
	index := f.alloc(D(1), I64)
	out := f.alloc(t.Shape.With(dim, 1), t.DType)
	if n != nil {
		n.attrs.Shape = t.Shape
	}
	f.save(n, index)
	f.release(index)
	f.output(n, out, 0)
	f.consume(t)
	return f.produce(out)
}
