package graph

// Functions that build attention masks. They run on tensors without gradient.

var (
	compareRule    = &Rule{Name: "compare", Source: "aten/src/ATen/native/BinaryOps.cpp:comparison_op"}
	logicalRule    = &Rule{Name: "bitwise_and", Source: "aten/src/ATen/native/BinaryOps.cpp"}
	allRule        = &Rule{Name: "all", Source: "aten/src/ATen/native/ReduceOps.cpp:allany_impl"}
	sumRule        = &Rule{Name: "sum", Source: "aten/src/ATen/native/ReduceOps.cpp:sum_out"}
	cumsumRule     = &Rule{Name: "cumsum", Source: "aten/src/ATen/native/cuda/ScanKernels.cpp"}
	maskedFillRule = &Rule{Name: "masked_fill", Source: "aten/src/ATen/native/cuda/TensorFactories.cu"}
	triuRule       = &Rule{Name: "triu", Source: "aten/src/ATen/native/cuda/TriangularOps.cu"}
	gatherRule     = &Rule{Name: "index", Source: "aten/src/ATen/native/TensorAdvancedIndexing.cpp"}
	whereMaskRule  = &Rule{Name: "where", Source: "aten/src/ATen/native/TensorCompare.cpp:where"}
)

// Compare is a comparison of two tensors, or of one with a number when b is
// nil: booleans.
func (f *Frame) Compare(a, b *Tensor) *Tensor { return f.boolean(compareRule, a, b) }

// And is a & b of booleans.
func (f *Frame) And(a, b *Tensor) *Tensor { return f.boolean(logicalRule, a, b) }

// Not is ~a of booleans.
func (f *Frame) Not(a *Tensor) *Tensor { return f.boolean(logicalRule, a, nil) }

func (f *Frame) boolean(r *Rule, a, b *Tensor) *Tensor {
	f.rule = r
	shape, operands := a.Shape, []*Tensor{a}
	if b != nil {
		shape, operands = broadcast(a.Shape, b.Shape), []*Tensor{a, b}
	}
	out := f.resultLike(shape, Bool, operands...)
	f.consume(operands...)
	return f.produce(out)
}

// ofBools is the reduction with a boolean for an accumulator, as all and any
// have (aten/src/ATen/native/cuda/ReduceLogicKernel.cu).
func (r reduction) ofBools() reduction {
	r.accSize = 1
	return r
}

// AllLast is x.all(-1, keepdim=True) of booleans.
func (f *Frame) AllLast(x *Tensor) *Tensor {
	f.rule = allRule
	out := f.alloc(x.Shape.With(-1, 1), Bool)
	var kept [MaxDims]bool
	for i := range int(x.Shape.N) - 1 {
		kept[i] = true
	}
	f.reduceScratch(reductionOf(x, kept).ofBools())
	f.consume(x)
	return f.produce(out)
}

// All is x.all() of booleans.
func (f *Frame) All(x *Tensor) *Tensor {
	f.rule = allRule
	out := f.alloc(D(), Bool)
	f.reduceScratch(reductionOf(x, [MaxDims]bool{}).ofBools())
	f.consume(x)
	return f.produce(out)
}

var (
	absRule     = &Rule{Name: "abs", Source: "aten/src/ATen/native/UnaryOps.cpp"}
	logRule     = &Rule{Name: "log", Source: "aten/src/ATen/native/UnaryOps.cpp"}
	minimumRule = &Rule{Name: "minimum", Source: "aten/src/ATen/native/BinaryOps.cpp"}
)

// Abs is torch.abs of a tensor without gradient.
func (f *Frame) Abs(x *Tensor) *Tensor { return f.fresh(absRule, x) }

// Log is torch.log of a tensor without gradient.
func (f *Frame) Log(x *Tensor) *Tensor { return f.fresh(logRule, x) }

// Minimum is torch.min of two tensors without gradient.
func (f *Frame) Minimum(a, b *Tensor) *Tensor {
	f.rule = minimumRule
	out := f.resultLike(broadcast(a.Shape, b.Shape), promote(a.DType, b.DType), a, b)
	f.consume(a, b)
	return f.produce(out)
}

// Any is x.any() of booleans.
func (f *Frame) Any(x *Tensor) *Tensor { return f.All(x) }

// Sum is x.sum() of booleans, counted in int64.
func (f *Frame) Sum(x *Tensor) *Tensor {
	f.rule = sumRule
	out := f.alloc(D(), I64)
	wide := f.alloc(x.Shape, I64)
	f.reduceScratch(reductionOf(wide, [MaxDims]bool{}))
	f.release(wide)
	f.consume(x)
	return f.produce(out)
}

// Cumsum is x.cumsum(-1): integers and booleans are counted in int64.
func (f *Frame) Cumsum(x *Tensor) *Tensor {
	f.rule = cumsumRule
	d := x.DType
	if !d.Floating() {
		d = I64
	}
	out := f.alloc(x.Shape, d)
	var wide *Tensor
	if d != x.DType {
		wide = f.alloc(x.Shape, d)
	}
	if n := x.Shape.At(-1); n == x.Numel() {
		f.scanScratch(n, d)
	}
	f.letGo(wide)
	f.consume(x)
	return f.produce(out)
}

// scanScratch is the memory of one row's scan alone, which CUB does: blocks of
// 128 threads with 7 elements of 8 bytes each, or 15 smaller ones, leave a
// word to the next, of twice the element's size
// (aten/src/ATen/native/cuda/ScanUtils.cuh;
// cub/agent/single_pass_scan_operators.cuh; measured from 1 to 131072 elements
// of 8 bytes, and for 100 and 2000 of 4).
func (m *Machine) scanScratch(n int64, d DType) {
	const align, lookBack = 256, 32
	block := int64(128 * 7)
	if d.Size() < 8 {
		block = 128 * 15
	}
	m.scratch(roundUp(2*d.Size()*(divUp(n, block)+lookBack), align)+2*align-1, Temporaries)
}

// SumAll is x.sum() of a tensor without gradient.
func (f *Frame) SumAll(x *Tensor) *Tensor {
	f.rule = sumRule
	out := f.alloc(D(), x.DType)
	f.reduceScratch(reductionOf(x, [MaxDims]bool{}))
	f.consume(x)
	return f.produce(out)
}

var maskedFillGradRule = &Rule{Name: "masked_fill", Source: "derivatives.yaml:masked_fill.Scalar", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	return Grads{m.alloc(dOut[0].Shape, dOut[0].DType)}
}}

// MaskedFill is x.masked_fill(mask, number); the mask is kept where x needs a
// gradient.
func (f *Frame) MaskedFill(x, mask *Tensor) *Tensor {
	n := f.record(maskedFillGradRule, x)
	f.save(n, mask)
	f.rule = maskedFillRule
	out := f.alloc(broadcast(x.Shape, mask.Shape), x.DType)
	f.output(n, out, 0)
	f.consume(x, mask)
	return f.produce(out)
}

// Triu is torch.triu.
func (f *Frame) Triu(x *Tensor) *Tensor {
	f.rule = triuRule
	out := f.alloc(x.Shape, x.DType)
	f.consume(x)
	return f.produce(out)
}

// Gather is x[rows, columns] with two index tensors that broadcast: both are
// written out in the result's shape first.
func (f *Frame) Gather(x, rows, columns *Tensor) *Tensor {
	f.rule = gatherRule
	shape := broadcast(rows.Shape, columns.Shape)
	var expanded []*Tensor
	for _, index := range []*Tensor{rows, columns} {
		if index.Shape != shape {
			expanded = append(expanded, f.alloc(shape, I64))
		}
	}
	out := f.alloc(shape, x.DType)
	f.letGo(expanded...)
	f.consume(x, rows, columns)
	return f.produce(out)
}

// Choose is torch.where(mask, zero, number) with a zero of type d made for it:
// both numbers become tensors.
func (f *Frame) Choose(mask *Tensor, d DType) *Tensor {
	f.rule = whereMaskRule
	zero, number := f.alloc(D(), d), f.alloc(D(), d)
	out := f.resultLike(mask.Shape, d, mask)
	f.release(number)
	f.release(zero)
	f.consume(mask)
	return f.produce(out)
}

// Override is torch.where(mask, number, x): the number becomes a tensor.
func (f *Frame) Override(mask, x *Tensor) *Tensor {
	f.rule = whereMaskRule
	number := f.alloc(D(), x.DType)
	out := f.resultLike(broadcast(mask.Shape, x.Shape), x.DType, mask, x)
	f.release(number)
	f.consume(mask, x)
	return f.produce(out)
}

var chooseGradRule = &Rule{Name: "where", Source: "derivatives.yaml:where.self", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	zero := m.alloc(D(), dOut[0].DType)
	g := m.resultLike(dOut[0].Shape, dOut[0].DType, dOut[0])
	m.release(zero)
	return Grads{g}
}}

// Where is torch.where(condition, x, other) with an other that needs no
// gradient; the condition is kept.
func (f *Frame) Where(condition, x, other *Tensor) *Tensor {
	n := f.record(chooseGradRule, x)
	f.save(n, condition)
	out := f.resultLike(broadcast(x.Shape, condition.Shape), x.DType, x)
	f.output(n, out, 0)
	f.consume(condition, x, other)
	return f.produce(out)
}
