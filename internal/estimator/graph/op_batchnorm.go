package graph

var batchNormRule = &Rule{Name: "batch_norm", Source: "aten/src/ATen/native/cuda/Normalization.cu; cudnn/BatchNorm.cpp", Backward: batchNormBackward}

// BatchNorm is F.batch_norm with running statistics. It keeps its input and
// its scale, and in training mean and deviation of each channel, in fp32. cuDNN
// runs it in fp32, and in fp16 with an fp32 scale; else torch's own kernels
// do. (cuDNN's reserve is taken to be empty.)
func (f *Frame) BatchNorm(x, weight, bias *Tensor, training bool) *Tensor {
	training = training && !f.Evaluating
	n := f.record(batchNormRule, x, weight, bias)
	f.save(n, x, weight)
	last := x.prefersChannelsLast()
	cudnn := f.cudnnNorm(x, weight)
	source := f.alias(x)
	if cudnn {
		f.release(source)
		source = f.inFormat(x, last)
	}
	out := f.allocLike(source, x.DType)
	if cudnn {
		out.Stride = source.Stride
	}
	if training {
		channels := D(x.Shape.D[1])
		mean, deviation := f.alloc(channels, F32), f.alloc(channels, F32)
		if !cudnn && x.normsByChannel() {
			f.normStaging(x, 4)
		}
		f.save(n, mean, deviation)
		f.letGo(mean, deviation)
	}
	f.release(source)
	f.output(n, out, 0)
	if n != nil {
		n.attrs.Flag = cudnn
	}
	f.consume(x)
	return f.produce(out)
}

// cudnnNorm is _select_batch_norm_backend.
func (m *Machine) cudnnNorm(x, weight *Tensor) bool {
	if x.DType == BF16 || weight.DType == BF16 || x.Shape.N < 3 {
		return false
	}
	return x.DType != F16 || weight.DType == F32
}

// normsByChannel is batch_norm_use_channels_last_kernels.
func (t *Tensor) normsByChannel() bool {
	return t.isChannelsLast() || t.Contiguous() && t.Stride.D[1] == 1
}

// normStaging is the scratch of a kernel over channels-last images whose
// statistics take several blocks: a number of partial sums of each channel, and
// a row of semaphores (Normalization.cuh:flexible_launch_configs).
func (m *Machine) normStaging(x *Tensor, sums int64) {
	const maxBlock, perThread, tile, maxHeight = 512, 16, 32, 128
	channels := x.Shape.D[1]
	rows := x.Numel() / channels
	width := min(lastPow2(channels), tile)
	height := min(lastPow2(divUp(rows, perThread)), maxBlock/width)
	if width*height != maxBlock {
		width = min(lastPow2(channels), maxBlock/height)
	}
	blocks := min(divUp(rows, height*perThread), maxHeight)
	if blocks < 8 {
		return
	}
	staging := m.allocStorage(sums*channels*blocks*4, Temporaries)
	semaphores := m.allocStorage(divUp(channels, width)*4, Temporaries)
	m.releaseStorage(semaphores)
	m.releaseStorage(staging)
}

// batchNormBackward: cuDNN, and torch's kernel for contiguous images, write the
// three gradients at once; for images with channels last the sums over the
// channels come first.
func batchNormBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	x, weight := n.saved[0], n.saved[1]
	dy := m.alias(dOut[0])
	if n.attrs.Flag {
		m.release(dy)
		dy = m.inFormat(dOut[0], x.prefersChannelsLast())
	}
	var g Grads
	byChannel := !n.attrs.Flag && x.normsByChannel()
	if !byChannel {
		g[0] = m.allocLike(x, x.DType)
	}
	var sums [2]*Tensor
	if byChannel {
		for i := range sums {
			sums[i] = m.alloc(weight.Shape, F32)
		}
	}
	g[1], g[2] = m.alloc(weight.Shape, weight.DType), m.alloc(weight.Shape, weight.DType)
	if byChannel {
		if dy.normsByChannel() {
			m.normStaging(x, 2)
		}
		g[0] = m.allocLike(x, x.DType)
		m.letGo(sums[:]...)
	}
	m.release(dy)
	return g
}
