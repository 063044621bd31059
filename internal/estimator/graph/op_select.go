package graph

// Elements chosen by a boolean mask (aten/src/ATen/native/TensorAdvancedIndexing.cpp,
// aten/src/ATen/native/cuda/Indexing.cu, IndexKernel.cpp). Every element is
// taken to be chosen.

var (
	nonzeroRule    = &Rule{Name: "nonzero", Source: "aten/src/ATen/native/cuda/Nonzero.cu"}
	maskIndexRule  = &Rule{Name: "index", Source: "FunctionsManual.cpp:index_backward; aten/src/ATen/native/cuda/Indexing.cu:index_put_with_sort_kernel", Backward: maskIndexBackward}
	maskedFromRule = &Rule{Name: "masked_scatter", Source: "FunctionsManual.cpp:masked_scatter_backward; aten/src/ATen/native/cuda/IndexKernel.cpp", Backward: maskedFromBackward}
	totalRule      = &Rule{Name: "sum", Source: "derivatives.yaml:sum", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		v := m.alias(dOut[0])
		v.Shape, v.Stride, v.view = n.attrs.Shape, Dims{N: n.attrs.Shape.N}, true
		return Grads{v}
	}}
)

// nonzero is where a mask is true: a row of int64 for each dimension, owned by
// the caller.
func (m *Machine) nonzero(mask Dims) *Tensor {
	rule := m.rule
	m.rule = nonzeroRule
	m.scratch(512, Temporaries)
	at := m.alloc(D(int64(mask.N), mask.Numel()), I64)
	m.rule = rule
	return at
}

// MaskIndex is x[mask], with a mask over x's leading dimensions. It keeps the
// mask.
func (f *Frame) MaskIndex(x, mask *Tensor) *Tensor {
	n := f.record(maskIndexRule, x)
	if n != nil {
		n.attrs.Shape = x.Shape
	}
	f.save(n, mask)
	at := f.nonzero(mask.Shape)
	shape := Dims{N: x.Shape.N - mask.Shape.N + 1}
	shape.D[0] = mask.Numel()
	copy(shape.D[1:], x.Shape.D[mask.Shape.N:x.Shape.N])
	out := f.alloc(shape, x.DType)
	f.output(n, out, 0)
	f.release(at)
	f.consume(x)
	return f.produce(out)
}

// maskIndexBackward puts rows back by number: numbers are made of the indices
// of each dimension and sorted.
func maskIndexBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	mask := n.saved[0].Shape
	g := m.alloc(n.attrs.Shape, dOut[0].DType)
	at := m.nonzero(mask)
	count := D(mask.Numel())
	var linear *Tensor
	for range mask.N {
		wrapped := m.alloc(count, I64)
		scaled := m.alloc(count, I64)
		m.release(wrapped)
		if linear == nil {
			linear = scaled
			continue
		}
		m.release(scaled) // added in place
	}
	m.release(at)
	sorted, original := m.alloc(count, I64), m.alloc(count, I64)
	positions := m.alloc(count, I64)
	m.scratch(m.cubPairsBytes(mask.Numel(), mask.Numel()-1), Temporaries)
	m.letGo(positions, original, sorted, linear)
	return Grads{g}
}

// singleTile is how many pairs of int64 one block sorts alone, without memory
// (cub's tuning: 256 threads with 9 of them each).
const singleTile = 256 * 9

// cubPairsBytes is cubSortBytes for any number of pairs.
func (m *Machine) cubPairsBytes(count, largest int64) int64 {
	if count <= singleTile {
		return 1
	}
	return m.cubSortBytes(count, largest)
}

// ScatterZeros is zeros(mask.shape).masked_scatter(mask, x).
func (f *Frame) ScatterZeros(mask, x *Tensor) *Tensor {
	f.rule = emptyRule
	zeros := f.alloc(mask.Shape, x.DType)
	n := f.record(maskedFromRule, x)
	f.save(n, mask)
	f.rule = maskedFromRule
	out := f.alloc(mask.Shape, x.DType)
	before := f.alloc(mask.Shape, I64)
	f.scanScratch(mask.Numel(), I64)
	f.letGo(before, zeros)
	f.output(n, out, 0)
	f.consume(x)
	return f.produce(out)
}

func maskedFromBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	at := m.nonzero(n.saved[0].Shape)
	g := m.alloc(n.in[0].meta.Shape, dOut[0].DType)
	m.release(at)
	return Grads{g}
}

// Total is x.sum(), of which gradients are wanted.
func (f *Frame) Total(x *Tensor) *Tensor {
	n := f.record(totalRule, x)
	if n != nil {
		n.attrs.Shape = x.Shape
	}
	out := f.alloc(D(), x.DType)
	f.reduceScratch(reductionOf(x, [MaxDims]bool{}))
	f.output(n, out, 0)
	f.consume(x)
	return f.produce(out)
}

// TotalDim is x.sum(dim), of which gradients are wanted: they are expanded.
func (f *Frame) TotalDim(x *Tensor, dim int) *Tensor {
	n := f.record(totalRule, x)
	if n != nil {
		n.attrs.Shape = x.Shape
	}
	at := x.Shape.index(dim)
	var kept [MaxDims]bool
	shape := Dims{}
	for i := range int(x.Shape.N) {
		if kept[i] = i != at; kept[i] {
			shape.D[shape.N] = x.Shape.D[i]
			shape.N++
		}
	}
	out := f.alloc(shape, x.DType)
	f.reduceScratch(reductionOf(x, kept))
	f.output(n, out, 0)
	f.consume(x)
	return f.produce(out)
}

var logSigmoidRule = &Rule{Name: "log_sigmoid_forward", Source: "derivatives.yaml:log_sigmoid_forward", Backward: likeGrad}

// LogSigmoid is F.logsigmoid: it keeps its input; on CUDA its buffer is empty.
func (f *Frame) LogSigmoid(x *Tensor) *Tensor { return f.unary(logSigmoidRule, x, true, false) }
