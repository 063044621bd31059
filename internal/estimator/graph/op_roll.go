package graph

// Functions that move or pad what a tensor holds: always a copy
// (aten/src/ATen/native/cuda/TensorTransformations.cu, native/PadNd.cpp).

var rollRule = &Rule{Name: "roll", Source: "derivatives.yaml:roll", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	return Grads{m.rolled(dOut[0])}
}}

// Roll is torch.roll over any dimensions.
func (f *Frame) Roll(x *Tensor) *Tensor {
	n := f.record(rollRule, x)
	out := f.rolled(x)
	f.output(n, out, 0)
	f.consume(x)
	return f.produce(out)
}

// rolled makes the result; what is not in order is copied first.
func (m *Machine) rolled(x *Tensor) *Tensor {
	dense := m.inFormat(x, false)
	out := m.alloc(x.Shape, x.DType)
	m.release(dense)
	return out
}

// PadTo is F.pad with zeros to a larger shape, or to the same.
func (f *Frame) PadTo(x *Tensor, shape Dims) *Tensor {
	n := f.record(padRule, x)
	if n != nil {
		n.attrs.Shape = x.Shape
	}
	out := f.allocFormat(shape, x.DType, x.prefersChannelsLast())
	f.output(n, out, 0)
	f.consume(x)
	return f.produce(out)
}
