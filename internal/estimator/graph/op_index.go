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

// Pad2D is F.pad of an image by so many pixels at the right and the bottom.
func (f *Frame) Pad2D(t *Tensor, by int64) *Tensor {
	n := f.record(padRule, t)
	if n != nil {
		n.attrs.Shape = t.Shape
	}
	shape := t.Shape.With(-1, t.Shape.At(-1)+by).With(-2, t.Shape.At(-2)+by)
	r := f.allocFormat(shape, t.DType, t.prefersChannelsLast())
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

var indexRowsRule = &Rule{Name: "index", Source: "FunctionsManual.cpp:index_backward; aten/src/ATen/native/cuda/Indexing.cu:index_put_with_sort_kernel", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	g := m.alloc(n.attrs.Shape, dOut[0].DType)
	m.putSorted(dOut[0], n.saved[0].Numel(), n.attrs.Shape.D[0])
	return Grads{g}
}}

// IndexRows is x[indices]: the rows named, in the shape of the indices. It
// keeps those.
func (f *Frame) IndexRows(x, indices *Tensor) *Tensor {
	n := f.record(indexRowsRule, x)
	f.save(n, indices)
	if n != nil {
		n.attrs.Shape = x.Shape
	}
	shape := indices.Shape
	for _, size := range x.Shape.D[1:x.Shape.N] {
		shape.D[shape.N] = size
		shape.N++
	}
	out := f.alloc(shape, x.DType)
	f.output(n, out, 0)
	f.consume(x, indices)
	return f.produce(out)
}

// oneTileSort is up to how many pairs cub sorts in one block, without storage
// worth the name.
const oneTileSort = 2304

// putSorted is the memory of adding rows by sorted indices: what wraps them,
// their place in the table, the rows in order where they are not, and the sort.
func (m *Machine) putSorted(values *Tensor, count, rows int64) {
	long := func() *Tensor { return m.alloc(D(count), I64) }
	wrapped := long()
	linear := long()
	m.release(wrapped)
	if !values.Contiguous() {
		ordered := m.alloc(values.Shape, values.DType)
		defer m.release(ordered)
	}
	sorted, original, positions := long(), long(), long()
	bytes := int64(1)
	if count > oneTileSort {
		bytes = m.cubSortBytes(count, rows)
	}
	m.scratch(bytes, Temporaries)
	m.letGo(positions, original, sorted, linear)
}

var repeatRule = &Rule{Name: "repeat", Source: "aten/src/ATen/native/TensorShape.cpp:repeat"}

// Repeat is x.repeat of a tensor without gradient, to the sizes given.
func (f *Frame) Repeat(x *Tensor, sizes ...int64) *Tensor {
	f.rule = repeatRule
	out := f.alloc(D(sizes...), x.DType)
	f.consume(x)
	return f.produce(out)
}

var indexCopyRule = &Rule{Name: "index_copy", Source: "tools/autograd/derivatives.yaml:index_copy", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	return Grads{m.alloc(n.attrs.Shape, dOut[0].DType)} // index_select of the columns
}}

// IndexCopyZeros is zeros.index_copy_(-1, columns, x) with a row of zeros of so
// many columns for every row of x; copies says that it is index_copy, which
// copies the zeros. The node keeps the columns and x.
func (f *Frame) IndexCopyZeros(x, columns *Tensor, width int64, copies bool) *Tensor {
	f.rule = emptyRule
	shape := x.Shape.With(-1, width)
	out := f.alloc(shape, x.DType)
	n := f.record(indexCopyRule, x)
	if n != nil {
		n.attrs.Shape = x.Shape
	}
	f.save(n, columns, x)
	if copies {
		zeros := out
		out = f.alloc(shape, x.DType)
		f.release(zeros)
	}
	f.output(n, out, 0)
	f.consume(x, columns)
	return f.produce(out)
}

var repeatFirstRule = &Rule{Name: "repeat", Source: "FunctionsManual.cpp:repeat_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	shape := n.attrs.Shape
	folded := m.reshaped(dOut[0], D(append([]int64{n.attrs.I}, shape.Slice()...)...))
	g := m.alloc(shape, dOut[0].DType)
	var kept [MaxDims]bool
	for i := 1; i < int(folded.Shape.N); i++ {
		kept[i] = true
	}
	m.reduceScratch(reductionOf(folded, kept))
	m.release(folded)
	return Grads{g}
}}

// RepeatFirst is x.repeat(times, 1, ...): a copy.
func (f *Frame) RepeatFirst(x *Tensor, times int64) *Tensor {
	n := f.record(repeatFirstRule, x)
	if n != nil {
		n.attrs.Shape, n.attrs.I = x.Shape, times
	}
	out := f.alloc(x.Shape.With(0, times*x.Shape.D[0]), x.DType)
	f.output(n, out, 0)
	f.consume(x)
	return f.produce(out)
}
