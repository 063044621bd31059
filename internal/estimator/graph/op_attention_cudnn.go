package graph

var cudnnAttentionRule = &Rule{Name: "_scaled_dot_product_cudnn_attention", Product: true, Source: "aten/src/ATen/native/transformers/cuda/attention.cu:_cudnn_attention_forward", Backward: cudnnAttentionBackward}

// cudnnAttention is cuDNN's kernel: it keeps queries, keys, values, mask, its
// result, the log-sum-exp of each query and two random-number states.
func (f *Frame) cudnnAttention(q, k, v, mask *Tensor) *Tensor {
	n := f.record(cudnnAttentionRule, q, k, v)
	f.save(n, q, k, v)
	if mask != nil {
		f.save(n, mask)
	}
	seed, offset := f.alloc(D(), I64), f.alloc(D(), I64)
	out := f.allocHeads(q, q.DType)
	f.attends(n, q, k)
	lse := f.alloc(D(q.Shape.D[0], q.Shape.D[1], q.Shape.D[2]), F32)
	f.output(n, out, 0)
	f.save(n, out, lse, seed, offset)
	f.letGo(lse, seed, offset)
	f.consume(q, k, v, mask)
	return f.produce(out)
}

// cudnnAttentionBackward: the three gradients and the plan's workspace.
func cudnnAttentionBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	q, k, v := n.saved[0], n.saved[1], n.saved[2]
	var g Grads
	for i, t := range []*Tensor{q, k, v} {
		g[i] = m.resultLike(t.Shape, t.DType, t)
		g[i].view = true
	}
	m.attendsBack(n, q, k)
	m.scratch(cudnnWorkspace(q), Temporaries)
	return g
}

// cudnnWorkspace is what cuDNN's backward plans ask for: the queries' gradient
// and the row sums in fp32. It was read off measured plans of cuDNN 9 for
// Hopper; other releases choose other plans.
func cudnnWorkspace(q *Tensor) int64 {
	b, h, s, d := q.Shape.D[0], q.Shape.D[1], q.Shape.D[2], q.Shape.D[3]
	return b * h * s * (d + 1) * 4
}
