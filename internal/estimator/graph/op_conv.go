package graph

// Convolutions (aten/src/ATen/native/Convolution.cpp, cudnn/ConvShared.cpp).

// Conv is what a convolution is asked beside its tensors, one number for each
// spatial dimension.
type Conv struct {
	Stride, Padding, Dilation, OutputPadding Dims
	Groups                                   int64
	Transposed                               bool
}

var convRule = &Rule{Name: "convolution", Product: true, Source: "aten/src/ATen/native/Convolution.cpp:convolution_backward", Backward: convBackward}

// Convolution is F.conv1d, conv2d or conv3d, or a transposed one. Input and
// weight are kept, under autocast their casts. cuDNN computes with channels
// last when either of them is laid out so; what is not is copied.
func (f *Frame) Convolution(x, weight, bias *Tensor, c Conv) *Tensor {
	f.rule = convRule
	bs := f.lower(bias)
	ws := f.lower(weight)
	xs := f.lower(x)
	n := f.record(convRule, xs, ws, bs)
	f.save(n, xs, ws)
	last := xs.prefersChannelsLast() || ws.prefersChannelsLast()
	if n != nil {
		n.attrs.Flag = ownDepthwise(xs, ws, c, last)
	}
	image := f.inFormat(xs, last)
	out := f.allocFormat(c.outputShape(xs.Shape, ws.Shape), xs.DType, last)
	filter := f.inFormat(ws, last)
	f.convWorkspace(last, xs, ws, out)
	f.convolves(xs, ws, out, c.Groups)
	if n != nil {
		n.attrs.I = c.Groups
	}
	f.output(n, out, 0)
	f.letGo(filter, image, xs, ws, bs)
	f.consume(x)
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
// which is a plain sum. torch's own depthwise kernel begins with the weight.
func convBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	var g Grads
	x, w := n.saved[0], n.saved[1]
	if x.Shape.N == 3 { // put in order before it is seen as an image
		x = m.inFormat(x, false)
		defer m.release(x)
	}
	if n.attrs.Flag {
		dy := m.inFormat(dOut[0], false)
		g[1] = m.filterGradient(n, x, w, dy)
		g[0] = m.imageGradient(n, x, w, dy)
		m.release(dy)
	} else {
		dy := m.convGradient(dOut[0], x)
		g[0] = m.imageGradient(n, x, w, dy)
		g[1] = m.filterGradient(n, x, w, dy)
		m.release(dy)
	}
	if n.wants(2) {
		g[2] = m.sumChannels(dOut[0])
	}
	return g
}

// convGradient lays the result's gradient out as the kernels want it. A sequence
// has one layout only.
func (m *Machine) convGradient(dOut, x *Tensor) *Tensor {
	if x.Shape.N == 3 {
		return m.inFormat(dOut, false)
	}
	return m.toSuggested(dOut, x.prefersChannelsLast())
}

// toSuggested is t.to(memory_format=...): t itself where its strides suggest
// that format, gaps or not. The caller owns the result.
func (m *Machine) toSuggested(t *Tensor, last bool) *Tensor {
	if t.prefersChannelsLast() == last {
		return m.alias(t)
	}
	return m.allocFormat(t.Shape, t.DType, last)
}

// imageGradient is cudnn_convolution_backward_input.
func (m *Machine) imageGradient(n *Node, x, w, dy *Tensor) *Tensor {
	if !n.wants(0) {
		return nil
	}
	last := dy.prefersChannelsLast() || w.prefersChannelsLast()
	g := m.allocFormat(x.Shape, dy.DType, last)
	dense, filter := m.inFormat(dy, last), m.inFormat(w, last)
	m.convWorkspace(last, x, w, dy)
	m.convolves(x, w, dy, n.attrs.I)
	m.letGo(filter, dense)
	return g
}

// filterGradient is cudnn_convolution_backward_weight.
func (m *Machine) filterGradient(n *Node, x, w, dy *Tensor) *Tensor {
	if !n.wants(1) {
		return nil
	}
	last := x.prefersChannelsLast() || dy.prefersChannelsLast()
	dense, image := m.inFormat(dy, last), m.inFormat(x, last)
	g := m.allocFormat(w.Shape, dy.DType, last)
	m.convWorkspace(last, x, w, dy)
	m.convolves(x, w, dy, n.attrs.I)
	m.letGo(image, dense)
	return g
}

// ownDepthwise reports whether torch's own kernel runs a depthwise convolution
// (ConvParams::use_cudnn_depthwise): cuDNN does so with channels last, and in
// fp16 for shapes it is known to be fast at.
func ownDepthwise(x, w *Tensor, c Conv, last bool) bool {
	if c.Transposed || c.Groups == 1 || c.Groups != x.Shape.D[1] || x.Shape.N > 4 || last {
		return false
	}
	if x.Shape.N == 3 { // run as an image of one row
		return x.DType != F16 || x.Shape.D[1] < 32 || c.Dilation.D[0] != 1 || c.Stride.D[0] != 1
	}
	known := x.DType == F16 && x.Shape.D[1] >= 32 && c.Dilation.Numel() == 1 && c.Stride.D[0] == c.Stride.D[1]
	return !known || !cudnnDepthwise(x.Shape.D, w.Shape.D, c.Stride.D[1])
}

// cudnnDepthwise is check_cudnn_depthwise_workload_with_filter.
func cudnnDepthwise(x, w [MaxDims]int64, stride int64) bool {
	batch, channels, width, filter := x[0], x[1], x[3], w[3]
	switch {
	case x[2] == 1 && stride == 1:
		return true
	case w[2] != filter || filter != 1 && filter != 3 && filter != 5 || width < 7:
		return false
	case stride != 2:
		return stride == 1
	case filter == 1:
		return batch == 1 && width <= 28 || batch > 1 && batch <= 16 && channels >= 128 && width <= 7
	}
	return batch == 1 || channels >= 512 || channels >= 256 && width >= 28
}

// sumChannels is t.sum over all dimensions but the second.
func (m *Machine) sumChannels(t *Tensor) *Tensor {
	r := m.alloc(D(t.Shape.D[1]), t.DType)
	m.reduceScratch(reductionOf(t, [MaxDims]bool{1: true}))
	return r
}

// convWorkspace is what cuDNN takes for one convolution. Its tensor-core kernels
// want channels last: where the operands are not laid out so, they are copied
// into the workspace and the result out of it.
func (m *Machine) convWorkspace(last bool, x, w, y *Tensor) {
	m.convolved = true
	if last || !m.Device.tensorCores(x.DType) {
		return
	}
	operands := int64(x.Bytes() + w.Bytes() + y.Bytes())
	m.convOperands = max(m.convOperands, operands)
	m.scratch(int64(m.Device.ConvWorkspace*float64(operands)), ConvWorkspace)
}

// tensorCores says whether cuDNN computes convolutions of a type on tensor
// cores: of 16 bits since Volta, and of fp32, as TF32, since Ampere.
func (d Device) tensorCores(t DType) bool {
	return d.Capability[0] >= 8 || d.Capability[0] == 7 && t.Size() == 2
}

// Convolved says whether the program convolves: what cuDNN chose for it, and so
// its workspace, is known only on a card.
func (m *Machine) Convolved() bool { return m.convolved }

// ConvOperands is the most that the operands of one convolution come to, of
// those that take a workspace: what Device.ConvWorkspace is of. Bytes.
func (m *Machine) ConvOperands() int64 { return m.convOperands }
