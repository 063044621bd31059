package graph

import "memplan/internal/estimator/spec"

// Functions that write into their argument. A node is recorded and no storage
// made, except where the backward needs what is overwritten: then it is cloned
// first (generated code of in-place functions, VariableType).

// overwrite makes the result of an in-place function on x: x's storage, with a
// new place in the graph.
func (f *Frame) overwrite(n *Node, x *Tensor, others ...*Tensor) *Tensor {
	out := f.alias(x)
	out.node, out.leaf = nil, nil
	f.output(n, out, 0)
	if n != nil && x.view { // the view's own node is made anew, as as_strided
		n.apply = f.copySlices
		whole := f.newTensor()
		*whole = *out
		again := f.record(asStridedRule, whole)
		again.attrs.Shape = x.Shape
		f.output(again, out, 0)
	}
	f.consume(x)
	f.consume(others...)
	return out
}

// copySlices is the backward of a function that wrote into a view: the gradient
// is copied, a clone of its part goes through the function, and what comes back
// replaces that part (torch/csrc/autograd/functions/tensor.cpp:CopySlices).
func (m *Machine) copySlices(n *Node, dOut []*Tensor) Grads {
	whole := m.allocLike(dOut[0], dOut[0].DType)
	part := m.allocLike(dOut[0], dOut[0].DType)
	g := n.rule.Backward(m, n, []*Tensor{part})
	m.release(part)
	m.letGo(g[0])
	g[0] = whole
	return g
}

// ReluInPlace is F.relu(x, inplace=True): it keeps its result.
func (f *Frame) ReluInPlace(x *Tensor) *Tensor {
	n := f.record(reluRule, x)
	out := f.overwrite(n, x)
	f.save(n, out)
	return f.produce(out)
}

var (
	hardswishRule   = &Rule{Name: "hardswish", Source: "derivatives.yaml:hardswish", Backward: likeGrad}
	hardsigmoidRule = &Rule{Name: "hardsigmoid", Source: "derivatives.yaml:hardsigmoid", Backward: likeGrad}
)

// Hardswish is F.hardswish: it keeps its input.
func (f *Frame) Hardswish(x *Tensor) *Tensor { return f.unary(hardswishRule, x, true, false) }

// Hardsigmoid is F.hardsigmoid: it keeps its input.
func (f *Frame) Hardsigmoid(x *Tensor) *Tensor { return f.unary(hardsigmoidRule, x, true, false) }

// HardswishInPlace is F.hardswish(x, inplace=True): it keeps a clone of what
// was there.
func (f *Frame) HardswishInPlace(x *Tensor) *Tensor { return f.cloning(hardswishRule, x) }

// HardsigmoidInPlace is F.hardsigmoid(x, inplace=True), which clones.
func (f *Frame) HardsigmoidInPlace(x *Tensor) *Tensor { return f.cloning(hardsigmoidRule, x) }

// SiluInPlace is F.silu(x, inplace=True), which clones.
func (f *Frame) SiluInPlace(x *Tensor) *Tensor { return f.cloning(siluRule, x) }

// hardtanhClonesSince is when hardtanh in place began to keep a clone of its
// input, where it had kept its result (measured on 2.15; by published peaks not
// yet on 1.5 and 1.8).
var hardtanhClonesSince = spec.Version{1, 11}

// Relu6InPlace is F.relu6(x, inplace=True).
func (f *Frame) Relu6InPlace(x *Tensor) *Tensor {
	if f.Versions.Torch.Before(hardtanhClonesSince) && f.Versions.Torch != (spec.Version{}) {
		return f.ReluInPlace(x)
	}
	return f.cloning(hardtanhRule, x)
}

var hardtanhRule = &Rule{Name: "hardtanh", Source: "derivatives.yaml:hardtanh", Backward: likeGrad}

// cloning overwrites x after keeping a clone of it.
func (f *Frame) cloning(r *Rule, x *Tensor) *Tensor {
	n := f.record(r, x)
	if n != nil {
		before := f.allocLike(x, x.DType)
		f.save(n, before)
		f.release(before)
	}
	return f.produce(f.overwrite(n, x))
}

// AddInPlace is a += b.
func (f *Frame) AddInPlace(a, b *Tensor) *Tensor {
	n := f.record(addRule, a, b)
	return f.produce(f.overwrite(n, a, b))
}

var noiseRule = &Rule{Name: "bernoulli_", Source: "aten/src/ATen/native/Dropout.cpp:_dropout_impl"}

// DropoutInPlace is F.dropout(x, inplace=True) in training: it keeps noise of
// x's own type.
func (f *Frame) DropoutInPlace(x *Tensor, p float64) *Tensor {
	if p == 0 || f.Evaluating {
		return f.pass1(x)
	}
	f.rule = noiseRule
	noise := f.allocLike(x, x.DType)
	n := f.record(mulRule, x, noise)
	f.save(n, noise)
	f.release(noise)
	return f.produce(f.overwrite(n, x))
}

// DropPath is stochastic depth by rows: a number for each sample, kept, by
// which all of it is multiplied.
func (f *Frame) DropPath(x *Tensor, p float64) *Tensor {
	if p == 0 || f.Evaluating {
		return f.pass1(x)
	}
	f.rule = noiseRule
	shape := x.Shape
	for i := 1; i < int(shape.N); i++ {
		shape.D[i] = 1
	}
	return f.Mul(x, f.produce(f.alloc(shape, x.DType)))
}

var copyIntoRule = &Rule{Name: "copy_", Source: "torch/csrc/autograd/functions/tensor.cpp:CopySlices, CopyBackwards", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	whole := m.alloc(dOut[0].Shape, dOut[0].DType)
	part := m.alloc(n.attrs.Shape, dOut[0].DType)
	var g Grads
	var zeros *Tensor
	if n.wants(0) {
		zeros, g[0] = m.alloc(n.attrs.Shape, dOut[0].DType), whole // zeros are copied over the part
	} else {
		defer m.release(whole)
	}
	g[1] = part
	if n.attrs.DType != part.DType {
		g[1] = m.alloc(part.Shape, n.attrs.DType)
		m.release(part)
	}
	m.letGo(zeros)
	return g
}}

// CopyInto is base[..., part of the last dimension, ...].copy_(x).
func (f *Frame) CopyInto(base, x *Tensor) *Tensor {
	n := f.record(copyIntoRule, base, x)
	if n != nil {
		n.attrs.Shape, n.attrs.DType = x.Shape, x.DType
	}
	out := f.alias(base)
	out.node, out.leaf = nil, nil
	f.output(n, out, 0)
	f.consume(base, x)
	return f.produce(out)
}
