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

// Holds reports whether t's storage has its bytes.
func (m *Machine) Holds(t *Tensor) bool { return m.storages[t.storage].bytes > 0 }

// Over makes p's tensor over the storage of t, which the caller keeps.
func (m *Machine) Over(t *Tensor, p *Param) {
	p.Tensor = m.Piece(t, p.Shape)
	p.Tensor.view = false
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
		f.output(n, v, int16(i))
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

// UseOn is t.record_stream: the block is cached again only when that stream is
// through with it.
func (m *Machine) UseOn(t *Tensor, stream uint8) {
	if s := &m.storages[t.storage]; s.bytes > 0 {
		m.events = append(m.events, allocator.Event{Kind: allocator.UseOn, Stream: stream, Block: s.block})
	}
}

var splitSizesRule = &Rule{Name: "split_with_sizes", Source: "torch/csrc/autograd/FunctionsManual.cpp:split_with_sizes_backward"}

// Unflatten cuts a flat tensor into views of the given shapes, which are the
// caller's: torch.split and view, recorded even under no_grad. What a stream is
// current then is current in their backward: the gradients are joined there.
func (m *Machine) Unflatten(flat *Tensor, shapes []Dims) []*Tensor {
	old, stream := m.noGrad, m.stream
	m.noGrad = false
	n := m.record(splitSizesRule, flat)
	views := make([]*Tensor, len(shapes))
	for i, shape := range shapes {
		part := m.Piece(flat, D(shape.Numel()))
		part.node, part.leaf, part.NeedsGrad = nil, nil, false
		m.output(n, part, int16(i))
		v := *part
		v.Shape, v.Stride, v.node, v.NeedsGrad = shape, shape.contiguous(), nil, false
		if nv := m.record(viewRule, part); nv != nil {
			nv.attrs.Shape = part.Shape
			m.output(nv, &v, 0)
		}
		views[i] = &v
	}
	if n != nil {
		n.apply = func(_ *Node, dOut []*Tensor) (g Grads) {
			m.OnStream(stream, func() { g = m.join(flat, shapes, dOut) })
			return g
		}
	}
	m.noGrad = old
	return views
}

// join is split_with_sizes_backward: a gradient that did not come is zeros.
func (m *Machine) join(flat *Tensor, shapes []Dims, dOut []*Tensor) Grads {
	var missing []*Tensor
	for i, g := range dOut {
		if g == nil {
			missing = append(missing, m.alloc(D(shapes[i].Numel()), flat.DType))
		}
	}
	g := m.alloc(flat.Shape, flat.DType)
	m.releaseAll(missing)
	return Grads{g}
}

// OnGradient is t.register_hook: hook runs when t's gradient is complete,
// before the operation that made t runs backward.
// It reports whether t has a gradient at all.
func (m *Machine) OnGradient(t *Tensor, hook func()) bool {
	if t == nil || t.node == nil || !t.NeedsGrad {
		return false
	}
	first := t.node.hook
	t.node.hook = func() {
		if first != nil {
			first()
		}
		hook()
	}
	return true
}

// Ghost reports whether a recomputation is past its end: what runs now does not
// really run.
func (m *Machine) Ghost() bool { return m.ghost }

// SwapsData says that parameters are given other storages while a graph lives
// (param.data = tensor). A leaf that is saved is the variable itself, so that
// only the storages of views of it, as a linear layer's transpose is, are kept
// (torch/csrc/autograd/saved_variable.cpp@v2.6.0, saved_original_).
func (m *Machine) SwapsData() {
	m.swapped = m.alloc(D(0), U8).storage
	m.swaps = true
}

// original is what a saved variable keeps of a leaf whose data may be swapped:
// nothing of its storage.
func (m *Machine) original(t *Tensor) *Tensor {
	o := m.newTensor()
	*o = *t
	o.storage, o.temp = m.swapped, false
	return o
}

// transposed is the transpose of a weight as far as saving it goes: a view,
// which keeps the storage.
func (m *Machine) transposed(t *Tensor) *Tensor {
	if !m.swaps {
		return t
	}
	v := m.newTensor()
	*v = *t
	v.view = true
	return v
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
