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
