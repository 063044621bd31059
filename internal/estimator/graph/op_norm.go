package graph

import "memplan/internal/estimator/spec"

var layerNormRule = &Rule{Name: "native_layer_norm", Source: "aten/src/ATen/native/cuda/layer_norm_kernel.cu", Backward: layerNormBackward}

// LayerNorm is F.layer_norm over the last dimension, in fp32 under autocast.
// It keeps its input, its parameters, and mean and deviation of each row.
// Weight and bias may be nil, the bias alone too.
func (f *Frame) LayerNorm(x, weight, bias *Tensor) *Tensor {
	bs, ws, xs := f.raise(bias), f.raise(weight), f.raise(x)
	f.consume(x)
	n := f.record(layerNormRule, xs, ws, bs)
	f.save(n, xs)
	for _, p := range []*Tensor{ws, bs} {
		if p != nil {
			f.save(n, p)
		}
	}
	laid := f.laidOut(xs)
	out := f.alloc(xs.Shape, xs.DType)
	rows := D(xs.Numel() / xs.Shape.At(-1))
	mean, rstd := f.alloc(rows, F32), f.alloc(rows, F32)
	f.letGo(laid)
	f.output(n, out, 0)
	f.save(n, mean, rstd)
	f.letGo(mean, rstd, xs, ws, bs)
	return f.produce(out)
}

// laidOut is what expect_contiguous allocates: a copy of a tensor that is not,
// for as long as a kernel runs.
func (m *Machine) laidOut(t *Tensor) *Tensor {
	if t.Contiguous() {
		return nil
	}
	return m.alloc(t.Shape, t.DType)
}

// layerNormBackward: the input's gradient, then those of scale and shift.
func layerNormBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	x := n.saved[0]
	laid := m.laidOut(x)
	var g Grads
	if n.wants(0) {
		g[0] = m.alloc(x.Shape, x.DType)
	}
	if n.wants(1) {
		g[1] = m.alloc(n.in[1].meta.Shape, n.in[1].meta.DType)
	}
	if n.wants(2) {
		g[2] = m.alloc(n.in[2].meta.Shape, n.in[2].meta.DType)
	}
	dy := m.reshaped(dOut[0], x.Shape)
	if !dy.Contiguous() {
		copied := m.alloc(dy.Shape, dy.DType)
		m.release(dy)
		dy = copied
	}
	if rows := x.Numel() / x.Shape.At(-1); rows > 64<<10 {
		m.normByRowBlocks(&g, rows, x.Shape.At(-1))
	}
	m.release(dy)
	m.letGo(laid)
	return g
}

// rowBlocksSince is when the gradients of scale and shift of many short rows
// began to be summed in two passes.
var rowBlocksSince = spec.Version{2, 8}

// normByRowBlocks sums the gradients of scale and shift over blocks of 32 rows
// first, where there are many rows and too few columns to fill the card. The
// sums of the second pass replace the tensors made for them.
func (m *Machine) normByRowBlocks(g *Grads, rows, width int64) {
	columns := divUp(width, warp)
	if !m.Versions.Torch.AtLeast(rowBlocksSince) || width/warp >= m.Device.Multiprocessors/2 {
		return
	}
	blocks := min((32<<10)/columns, divUp(rows, 32))
	var parts [3]*Tensor
	for i := 1; i <= 2; i++ {
		if g[i] != nil {
			parts[i] = m.alloc(D(blocks, width), g[i].DType)
		}
	}
	for i := 1; i <= 2; i++ {
		if g[i] != nil {
			sum := m.sumTo(parts[i], g[i].Shape)
			m.release(g[i])
			g[i] = sum
		}
	}
	for i := 1; i <= 2; i++ {
		if parts[i] != nil {
			m.release(parts[i])
		}
	}
}
