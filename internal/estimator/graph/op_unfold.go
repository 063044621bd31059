package graph

var unfoldRule = &Rule{Name: "im2col", Source: "aten/src/ATen/native/cuda/Im2Col.cu, Col2Im.cu", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	dy := m.inFormat(dOut[0], false)
	g := m.alloc(n.attrs.Shape, dy.DType)
	m.release(dy)
	return Grads{g}
}}

// Unfold is F.unfold into windows of k×k that lie side by side: [samples,
// channels·k·k, windows].
func (f *Frame) Unfold(x *Tensor, k int64) *Tensor {
	n := f.record(unfoldRule, x)
	if n != nil {
		n.attrs.Shape = x.Shape
	}
	s := x.Shape.D
	dense := f.inFormat(x, false)
	out := f.alloc(D(s[0], s[1]*k*k, (s[2]/k)*(s[3]/k)), x.DType)
	f.release(dense)
	f.output(n, out, 0)
	f.consume(x)
	return f.produce(out)
}
