package graph

import "memplan/internal/estimator/spec"

// Functions of update rules and gradient norms. They run under no_grad and
// have no backward.

var (
	vectorNormRule = &Rule{Name: "linalg_vector_norm", Source: "aten/src/ATen/native/LinearAlgebra.cpp:linalg_vector_norm_out"}
	meanDimRule    = &Rule{Name: "mean", Source: "aten/src/ATen/native/ReduceOps.cpp:mean.dim"}
	sqrtRule       = &Rule{Name: "sqrt", Source: "aten/src/ATen/native/UnaryOps.cpp"}
	divRule        = &Rule{Name: "div", Source: "aten/src/ATen/native/BinaryOps.cpp"}
	reciprocalRule = &Rule{Name: "reciprocal", Source: "aten/src/ATen/native/UnaryOps.cpp"}
	clampRule      = &Rule{Name: "clamp", Source: "aten/src/ATen/native/TensorCompare.cpp"}
	outerRule      = &Rule{Name: "mm", Source: "aten/src/ATen/native/cuda/Blas.cpp"}
	stackRule      = &Rule{Name: "stack", Source: "aten/src/ATen/native/TensorShape.cpp:stack"}
)

// fresh is an elementwise result of x in its own layout; x is consumed.
func (f *Frame) fresh(r *Rule, x *Tensor) *Tensor {
	f.rule = r
	out := f.resultLike(x.Shape, x.DType, x)
	f.consume(x)
	return f.produce(out)
}

// Sqrt is x.sqrt() under no_grad.
func (f *Frame) Sqrt(x *Tensor) *Tensor { return f.fresh(sqrtRule, x) }

// DivScalar is x / number under no_grad.
func (f *Frame) DivScalar(x *Tensor) *Tensor { return f.fresh(divRule, x) }

// Reciprocal is x.reciprocal() under no_grad.
func (f *Frame) Reciprocal(x *Tensor) *Tensor { return f.fresh(reciprocalRule, x) }

// Clamp is torch.clamp with a number, under no_grad.
func (f *Frame) Clamp(x *Tensor) *Tensor { return f.fresh(clampRule, x) }

// Clone is x.clone(), in x's layout.
func (f *Frame) Clone(x *Tensor) *Tensor { return f.unary(cloneRule, x, false, false) }

// Div is a / b under no_grad, for two tensors of one type.
func (f *Frame) Div(a, b *Tensor) *Tensor {
	f.rule = divRule
	out := f.resultLike(broadcast(a.Shape, b.Shape), a.DType, a, b)
	f.consume(a, b)
	return f.produce(out)
}

// Norm is x.norm(2) over everything: a scalar of x's type.
func (f *Frame) Norm(x *Tensor) *Tensor { return f.NormIn(x, x.DType) }

// NormIn is torch.linalg.vector_norm(x, 2, dtype=d) over everything.
func (f *Frame) NormIn(x *Tensor, d DType) *Tensor {
	f.rule = vectorNormRule
	out := f.alloc(D(), d)
	f.reduceScratch(reductionOf(x, [MaxDims]bool{}))
	f.consume(x)
	return f.produce(out)
}

// NormDim is torch.linalg.vector_norm over one dimension, which is kept with
// size 1.
func (f *Frame) NormDim(x *Tensor, dim int) *Tensor {
	return f.overDim(vectorNormRule, x, dim)
}

// MeanDim is x.mean(dim, keepdim=True) under no_grad.
func (f *Frame) MeanDim(x *Tensor, dim int) *Tensor { return f.overDim(meanDimRule, x, dim) }

func (f *Frame) overDim(r *Rule, x *Tensor, dim int) *Tensor {
	f.rule = r
	out := f.alloc(x.Shape.With(dim, 1), x.DType)
	var kept [MaxDims]bool
	for i := range int(x.Shape.N) {
		kept[i] = i != x.Shape.index(dim)
	}
	f.reduceScratch(reductionOf(x, kept))
	f.consume(x)
	return f.produce(out)
}

// Outer is column @ row, a matrix product of [n, 1] and [1, m].
func (f *Frame) Outer(column, row *Tensor) *Tensor {
	f.rule = outerRule
	out := f.alloc(column.Shape.With(-1, row.Shape.At(-1)), column.DType)
	f.gemm()
	f.consume(column, row)
	return f.produce(out)
}

var dotRule = &Rule{Name: "dot", Source: "aten/src/ATen/native/cuda/Blas.cpp:dot_cuda"}

// Dot is torch.dot of x and another vector of its type, which is not freed.
func (f *Frame) Dot(x *Tensor) *Tensor {
	f.rule = dotRule
	out := f.alloc(D(), x.DType)
	f.gemm()
	f.consume(x)
	return f.produce(out)
}

// StackScalars is torch.stack of scalars, in the type they promote to. They
// are borrowed.
func (f *Frame) StackScalars(ts []*Tensor) *Tensor {
	f.rule = stackRule
	d := ts[0].DType
	for _, t := range ts[1:] {
		d = promote(d, t.DType)
	}
	return f.produce(f.alloc(D(int64(len(ts))), d))
}

var foreachNormRule = &Rule{Name: "_foreach_norm", Source: "aten/src/ATen/native/cuda/ForeachReduceOp.cu"}

// foreachChunk is the number of elements one block of a multi-tensor kernel
// works on.
const foreachChunk = 64 << 10

// ragged is when _foreach_norm began to keep one partial norm per chunk that
// exists, found by a table of offsets, instead of a rectangle as wide as the
// largest tensor needs. Measured: not in 2.6, in 2.15; the change was proposed
// while 2.14 was in the making.
var ragged = spec.Version{2, 14}

// ForeachNorm is torch._foreach_norm of tensors of one type: a scalar each,
// owned by the caller. Its kernel works on chunks of 65,536 elements
// (aten/src/ATen/native/cuda/ForeachReduceOp.cu).
func (m *Machine) ForeachNorm(ts []*Tensor) []*Tensor {
	m.rule = foreachNormRule
	var scratch []*Tensor
	if m.Versions.Torch.AtLeast(ragged) {
		total := int64(0)
		for _, t := range ts {
			total += divUp(t.Numel(), foreachChunk)
		}
		scratch = append(scratch, m.alloc(D(int64(len(ts))+1), I64), m.alloc(D(total), F32))
	} else {
		widest := int64(0)
		for _, t := range ts {
			widest = max(widest, divUp(t.Numel(), foreachChunk))
		}
		scratch = append(scratch, m.alloc(D(int64(len(ts))*widest), F32))
	}
	norms := make([]*Tensor, len(ts))
	for i, t := range ts {
		norms[i] = m.alloc(D(), t.DType)
	}
	for _, t := range scratch {
		m.release(t)
	}
	return norms
}
