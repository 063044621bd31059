package graph

import "memplan/internal/estimator/spec"

// Products of the groups of a tensor's rows with a matrix for each group
// (aten/src/ATen/native/cuda/GroupedBlas.cpp, GroupMM.cu).

var groupedRule = &Rule{Name: "_grouped_mm", Source: "aten/src/ATen/native/cuda/GroupedBlas.cpp:_grouped_mm_cuda; FunctionsManual.cpp:_grouped_mm_mat1_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	var g Grads
	if n.wants(1) { // "mat2" before "self"
		g[1] = m.allocLike(n.in[1].meta, dOut[0].DType)
		m.groupedGEMM(n.in[1].meta)
	}
	if n.wants(0) {
		g[0] = m.alloc(n.attrs.Shape, dOut[0].DType)
		m.groupedGEMM(n.in[1].shapeOf(n))
	}
	return g
}}

// groupedLoopRule is what transformers does where torch has no such product: one
// product a group into a tensor of zeros. Both factors are kept, and both
// gradients made, whoever wants them.
var groupedLoopRule = &Rule{Name: "grouped_mm_fallback", Source: "transformers/integrations/moe.py:_grouped_mm_fallback", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	x, w := n.saved[0], n.saved[1]
	g := Grads{m.allocLike(x, x.DType), m.allocLike(w, w.DType)}
	m.gemm()
	return g
}}

// shapeOf is the matrices' shape where they need no gradient themselves.
func (e edge) shapeOf(n *Node) *Tensor {
	if e.meta != nil {
		return e.meta
	}
	return &Tensor{Shape: D(n.attrs.I), DType: n.attrs.DType}
}

// GroupedMM is F.grouped_mm(x, w, offs) of rows [rows, in], one matrix a group
// [groups, in, out] and where each group ends. Autocast leaves it alone. It
// keeps the offsets, and each factor whose partner needs a gradient.
func (f *Frame) GroupedMM(x, w, offsets *Tensor) *Tensor {
	r := groupedRule
	if !f.hasGroupedMM() {
		r = groupedLoopRule
	}
	n := f.record(r, x, w)
	if r == groupedLoopRule {
		f.save(n, x, w)
	} else {
		f.saveOperands(n, x, w)
	}
	f.save(n, offsets)
	if n != nil {
		n.attrs.Shape, n.attrs.I, n.attrs.DType = x.Shape, w.Shape.D[0], w.DType
	}
	out := f.alloc(D(x.Shape.D[0], w.Shape.D[2]), x.DType)
	if r == groupedLoopRule {
		f.gemm()
	} else {
		f.groupedGEMM(w)
	}
	f.output(n, out, 0)
	f.consume(x, w, offsets)
	return f.produce(out)
}

// groupedGEMM is what the product needs for a moment: one kernel on Hopper and
// its like in bf16, which reads sizes and strides of 60 bytes a group from the
// card and lets every multiprocessor write its descriptors; elsewhere one
// product a group, of which no two hold their workspace at once.
func (m *Machine) groupedGEMM(w *Tensor) {
	const group, descriptors = 60, 512
	if c := m.Device.Capability[0]; w.DType == BF16 && (c == 9 || c == 10) {
		arguments := m.alloc(D(group*w.Shape.D[0]), U8)
		m.scratch(descriptors*m.Device.Multiprocessors, Temporaries)
		m.release(arguments)
		return
	}
	m.gemm()
}

// groupedSince is when torch had the function on cards that are not Hopper.
var groupedSince = spec.Version{2, 9}

// hasGroupedMM reports whether torch has the product on this card
// (transformers/integrations/moe.py:_can_use_grouped_mm).
func (m *Machine) hasGroupedMM() bool {
	if m.Versions.Torch.AtLeast(groupedSince) {
		return m.Device.Capability[0] >= 8
	}
	return m.Versions.Torch.AtLeast(spec.Version{2, 8}) && m.Device.Capability[0] == 9
}
