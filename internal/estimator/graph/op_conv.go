package graph

// Convolutions (aten/src/ATen/native/Convolution.cpp, cudnn/ConvShared.cpp).

// Conv is what a convolution is asked beside its tensors, one number for each
// spatial dimension.
type Conv struct {
	Stride, Padding, Dilation, OutputPadding Dims
	Groups                                   int64
	Transposed                               bool
}

var convRule = &Rule{Name: "convolution", Source: "aten/src/ATen/native/Convolution.cpp:convolution_backward", Backward: convBackward}

// Convolution is F.conv1d, conv2d or conv3d, or a transposed one. Input and
// weight are kept, under autocast their casts. cuDNN computes with channels
// last when either of them is laid out so; what is not is copied.
func (f *Frame) Convolution(x, weight, bias *Tensor, c Conv) *Tensor {
	f.rule = convRule
	bs := f.lower(bias)
	ws := f.lower(weight)
	xs := f.lower(x)
	f.consume(x)
	n := f.record(convRule, xs, ws, bs)
	f.save(n, xs, ws)
	last := xs.prefersChannelsLast() || ws.prefersChannelsLast()
	if n != nil {
		n.attrs.Flag = last
	}
	image := f.inFormat(xs, last)
	out := f.allocFormat(c.outputShape(xs.Shape, ws.Shape), xs.DType, last)
	filter := f.inFormat(ws, last)
	f.convWorkspace()
	f.output(n, out, 0)
	f.letGo(filter, image, xs, ws, bs)
	return f.produce(out)
}

// outputShape is conv_output_size, or conv_input_size of a transposed one.
func (c Conv) outputShape(x, w Dims) Dims {
	out := x
	out.D[1] = w.D[0]
	if c.Transposed {
		out.D[1] = w.D[1] * c.Groups
	}
	for i := range int(x.N) - 2 {
		kernel := c.Dilation.D[i]*(w.D[i+2]-1) + 1
		if c.Transposed {
			out.D[i+2] = (x.D[i+2]-1)*c.Stride.D[i] - 2*c.Padding.D[i] + kernel + c.OutputPadding.D[i]
		} else {
			out.D[i+2] = (x.D[i+2]+2*c.Padding.D[i]-kernel)/c.Stride.D[i] + 1
		}
	}
	return out
}

// convBackward: the gradient of the input, of the weight, and of the bias,
// which is a plain sum.
func convBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	var g Grads
	x, w := n.saved[0], n.saved[1]
	last := n.attrs.Flag
	dy := m.inFormat(dOut[0], last)
	if n.wants(0) {
		g[0] = m.allocFormat(x.Shape, dy.DType, last)
		filter := m.inFormat(w, last)
		m.convWorkspace()
		m.release(filter)
	}
	if n.wants(1) {
		g[1] = m.allocFormat(w.Shape, dy.DType, last)
		image := m.inFormat(x, last)
		m.convWorkspace()
		m.release(image)
	}
	m.release(dy)
	if n.wants(2) {
		g[2] = m.sumChannels(dOut[0])
	}
	return g
}

// sumChannels is t.sum over all dimensions but the second.
func (m *Machine) sumChannels(t *Tensor) *Tensor {
	r := m.alloc(D(t.Shape.D[1]), t.DType)
	m.reduceScratch(reductionOf(t, [MaxDims]bool{1: true}))
	return r
}

// convWorkspace is what cuDNN takes for one convolution.
func (m *Machine) convWorkspace() { m.scratch(m.convBytes, ConvWorkspace) }

// SetConvWorkspace says how many bytes cuDNN takes for each convolution.
func (m *Machine) SetConvWorkspace(bytes int64) { m.convBytes = bytes }
