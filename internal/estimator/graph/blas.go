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
	m.openHandle()
}

// openHandle gives the thread's handle the workspace that it keeps.
func (m *Machine) openHandle() {
	thread := 0
	if m.pass != Forward {
		thread = 1
	}
	if !m.blas.resident[thread] && !m.ghost {
		m.blas.resident[thread] = true
		m.allocStorage(m.workspaceBytes(), CuBLASWorkspace)
	}
}

// ltWorkspace is the default of CUBLASLT_WORKSPACE_SIZE.
const ltWorkspace = 1 << 20

// gemmLt is the memory of a product whose epilogue adds a bias: cuBLASLt takes
// a workspace for each call, and where handles keep one, its handle does too
// (aten/src/ATen/cuda/CUDABlas.cpp:gemm_and_bias).
func (m *Machine) gemmLt() {
	w := m.allocStorage(ltWorkspace, CuBLASWorkspace)
	if m.Versions.Torch.Before(perGemmSince) {
		m.openHandle()
	}
	m.releaseStorage(w)
}
