package graph

import "memplan/internal/estimator/spec"

// blas is the state of the cuBLAS handles. A GEMM works in a workspace from
// the caching allocator: up to torch 2.14 each handle and stream keeps one from
// its first GEMM on (the forward thread has a handle, the autograd thread
// another); since 2.15 each GEMM takes one and gives it back
// (aten/src/ATen/cuda/CublasHandlePool.cpp; measured on both).
type blas struct {
	configured int64 // bytes by CUBLAS_WORKSPACE_CONFIG; 0 is the default
	resident   [2]bool
}

var perGemmSince = spec.Version{2, 15}

// workspaceBytes is the default size by card: 4096 KiB twice and 16 KiB eight
// times, 32 MiB on Hopper and Blackwell.
func (m *Machine) workspaceBytes() int64 {
	if m.blas.configured > 0 {
		return m.blas.configured
	}
	switch m.Device.Capability[0] {
	case 9, 10, 12:
		return 32 << 20
	}
	return 8519680
}

// SetWorkspace overrides the workspace of a GEMM (CUBLAS_WORKSPACE_CONFIG).
func (m *Machine) SetWorkspace(bytes int64) { m.blas.configured = bytes }

// gemm is the memory of one matrix product beside its operands.
func (m *Machine) gemm() {
	if m.Versions.Torch.AtLeast(perGemmSince) {
		m.scratch(m.workspaceBytes(), CuBLASWorkspace)
		return
	}
	thread := 0
	if m.pass != Forward {
		thread = 1
	}
	if !m.blas.resident[thread] && !m.ghost {
		m.blas.resident[thread] = true
		m.allocStorage(m.workspaceBytes(), CuBLASWorkspace)
	}
}

var linearRule = &Rule{Name: "linear", Source: "aten/src/ATen/native/Linear.cpp; FunctionsManual.cpp:mm_mat1_backward", Backward: linearBackward}

// Linear is F.linear: x times the transposed weight, and a bias. The input is
// kept when the weight needs a gradient, the weight when the input does; under
// autocast it is their casts that are kept.
func (f *Frame) Linear(x, weight, bias *Tensor) *Tensor {
	f.rule = linearRule
	bs := f.lower(bias) // autocast's wrapper casts the last argument first
	ws := f.lower(weight)
	xs := f.lower(x)
	f.consume(x)
	flat := xs
	if !xs.Contiguous() && xs.Shape.N > 2 {
		rows := D(-1, xs.Shape.At(-1))
		flat = f.own1(f.Reshape(f.produce(xs), rows.D[0], rows.D[1]))
	}
	n := f.record(linearRule, flat, ws, bs)
	if f.needs(ws) {
		f.save(n, flat)
	}
	if f.needs(flat) {
		f.save(n, ws)
	}
	shape := xs.Shape.With(-1, ws.Shape.D[0])
	out := f.alloc(shape, xs.DType)
	f.gemmWithBias(bs)
	f.output(n, out, 0)
	if n != nil {
		n.attrs.Shape = flat.Shape
	}
	for _, t := range []*Tensor{flat, ws, bs} {
		if t != nil {
			f.release(t)
		}
	}
	return f.produce(out)
}

// own1 takes a temporary's reference for the caller.
func (f *Frame) own1(t *Tensor) *Tensor {
	f.own(t)
	return t
}

// gemmWithBias is the workspace of a product whose epilogue adds a bias.
func (m *Machine) gemmWithBias(bias *Tensor) { m.gemm() }

// linearBackward: the weight's gradient first ("mat2" before "self"), then the
// input's, then the bias's, a sum over rows.
func linearBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	var g Grads
	rows := m.reshaped(dOut[0], D(dOut[0].Numel()/dOut[0].Shape.At(-1), dOut[0].Shape.At(-1)))
	if n.wants(1) {
		g[1] = m.alloc(D(rows.Shape.D[1], n.attrs.Shape.At(-1)), rows.DType)
		m.gemm()
	}
	if n.wants(0) {
		g[0] = m.alloc(n.attrs.Shape, rows.DType)
		g[0].view = n.attrs.Shape.N > 2
		m.gemm()
	}
	if n.wants(2) {
		g[2] = m.sumTo(rows, D(rows.Shape.D[1]))
	}
	m.release(rows)
	return g
}
