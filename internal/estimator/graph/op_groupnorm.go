package graph

import "memplan/internal/estimator/spec"

// groupNormLastSince is when group norm began to run on images with channels
// last as they are (it does on 2.15; 2.6 copies them).
var groupNormLastSince = spec.Version{2, 15}

// groupNormLast reports whether x is normalised with channels last.
func (m *Machine) groupNormLast(x *Tensor) bool {
	return m.Versions.Torch.AtLeast(groupNormLastSince) && x.prefersChannelsLast()
}

var groupNormRule = &Rule{Name: "native_group_norm", Source: "aten/src/ATen/native/group_norm.cpp, cuda/group_norm_kernel.cu", Backward: groupNormBackward}

// GroupNorm is F.group_norm over groups of channels, in fp32 under autocast. It
// keeps its input, its scale, and mean and deviation of each group of a sample.
func (f *Frame) GroupNorm(x, weight, bias *Tensor, groups int64) *Tensor {
	bs, ws, xs := f.raise(bias), f.raise(weight), f.raise(x)
	f.consume(x)
	n := f.record(groupNormRule, xs, ws, bs)
	f.save(n, xs, ws)
	last := f.groupNormLast(xs)
	late := f.Versions.Torch.AtLeast(groupNormLastSince) // the kernel copies what is in neither format
	var dense *Tensor
	if !late {
		dense = f.inFormat(xs, last)
	}
	batch, channels := xs.Shape.D[0], xs.Shape.D[1]
	if n != nil {
		n.attrs.I = groups
	}
	out := f.allocFormat(xs.Shape, xs.DType, last)
	mean, rstd := f.alloc(D(batch, groups), ws.DType), f.alloc(D(batch, groups), ws.DType)
	if late {
		dense = f.inFormat(xs, last)
	}
	f.groupNormScratch(xs.DType, batch, groups, channels, f.channelSize(xs))
	f.output(n, out, 0)
	f.save(n, mean, rstd)
	f.letGo(dense, mean, rstd, xs, ws, bs)
	return f.produce(out)
}

// channelSize is the number of elements of a channel of one sample.
func (m *Machine) channelSize(x *Tensor) int64 { return x.Numel() / (x.Shape.D[0] * x.Shape.D[1]) }

// groupNormScratch is what the forward kernels need: statistics in fp32 where
// the input is narrower, and a factor and an offset for every channel.
func (m *Machine) groupNormScratch(d DType, batch, groups, channels, size int64) {
	var held []*Tensor
	if d != F32 {
		held = append(held, m.alloc(D(batch, groups), F32), m.alloc(D(batch, groups), F32))
	}
	if size > 1 {
		held = append(held, m.alloc(D(batch, channels), F32), m.alloc(D(batch, channels), F32))
	}
	m.letGo(held...)
}

// groupNormBackward: the gradients of input, scale and shift, then the sums of
// each channel and the three coefficients of the input's gradient, in fp32.
func groupNormBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	x, groups := n.saved[0], n.attrs.I
	batch, channels := x.Shape.D[0], x.Shape.D[1]
	last := m.groupNormLast(x)
	dy, dense := m.inFormat(dOut[0], last), m.inFormat(x, last)
	var g Grads
	if n.wants(0) {
		g[0] = m.allocFormat(x.Shape, x.DType, last)
	}
	for i := 1; i <= 2; i++ {
		if n.wants(i) {
			g[i] = m.alloc(D(channels), n.saved[1].DType)
		}
	}
	var sums, factors []*Tensor
	if m.channelSize(x) > 1 {
		sums = []*Tensor{m.alloc(D(batch, channels), F32), m.alloc(D(batch, channels), F32)}
	}
	if n.wants(0) {
		factors = []*Tensor{m.alloc(D(batch, groups), F32), m.alloc(D(batch, groups), F32)}
		if sums != nil {
			factors = append(factors, m.alloc(D(batch, channels), F32))
		}
	}
	m.letGo(factors...)
	m.letGo(sums...)
	m.letGo(dense, dy)
	return g
}
