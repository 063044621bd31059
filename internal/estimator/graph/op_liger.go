package graph

// Kernels of Liger: Triton kernels, each behind a torch.autograd.Function that
// keeps what its own backward needs and, where it can, writes gradients over
// what came in. Read from liger_kernel 0.8.5, ops/.

var ligerRMSNormRule = &Rule{Name: "LigerRMSNormFunction", Source: "liger_kernel/ops/rms_norm.py@v0.8.5", Backward: ligerRMSNormBackward}

// LigerRMSNorm normalises x over the last dimension and multiplies the weight.
// It keeps both and one fp32 deviation a row.
func (f *Frame) LigerRMSNorm(x, weight *Tensor) *Tensor {
	n := f.record(ligerRMSNormRule, x, weight)
	xs := f.compact(x)
	out := f.alloc(xs.Shape, xs.DType)
	rstd := f.alloc(D(xs.Numel()/xs.Shape.At(-1)), F32)
	f.save(n, xs, weight, rstd)
	f.output(n, out, 0)
	f.letGo(rstd, xs)
	f.consume(x)
	return f.produce(out)
}

// ligerRMSNormBackward writes the input's gradient over the output's. That of
// the weight is summed for each multiprocessor first.
func ligerRMSNormBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	dx := m.compact(dOut[0])
	dx.view = true
	g := Grads{dx}
	if n.wants(1) {
		weight := n.saved[1]
		parts := m.perMultiprocessor(weight)
		g[1] = m.sumParts(parts, weight)
		m.release(parts)
	}
	return g
}

// perMultiprocessor is an fp32 row for every multiprocessor.
func (m *Machine) perMultiprocessor(weight *Tensor) *Tensor {
	return m.alloc(D(m.Device.Multiprocessors, weight.Numel()), F32)
}

// sumParts is parts.sum(dim=0).to(weight.dtype).
func (m *Machine) sumParts(parts, weight *Tensor) *Tensor {
	sum := m.sumTo(parts, weight.Shape)
	sum.view = false
	if weight.DType == F32 {
		return sum
	}
	cast := m.alloc(weight.Shape, weight.DType)
	m.release(sum)
	return cast
}

// compact is t.contiguous() inside a function that records nothing: owned by
// the caller, who lends t.
func (m *Machine) compact(t *Tensor) *Tensor {
	if t.Contiguous() {
		return m.alias(t)
	}
	return m.alloc(t.Shape, t.DType)
}

var ligerSwiGLURule = &Rule{Name: "LigerSiLUMulFunction", Source: "liger_kernel/ops/swiglu.py@v0.8.5", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	dc := m.compact(dOut[0])
	g := Grads{m.alias(n.saved[0]), m.alias(n.saved[1])} // written over what was kept
	m.release(dc)
	for _, t := range g[:2] {
		t.view = true
	}
	return g
}}

// LigerSwiGLU is silu(gate) * up: it keeps both, and nothing between.
func (f *Frame) LigerSwiGLU(gate, up *Tensor) *Tensor {
	n := f.record(ligerSwiGLURule, gate, up)
	a, b := f.compact(gate), f.compact(up)
	out := f.alloc(a.Shape, a.DType)
	f.save(n, a, b)
	f.output(n, out, 0)
	f.letGo(a, b)
	f.consume(gate, up)
	return f.produce(out)
}

var ligerRopeRule = &Rule{Name: "LigerRopeFunction", Source: "liger_kernel/ops/rope.py@v0.8.5", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	return Grads{m.turned(dOut[0]), m.turned(dOut[1])}
}}

// LigerRope turns queries and keys of shape [batch, heads, tokens, width] where
// they are, if tokens lie before heads. It keeps the table.
func (f *Frame) LigerRope(q, k, cos, sin *Tensor) (*Tensor, *Tensor) {
	n := f.record(ligerRopeRule, q, k)
	turnedQ, turnedK := f.turned(q), f.turned(k)
	f.save(n, cos, sin)
	f.output(n, turnedQ, 0)
	f.output(n, turnedK, 1)
	f.consume(q, k)
	return f.produce(turnedQ), f.produce(turnedK)
}

// turned is the result over t's own storage, or over a copy's with tokens
// before heads.
func (m *Machine) turned(t *Tensor) *Tensor {
	rows := *t
	rows.Shape, rows.Stride = swapped(t.Shape, 1, 2), swapped(t.Stride, 1, 2)
	out := m.compact(&rows)
	out.Shape, out.Stride = t.Shape, swapped(out.Stride, 1, 2)
	out.node, out.nr, out.leaf, out.NeedsGrad, out.view = nil, 0, nil, false, true
	return out
}

var ligerCrossEntropyRule = &Rule{Name: "LigerCrossEntropyFunction", Source: "liger_kernel/ops/cross_entropy.py@v0.8.5", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	m.comparedWithOne(dOut[0])
	return Grads{m.alias(n.saved[0])}
}}

// LigerCrossEntropy is the mean or sum of the losses of rows of logits, over
// which their gradient is written at once.
func (f *Frame) LigerCrossEntropy(logits, target *Tensor) *Tensor {
	n := f.record(ligerCrossEntropyRule, logits)
	losses := f.alloc(target.Shape, logits.DType)
	var loss *Tensor
	f.NoGrad(func() {
		mask := f.Own(f.Compare(target, nil))
		f.Drop(f.Sum(mask))
		for range 2 { // the largest and the smallest target are in range
			f.Drop(f.Compare(f.SumAll(f.Mul(target, mask)), nil))
		}
		loss = f.own1(f.SumAll(losses))
		f.letGo(mask, losses)
	})
	f.save(n, logits)
	f.output(n, loss, 0)
	f.consume(logits, target)
	return f.produce(loss)
}

// comparedWithOne is torch.equal(gradient, torch.tensor(1.0)) on the card.
func (m *Machine) comparedWithOne(grad *Tensor) {
	one := m.alloc(D(), F32)
	same := m.alloc(D(), Bool)
	all := m.alloc(D(), Bool)
	m.letGo(all, same, one)
}
