package graph

import "memplan/internal/estimator/spec"

// Pooling (aten/src/ATen/native/cuda/DilatedMaxPool2d.cu, AveragePool2d.cu,
// AdaptiveAveragePooling.cu).

// Pool is a pooling window, one number for each spatial dimension.
type Pool struct {
	Kernel, Stride, Padding Dims
	Ceil                    bool
}

func (p Pool) outputShape(x Dims) Dims {
	dims := int(p.Kernel.N)
	for i := range dims {
		at := int(x.N) - dims + i
		span := x.D[at] + 2*p.Padding.D[i] - p.Kernel.D[i]
		size := span/p.Stride.D[i] + 1
		if p.Ceil {
			size = divUp(span, p.Stride.D[i]) + 1
			if (size-1)*p.Stride.D[i] >= x.D[at]+p.Padding.D[i] {
				size--
			}
		}
		x.D[at] = size
	}
	return x
}

// likeSaved allocates the gradient of the first saved tensor in its layout.
func likeSaved(m *Machine, n *Node, dOut []*Tensor) Grads {
	x := n.saved[0]
	return Grads{m.allocFormat(x.Shape, dOut[0].DType, x.prefersChannelsLast())}
}

// windowed is likeSaved for windows, whose kernels want the gradient they get
// in the input's format: another, such as a part of a joint one, is copied.
func windowed(m *Machine, n *Node, dOut []*Tensor) Grads {
	in := likeSaved(m, n, dOut)
	last := n.saved[0].prefersChannelsLast()
	if g := dOut[0]; !last && !g.Contiguous() || last && !(g.dense() && g.prefersChannelsLast()) {
		m.release(m.allocFormat(g.Shape, g.DType, last))
	}
	return in
}

var (
	maxPoolRule         = &Rule{Name: "max_pool2d_with_indices", Source: "aten/src/ATen/native/cuda/DilatedMaxPool2d.cu", Backward: windowed}
	avgPoolRule         = &Rule{Name: "avg_pool2d", Source: "aten/src/ATen/native/cuda/AveragePool2d.cu", Backward: windowed}
	adaptiveAvgPoolRule = &Rule{Name: "_adaptive_avg_pool2d", Source: "derivatives.yaml:_adaptive_avg_pool2d", Backward: likeSaved}
	asStridedRule       = &Rule{Name: "as_strided_", Source: "FunctionsManual.cpp:as_strided_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		return Grads{m.alloc(n.attrs.Shape, dOut[0].DType)}
	}}
)

// MaxPool is F.max_pool2d or max_pool3d: it keeps its input and where each
// maximum was found, 8 bytes an element.
func (f *Frame) MaxPool(x *Tensor, p Pool) *Tensor {
	n := f.record(maxPoolRule, x)
	f.save(n, x)
	last := x.prefersChannelsLast()
	shape := p.outputShape(x.Shape)
	out := f.allocFormat(shape, x.DType, last)
	indices := f.allocFormat(shape, I64, last)
	f.output(n, out, 0)
	f.save(n, indices)
	f.release(indices)
	f.consume(x)
	return f.produce(out)
}

// AvgPool is F.avg_pool2d or avg_pool3d, which keeps its input.
func (f *Frame) AvgPool(x *Tensor, p Pool) *Tensor {
	return f.pooled(avgPoolRule, x, p.outputShape(x.Shape))
}

func (f *Frame) pooled(r *Rule, x *Tensor, shape Dims) *Tensor {
	n := f.record(r, x)
	f.save(n, x)
	out := f.allocFormat(shape, x.DType, x.prefersChannelsLast())
	f.output(n, out, 0)
	f.consume(x)
	return f.produce(out)
}

// AdaptiveAvgPool is F.adaptive_avg_pool2d to a square of a size, or
// adaptive_avg_pool3d to a cube. To size 1 it is a mean, whose result is laid
// out as the input was.
func (f *Frame) AdaptiveAvgPool(x *Tensor, size int64) *Tensor {
	shape := x.Shape
	var dims []int
	for i := 2; i < int(shape.N); i++ {
		shape.D[i] = size
		dims = append(dims, i-int(shape.N))
	}
	if size != 1 {
		return f.pooled(adaptiveAvgPoolRule, x, shape)
	}
	last := x.prefersChannelsLast()
	out := f.Mean(x, true, dims...)
	if !last {
		return out
	}
	out = f.viewOf(asStridedRule, out, shape, shape.channelsLast())
	out.view = false // it was done in place
	return out
}

var (
	interpolateRule = &Rule{Name: "upsample", Source: "aten/src/ATen/native/cuda/UpSampleBilinear2d.cu", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		return upsampleBackward(m, n, dOut[0], dOut[0].prefersChannelsLast())
	}}
	bicubicRule = &Rule{Name: "upsample_bicubic2d", Source: "aten/src/ATen/native/cuda/UpSampleBicubic2d.cu", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		return upsampleBackward(m, n, dOut[0], false)
	}}
)

// upsampleBackward lays the gradient out as its kernel reads it.
func upsampleBackward(m *Machine, n *Node, dy *Tensor, last bool) Grads {
	g := m.allocFormat(n.attrs.Shape, dy.DType, dy.prefersChannelsLast())
	m.release(m.inFormat(dy, last))
	return Grads{g}
}

// Interpolate is F.interpolate to a size, bilinear or nearest, in fp32 under
// autocast: it keeps nothing.
func (f *Frame) Interpolate(x *Tensor, size ...int64) *Tensor {
	return f.upsample(interpolateRule, x, size)
}

// Bicubic is F.interpolate to a size with mode="bicubic".
func (f *Frame) Bicubic(x *Tensor, size ...int64) *Tensor { return f.upsample(bicubicRule, x, size) }

// upsampleRaisedSince is when autocast began to resize in fp32
// (aten/src/ATen/autocast_mode.h@v2.3.0; not in v2.2.0).
var upsampleRaisedSince = spec.Version{2, 3}

func (f *Frame) upsample(r *Rule, given *Tensor, size []int64) *Tensor {
	x := f.alias(given)
	if f.Versions.Torch.AtLeast(upsampleRaisedSince) {
		f.release(x)
		x = f.raise(given)
	}
	n := f.record(r, x)
	if n != nil {
		n.attrs.Shape = x.Shape
	}
	shape := x.Shape
	for i, s := range size {
		shape.D[2+i] = s
	}
	out := f.allocFormat(shape, x.DType, x.prefersChannelsLast())
	f.output(n, out, 0)
	f.release(x)
	f.consume(given)
	return f.produce(out)
}
