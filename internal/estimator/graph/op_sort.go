package graph

// Order and counts: what a router of tokens does with its indices.

var (
	sortRule  = &Rule{Name: "sort", Source: "aten/src/ATen/native/cuda/Sort.cpp:sort_cuda_kernel"}
	histcRule = &Rule{Name: "histc", Source: "aten/src/ATen/native/cuda/SummaryOps.cu:_histc_cuda"}
	topkRule  = &Rule{Name: "topk", Source: "FunctionsManual.cpp:value_selecting_reduction_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		return Grads{m.alloc(n.attrs.Shape, dOut[0].DType)}
	}}
)

// smallSort is up to how many elements of a row one block sorts by itself.
const smallSort = 4096

// wholeKeys is a key that has all bits of an int64.
const wholeKeys = 1 << 62

// Sort is torch.sort of a row of integers: the values in order and where they
// came from.
func (f *Frame) Sort(x *Tensor) (values, indices *Tensor) {
	f.rule = sortRule
	n := x.Numel()
	values, indices = f.alloc(x.Shape, x.DType), f.alloc(x.Shape, I64)
	positions := f.alloc(x.Shape, I64)
	if n > smallSort {
		f.scratch(f.cubSortBytes(n, wholeKeys), Temporaries)
	}
	f.release(positions)
	f.consume(x)
	return f.produce(values), f.produce(indices)
}

// Histc is torch.histc of integers in so many bins.
func (f *Frame) Histc(x *Tensor, bins int64) *Tensor {
	f.rule = histcRule
	out := f.alloc(D(bins), x.DType)
	f.consume(x)
	return f.produce(out)
}

// CumsumIn is x.cumsum(0, dtype=d) of a row without gradient.
func (f *Frame) CumsumIn(x *Tensor, d DType) *Tensor {
	f.rule = cumsumRule
	out := f.alloc(x.Shape, d)
	var wide *Tensor
	if d != x.DType {
		wide = f.alloc(x.Shape, d)
	}
	f.scanScratch(x.Numel(), d)
	f.letGo(wide)
	f.consume(x)
	return f.produce(out)
}

// TopK is torch.topk over the last dimension: the k largest and their indices,
// which are kept.
func (f *Frame) TopK(x *Tensor, k int64) (values, indices *Tensor) {
	n := f.record(topkRule, x)
	if n != nil {
		n.attrs.Shape = x.Shape
	}
	shape := x.Shape.With(-1, k)
	values, indices = f.alloc(shape, x.DType), f.alloc(shape, I64)
	f.output(n, values, 0)
	f.save(n, indices)
	f.consume(x)
	return f.produce(values), f.produce(indices)
}

var gatherLastRule = &Rule{Name: "gather", Source: "FunctionsManual.cpp:gather_backward (zeros, scatter_add_)", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	return Grads{m.alloc(n.attrs.Shape, dOut[0].DType)}
}}

// GatherLast is x.gather(-1, indices): both are kept.
func (f *Frame) GatherLast(x, indices *Tensor) *Tensor {
	n := f.record(gatherLastRule, x)
	f.save(n, x, indices)
	if n != nil {
		n.attrs.Shape = x.Shape
	}
	out := f.alloc(indices.Shape, x.DType)
	f.output(n, out, 0)
	f.consume(x, indices)
	return f.produce(out)
}
