package graph

// Keeps says what an elementwise function keeps for its backward.
type Keeps uint8

// What is kept.
const (
	KeepsNothing Keeps = iota
	KeepsInput
	KeepsResult
)

// Pointwise is an elementwise function of one tensor by its name, whose backward
// is one kernel; raised says that autocast runs it in fp32.
func (f *Frame) Pointwise(r *Rule, x *Tensor, keeps Keeps, raised bool) *Tensor {
	if raised {
		return f.inFP32(r, x, keeps == KeepsInput, keeps == KeepsResult)
	}
	return f.unary(r, x, keeps == KeepsInput, keeps == KeepsResult)
}

// PointwiseRule is the rule of such a function
// (tools/autograd/derivatives.yaml).
func PointwiseRule(name string) *Rule {
	return &Rule{Name: name, Source: "derivatives.yaml:" + name, Backward: likeGrad}
}

// PointwiseInPlace overwrites its argument: what needs its input keeps a clone
// of it, what needs its result keeps that.
func (f *Frame) PointwiseInPlace(r *Rule, x *Tensor, keeps Keeps) *Tensor {
	if keeps == KeepsInput {
		return f.cloning(r, x)
	}
	n := f.record(r, x)
	out := f.overwrite(n, x)
	if keeps == KeepsResult {
		f.save(n, out)
	}
	return f.produce(out)
}

// AddScalarInPlace is x += number: a node, and no new storage.
func (f *Frame) AddScalarInPlace(x *Tensor) *Tensor {
	return f.produce(f.overwrite(f.record(addScalarRule, x), x))
}

// SubInPlace is a -= b.
func (f *Frame) SubInPlace(a, b *Tensor) *Tensor {
	return f.produce(f.overwrite(f.record(subRule, a, b), a, b))
}

// MulInPlace is a *= b: a clone of a is kept where b needs a gradient, and b
// where a does.
func (f *Frame) MulInPlace(a, b *Tensor) *Tensor {
	n := f.record(mulRule, a, b)
	if f.needs(b) {
		before := f.allocLike(a, a.DType)
		f.save(n, before)
		f.release(before)
	}
	if f.needs(a) {
		f.save(n, b)
	}
	return f.produce(f.overwrite(n, a, b))
}

// Divide is a / b: the divisor is kept, and the dividend where the divisor
// needs a gradient.
func (f *Frame) Divide(a, b *Tensor) *Tensor {
	if !f.needs(b) {
		return f.Quotient(a, b)
	}
	n := f.record(divideRule, a, b)
	f.save(n, a, b)
	return f.binaryResult(n, a, b)
}

var whereRule = &Rule{Name: "where", Source: "derivatives.yaml:where.self", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	var g Grads
	for i := 1; i >= 0; i-- {
		if n.wants(i) {
			zero := m.alloc(D(), dOut[0].DType)
			g[i] = m.resultLike(dOut[0].Shape, dOut[0].DType, dOut[0])
			m.release(zero)
		}
	}
	return g
}}

// WhereBoth is torch.where(condition, x, other); other is nil for a number. The
// condition is kept.
func (f *Frame) WhereBoth(condition, x, other *Tensor) *Tensor {
	n := f.record(whereRule, x, other)
	f.save(n, condition)
	shape, d := broadcast(condition.Shape, x.Shape), x.DType
	operands := []*Tensor{condition, x}
	if other != nil {
		shape, d = broadcast(shape, other.Shape), promote(d, other.DType)
		operands = append(operands, other)
	}
	out := f.resultLike(shape, d, operands...)
	f.output(n, out, 0)
	f.consume(operands...)
	return f.produce(out)
}

var sumDimsRule = &Rule{Name: "sum", Source: "FunctionsManual.cpp:sum_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	v := m.alias(dOut[0]) // unsqueezed and expanded
	v.Shape, v.Stride, v.view = n.attrs.Shape, Dims{N: n.attrs.Shape.N}, true
	return Grads{v}
}}

// SumDims is x.sum over some dimensions, kept with size 1 or dropped; in fp32
// under autocast.
func (f *Frame) SumDims(x *Tensor, keep bool, dims ...int) *Tensor {
	n := f.record(sumDimsRule, x)
	if n != nil {
		n.attrs.Shape = x.Shape
	}
	d := x.DType
	switch {
	case !d.Floating():
		d = I64
	case f.autocast.on:
		d = F32
	}
	shape, kept := x.Shape.reduced(keep, dims)
	out := f.alloc(shape, d)
	f.reduceScratch(reductionOf(x, kept))
	f.output(n, out, 0)
	f.consume(x)
	return f.produce(out)
}

// reduced is the shape less some dimensions, and which of them are left.
func (s Dims) reduced(keep bool, dims []int) (shape Dims, kept [MaxDims]bool) {
	for i := range int(s.N) {
		kept[i] = true
	}
	for _, d := range dims {
		kept[s.index(d)] = false
	}
	for i, k := range kept[:s.N] {
		switch {
		case k:
			shape.D[shape.N] = s.D[i]
			shape.N++
		case keep:
			shape.D[shape.N] = 1
			shape.N++
		}
	}
	return shape, kept
}
