package graph

import "memplan/internal/estimator/allocator"

// What wrappers of modules put between the operations: hooks on tensors,
// functions of their own in the graph, other streams, and storages that lose
// their bytes and get them back.

// OnStream runs body with its allocations made for another CUDA stream: their
// blocks are cached apart.
func (m *Machine) OnStream(stream uint8, body func()) {
	old := m.stream
	m.stream = stream
	body()
	m.stream = old
}

// Resize is storage.resize_: t's storage has so many bytes from now on, 0
// frees them. Whoever holds the storage, as saved tensors do, keeps it.
func (m *Machine) Resize(t *Tensor, bytes int64) {
	s := &m.storages[t.storage]
	if s.bytes == bytes {
		return
	}
	s.bytes = bytes
	m.events = append(m.events, allocator.Event{Kind: allocator.Resize, Stream: m.stream, Block: s.block, Bytes: bytes})
}

// Place makes p's tensor in a fresh storage of so many elements, which may be
// more than p has: padding.
func (m *Machine) Place(r *Rule, p *Param, numel int64) {
	p.Tensor = m.Make(r, p.Category, p.DType, D(numel))
	p.Tensor.Shape, p.Tensor.Stride = p.Shape, p.Shape.contiguous()
	p.Tensor.NeedsGrad, p.Tensor.leaf = p.Trained, &p.Leaf
}

// Piece is another tensor of the given shape over a part of t's storage, owned
// by the caller until it gives it to Forget (torch.as_strided).
func (m *Machine) Piece(t *Tensor, shape Dims) *Tensor {
	v := m.alias(t)
	v.Shape, v.Stride, v.view = shape, shape.contiguous(), true
	return v
}

// Through is an autograd.Function that hands on up to three tensors, which are
// borrowed; backward runs when their gradients are complete, before these are
// handed on in turn. The results are the caller's, who gives them to Forget.
func (f *Frame) Through(r *Rule, backward func(), ts ...*Tensor) []*Tensor {
	n := f.record(r, ts...)
	out := make([]*Tensor, len(ts))
	for i, t := range ts {
		v := f.alias(t)
		v.view, v.node, v.leaf, v.NeedsGrad = true, nil, nil, false
		f.output(n, v, int8(i))
		out[i] = v
	}
	if n != nil {
		m := f.Machine
		n.apply = func(_ *Node, dOut []*Tensor) (g Grads) {
			backward()
			for i, d := range dOut {
				if d != nil {
					g[i] = m.alias(d)
				}
			}
			return g
		}
	}
	return out
}

// OnGradient is t.register_hook: hook runs when t's gradient is complete,
// before the operation that made t runs backward.
func (m *Machine) OnGradient(t *Tensor, hook func()) {
	if t == nil || t.node == nil || !t.NeedsGrad {
		return
	}
	first := t.node.hook
	t.node.hook = func() {
		if first != nil {
			first()
		}
		hook()
	}
}

// GradEnabled reports whether operations are recorded now
// (torch.is_grad_enabled).
func (m *Machine) GradEnabled() bool { return !m.noGrad }

// AfterBackward queues a callback for the end of the backward that runs
// (Variable._execution_engine.queue_callback).
func (m *Machine) AfterBackward(callback func()) { m.callbacks = append(m.callbacks, callback) }

// callBack runs the queued callbacks.
func (m *Machine) callBack() {
	queued := m.callbacks
	m.callbacks = nil
	for _, f := range queued {
		f()
	}
}
