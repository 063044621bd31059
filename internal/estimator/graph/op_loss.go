package graph

var mseRule = &Rule{Name: "mse_loss", Source: "aten/src/ATen/native/Loss.cpp:mse_loss_out, mse_loss_backward_out", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	x := n.saved[0]
	return Grads{m.alloc(x.Shape, x.DType)}
}}

// MSELoss is F.mse_loss with the mean over all elements, in fp32 under
// autocast. It keeps both tensors; the squares live until they are summed. The
// result is made as large as the operands and then called a scalar, which takes
// nothing back.
func (f *Frame) MSELoss(x, target *Tensor) *Tensor {
	x, target = f.Expand(x, x.Shape.Slice()...), f.Expand(target, target.Shape.Slice()...) // broadcast_tensors
	ts, xs := f.raise(target), f.raise(x)
	f.consume(x, target)
	n := f.record(mseRule, xs)
	f.save(n, xs, ts)
	out := f.resultLike(xs.Shape, xs.DType, xs, ts)
	out.Shape, out.Stride = D(), D()
	squares := f.resultLike(xs.Shape, xs.DType, xs, ts)
	f.reduceScratch(reductionOf(squares, [MaxDims]bool{}))
	f.output(n, out, 0)
	f.letGo(squares, xs, ts)
	return f.produce(out)
}

// CrossEntropyEach is F.cross_entropy with class indices and reduction="none": a
// loss for each of them.
func (f *Frame) CrossEntropyEach(logits, target *Tensor) *Tensor {
	logp := f.LogSoftmax(logits, logits.DType)
	raised := f.raise(logp)
	f.consume(logp)
	logp = f.produce(raised)
	n := f.record(nllRule, logp)
	f.save(n, logp, target)
	out := f.alloc(target.Shape, logp.DType)
	weight := f.alloc(D(), logp.DType)
	f.output(n, out, 0)
	f.save(n, weight)
	f.release(weight)
	f.consume(logp, target)
	return f.produce(out)
}

var (
	topRule   = &Rule{Name: "topk", Source: "aten/src/ATen/native/cuda/TensorTopK.cu"}
	equalRule = &Rule{Name: "eq", Source: "aten/src/ATen/native/cuda/CompareEQKernel.cu"}
)

// Top is the best class of each position of logits of shape [samples, classes,
// …], and its score: t.topk(1, dim=1), outside the graph.
func (f *Frame) Top(x *Tensor) (score, class *Tensor) {
	f.rule = topRule
	shape := x.Shape.With(1, 1)
	score, class = f.alloc(shape, x.DType), f.alloc(shape, I64)
	f.consume(x)
	return f.produce(score), f.produce(class)
}

// Equal is a == b, a boolean for each element of a.
func (f *Frame) Equal(a, b *Tensor) *Tensor {
	f.rule = equalRule
	out := f.alloc(a.Shape, Bool)
	f.consume(a, b)
	return f.produce(out)
}

var normalizeRule = &Rule{Name: "normalize", Source: "torch/nn/functional.py:normalize", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	negative := m.allocLike(dOut[0], dOut[0].DType) // of the divisor: -grad · ((x / norm) / norm), summed over a row
	once := m.allocLike(dOut[0], dOut[0].DType)
	twice := m.allocLike(dOut[0], dOut[0].DType)
	byNorm := m.allocLike(dOut[0], dOut[0].DType)
	m.letGo(twice, once, negative)
	rows := m.alloc(n.saved[1].Shape, dOut[0].DType)
	m.release(byNorm)
	g := m.allocLike(dOut[0], dOut[0].DType)
	through := m.allocLike(dOut[0], dOut[0].DType) // of the norm: x · (grad / norm)
	m.letGo(through, rows)
	return Grads{g}
}}

// Normalize is F.normalize over the last dimension: it keeps its input, and the
// norm of each row as it is, clamped and spread.
func (f *Frame) Normalize(x *Tensor) *Tensor {
	n := f.record(normalizeRule, x)
	rows := x.Shape.With(-1, 1)
	norm := f.alloc(rows, x.DType)
	clamped := f.alloc(rows, x.DType)
	f.save(n, x, norm, clamped)
	f.letGo(clamped, norm)
	out := f.allocLike(x, x.DType)
	f.output(n, out, 0)
	f.consume(x)
	return f.produce(out)
}
