package graph

var flashRule = &Rule{Name: "_scaled_dot_product_flash_attention", Source: "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp", Backward: flashBackward}

// FlashAttention is the flash kernel on queries, keys and values of shape
// [batch, heads, tokens, width], keys and values with fewer heads if grouped.
// It keeps all three, its result, the log-sum-exp of each query in fp32, and
// two random-number states.
func (f *Frame) FlashAttention(q, k, v *Tensor) *Tensor {
	n := f.record(flashRule, q, k, v)
	f.save(n, q, k, v)
	b, h, s := q.Shape.D[0], q.Shape.D[1], q.Shape.D[2]
	out := f.allocLike(q, q.DType)
	lse := f.alloc(D(b, h, s), F32)
	seed := f.alloc(D(2), I64)
	unused := f.alloc(D(), I64)
	f.output(n, out, 0)
	f.save(n, out, lse, seed, unused)
	for _, t := range []*Tensor{lse, seed, unused} {
		f.release(t)
	}
	f.consume(q, k, v)
	return f.produce(out)
}

func roundUp(n, to int64) int64 { return divUp(n, to) * to }

// flashBackward: the three gradients, the row sums, the fp32 accumulator of
// the queries' gradient and, for grouped keys, their gradients at all heads.
func flashBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	q, k, v := n.saved[0], n.saved[1], n.saved[2]
	b, h, s, d := q.Shape.D[0], q.Shape.D[1], q.Shape.D[2], q.Shape.D[3]
	var g Grads
	for i, t := range []*Tensor{q, k, v} { // empty_like, seen with heads first again
		g[i] = m.allocLike(t, t.DType)
		g[i].view = true
	}
	rows := roundUp(s, 128)
	temps := []*Tensor{m.alloc(D(b, h, rows), F32), m.alloc(D(b, rows, h, roundUp(d, 32)), F32)}
	if k.Shape.D[1] != h {
		keys := k.Shape.D[2]
		temps = append(temps, m.alloc(D(b, keys, h, d), k.DType), m.alloc(D(b, keys, h, d), v.DType))
	}
	for i := len(temps) - 1; i >= 0; i-- {
		m.release(temps[i])
	}
	return g
}
