package graph

import "memplan/internal/estimator/spec"

var efficientRule = &Rule{Name: "_scaled_dot_product_efficient_attention", Product: true, Source: "aten/src/ATen/native/transformers/cuda/attention.cu:_efficient_attention_forward", Backward: efficientBackward}

// seedOnCardSince is when the kernel's random-number state without dropout
// began to lie on the card.
var seedOnCardSince = spec.Version{2, 15}

// efficientAttention is the memory-efficient kernel: it keeps queries, keys,
// values, mask, its result and the log-sum-exp of each query, padded to 32
// rows.
func (f *Frame) efficientAttention(q, k, v, mask *Tensor, dropout float64) *Tensor {
	n := f.record(efficientRule, q, k, v, mask)
	f.save(n, q, k, v)
	if mask != nil {
		f.save(n, mask)
	}
	b, h, s := q.Shape.D[0], q.Shape.D[1], q.Shape.D[2]
	var state []*Tensor
	if dropout == 0 && f.Versions.Torch.AtLeast(seedOnCardSince) {
		state = []*Tensor{f.alloc(D(), I64), f.alloc(D(), I64)}
	}
	out := f.alloc(D(b, s, h, v.Shape.D[3]), q.DType)
	rows := int64(0)
	if n != nil {
		rows = roundUp(s, 32)
		n.attrs.Flag = dropout > 0
	}
	f.attends(n, q, k)
	lse := f.alloc(D(b, h, rows), F32)
	if v.Shape.D[3] > 128 && q.DType != F32 { // the accumulator does not fit registers
		f.release(f.alloc(out.Shape, F32))
	}
	out.Shape, out.Stride = swapped(out.Shape, 1, 2), swapped(out.Stride, 1, 2)
	f.output(n, out, 0)
	f.save(n, out, lse)
	f.save(n, state...)
	f.release(lse)
	f.letGo(state...)
	f.consume(q, k, v, mask)
	return f.produce(out)
}

// efficientBackward: the three gradients, keys and values at all heads first
// when they are grouped, the row sums, and the kernel's workspace.
func efficientBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	q, k, v := n.saved[0], n.saved[1], n.saved[2]
	b, h := q.Shape.D[0], q.Shape.D[1]
	var temps []*Tensor
	if c, copied := m.rowsFirst(dOut[0]); copied {
		temps = append(temps, c)
	}
	var g Grads
	for i, t := range []*Tensor{q, k, v} {
		g[i] = m.alloc(swapped(t.Shape, 1, 2), t.DType)
		g[i].Shape, g[i].Stride = swapped(g[i].Shape, 1, 2), swapped(g[i].Stride, 1, 2)
		g[i].view = true
	}
	m.attendsBack(n, q, k)
	if n.wants(3) {
		g[3] = m.biasGrad(n.in[3].meta)
	}
	if k.Shape.D[1] != h {
		for _, t := range []*Tensor{k, v} {
			temps = append(temps, m.alloc(D(b, t.Shape.D[2], h, t.Shape.D[3]), t.DType))
		}
	}
	temps = append(temps, m.rowSums(q, v, n.attrs.Flag))
	if w := m.efficientWorkspace(q, k, v, n.attrs.Flag); w > 0 {
		temps = append(temps, m.alloc(D(w/4), F32))
	}
	m.letGo(temps...)
	return g
}

// biasGrad is the gradient of an additive mask, whose rows are made multiples
// of 16 long.
func (m *Machine) biasGrad(mask *Tensor) *Tensor {
	const alignment = 16
	g := m.alloc(mask.Shape.With(-1, roundUp(mask.Shape.At(-1), alignment)), mask.DType)
	g.Shape, g.view = mask.Shape, true
	return g
}

// rowSums is delta, the sum over each query of gradient times result: made by
// the kernel for 16-bit types, except on 7.0 where it does not hold its results
// in registers, else by three operations in fp32 before it.
func (m *Machine) rowSums(q, v *Tensor, dropout bool) *Tensor {
	b, h, s, width := q.Shape.D[0], q.Shape.D[1], q.Shape.D[2], v.Shape.D[3]
	half := q.DType != F32
	if half && (m.Device.Capability[0] != 7 || m.tileOf(half, max(q.Shape.D[3], width), dropout).inRegisters) {
		return m.alloc(D(b, h, s), F32)
	}
	var casts []*Tensor
	if half {
		casts = []*Tensor{m.alloc(D(b, s, h, width), F32), m.alloc(D(b, s, h, width), F32)}
	}
	product := m.alloc(D(b, s, h, width), F32)
	sums := m.alloc(D(b, s, h), F32)
	delta := m.alloc(D(b, h, s), F32)
	m.letGo(sums, product)
	m.letGo(casts...)
	return delta
}

// efficientTile is the shape of the kernel that runs the backward: how many
// queries and keys a block takes, and whether it keeps the gradients of keys
// and values in registers.
type efficientTile struct {
	queries, keys int64
	inRegisters   bool
}

// tileOf chooses it as the kernels are ordered in
// aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernels/generate_kernels.py:
// by the widest head it takes, the larger tile first where the card's shared
// memory holds it; 8.6 and 8.9 have a kernel of their own for 96 columns
// without dropout.
func (m *Machine) tileOf(half bool, width int64, dropout bool) efficientTile {
	c := m.Device.Capability
	small := c[0] == 8 && c[1] > 0 // 99 KiB of shared memory for a block
	switch {
	case width <= 64:
		return efficientTile{64, 64, half}
	case width > 128 && (half || c[0] >= 8):
		return efficientTile{128, 64, false}
	case half && small && width <= 96 && !dropout, half && c[0] < 8:
		return efficientTile{128, 64, true}
	case half && !small:
		return efficientTile{128, 128, true}
	case !half && c[0] >= 8 && !small:
		return efficientTile{128, 64, false}
	}
	return efficientTile{64, 64, false}
}

// efficientWorkspace is the bytes the backward kernel accumulates in
// (mem_eff_attention/kernel_backward.h:workspace_size): for queries a tile with
// a header of four words per block and column of tiles; for keys and values,
// when registers do not hold them and they are not fp32, their tiles once per
// split of the keys.
func (m *Machine) efficientWorkspace(q, k, v *Tensor, dropout bool) int64 {
	half := q.DType != F32
	heads := q.Shape.D[0] * q.Shape.D[1]
	queries, keys, width, valueWidth := q.Shape.D[2], k.Shape.D[2], q.Shape.D[3], v.Shape.D[3]
	t := m.tileOf(half, max(width, valueWidth), dropout)
	words := divUp(queries, t.queries) * divUp(width, t.keys) * (4 + t.queries*t.keys)
	if half && !t.inRegisters {
		splits := max(1, min(divUp(keys, t.keys), 200/heads))
		if heads >= 256 && keys <= 2*t.keys {
			splits = 1
		}
		words += splits * t.keys * (roundUp(width, t.queries) + roundUp(valueWidth, t.queries))
	}
	return 4 * heads * roundUp(words, 4)
}
