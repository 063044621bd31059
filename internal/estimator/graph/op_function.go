package graph

// Function is a torch.autograd.Function of one input, which it keeps: forward
// runs without gradients, backward gets the input and the result's gradient.
func (f *Frame) Function(r *Rule, x *Tensor, forward func(f *Frame, x *Tensor) *Tensor, backward func(f *Frame, x, grad *Tensor) *Tensor) *Tensor {
	n := f.record(r, x)
	f.save(n, x)
	var out *Tensor
	f.NoGrad(func() {
		out = f.Func(func(f *Frame, in ...*Tensor) []*Tensor { return []*Tensor{forward(f, in[0])} }, x)[0]
	})
	if n == nil {
		return out
	}
	m := f.Machine
	n.apply = func(n *Node, dOut []*Tensor) Grads {
		g := m.push(nil)
		dx := g.own1(backward(g, n.saved[0], dOut[0]))
		m.pop(g)
		return Grads{dx}
	}
	f.output(n, out, 0)
	return out
}
