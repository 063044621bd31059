package graph

import "memplan/internal/estimator/spec"

// Functions that make views, and those that copy when no view will do
// (aten/src/ATen/native/TensorShape.cpp@v2.6.0).

// viewOf makes another tensor over t's storage, recorded as rule r.
func (f *Frame) viewOf(r *Rule, t *Tensor, shape, stride Dims) *Tensor {
	n := f.record(r, t)
	v := f.alias(t)
	v.Shape, v.Stride, v.view = shape, stride, true
	v.node, v.nr, v.leaf, v.NeedsGrad = nil, 0, nil, false
	if n != nil {
		n.attrs.Shape = t.Shape
		f.output(n, v, 0)
	}
	f.consume(t)
	return f.produce(v)
}

var (
	viewRule = &Rule{Name: "view", Source: "derivatives.yaml:view", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		return Grads{m.reshaped(dOut[0], n.attrs.Shape)}
	}}
	transposeRule = &Rule{Name: "transpose", Source: "derivatives.yaml:transpose.int", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		v := m.alias(dOut[0])
		v.Shape, v.Stride = swapped(v.Shape, n.attrs.I, n.attrs.J), swapped(v.Stride, n.attrs.I, n.attrs.J)
		v.view = true
		return Grads{v}
	}}
	expandRule = &Rule{Name: "expand", Source: "derivatives.yaml:expand", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		if dOut[0].Shape == n.attrs.Shape {
			v := m.alias(dOut[0])
			v.view = true
			return Grads{v}
		}
		return Grads{m.sumTo(dOut[0], n.attrs.Shape)}
	}}
	sliceRule = &Rule{Name: "slice", Source: "FunctionsManual.cpp:slice_backward_wrapper", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		return Grads{m.alloc(n.attrs.Shape, dOut[0].DType)}
	}}
	cloneRule = &Rule{Name: "clone", Source: "derivatives.yaml:clone", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		return Grads{m.alias(dOut[0])}
	}}
)

func swapped(d Dims, i, j int64) Dims {
	d.D[i], d.D[j] = d.D[j], d.D[i]
	return d
}

// viewStride returns the strides of t seen in another shape, and whether such
// a view exists (at::detail::computeStride).
func viewStride(t *Tensor, shape Dims) (Dims, bool) {
	if t.Contiguous() {
		return shape.contiguous(), true
	}
	out := Dims{N: shape.N}
	d := int(shape.N) - 1
	base := t.Stride.D[t.Shape.N-1]
	chunk, seen := int64(1), int64(1)
	for i := int(t.Shape.N) - 1; i >= 0; i-- {
		chunk *= t.Shape.D[i]
		if i > 0 && (t.Shape.D[i-1] == 1 || t.Stride.D[i-1] == chunk*base) {
			continue
		}
		for d >= 0 && (seen < chunk || shape.D[d] == 1) {
			out.D[d] = seen * base
			seen *= shape.D[d]
			d--
		}
		if seen != chunk {
			return Dims{}, false
		}
		if i > 0 {
			base, chunk, seen = t.Stride.D[i-1], 1, 1
		}
	}
	return out, d < 0
}

// resolve fills in a -1 of a shape.
func resolve(shape Dims, numel int64) Dims {
	rest := int64(1)
	at := -1
	for i, d := range shape.D[:shape.N] {
		if d == -1 {
			at = i
		} else {
			rest *= d
		}
	}
	if at >= 0 {
		shape.D[at] = numel / rest
	}
	return shape
}

// reshaped is reshape without recording: a view where one exists, else a copy.
// The result is owned; t is borrowed.
func (m *Machine) reshaped(t *Tensor, shape Dims) *Tensor {
	if s, ok := viewStride(t, shape); ok {
		v := m.alias(t)
		v.Shape, v.Stride, v.view = shape, s, true
		return v
	}
	return m.alloc(shape, t.DType)
}

// View is tensor.view; one size may be -1.
func (f *Frame) View(t *Tensor, sizes ...int64) *Tensor {
	shape := resolve(D(sizes...), t.Numel())
	s, ok := viewStride(t, shape)
	if !ok {
		panic("graph: view of a tensor whose layout has none")
	}
	return f.viewOf(viewRule, t, shape, s)
}

// Reshape is tensor.reshape: a view where one exists, else a copy.
func (f *Frame) Reshape(t *Tensor, sizes ...int64) *Tensor {
	shape := resolve(D(sizes...), t.Numel())
	if s, ok := viewStride(t, shape); ok {
		return f.viewOf(viewRule, t, shape, s)
	}
	c := f.clone(t)
	return f.viewOf(viewRule, c, shape, shape.contiguous())
}

func (f *Frame) clone(t *Tensor) *Tensor {
	n := f.record(cloneRule, t)
	c := f.alloc(t.Shape, t.DType)
	f.output(n, c, 0)
	f.consume(t)
	return f.produce(c)
}

// Contiguous is tensor.contiguous: the tensor itself, or a copy.
func (f *Frame) Contiguous(t *Tensor) *Tensor {
	if t.Contiguous() {
		return f.pass1(t)
	}
	return f.clone(t)
}

// Transpose swaps two dimensions; negative ones count from the end.
func (f *Frame) Transpose(t *Tensor, i, j int) *Tensor {
	a, b := int64(t.Shape.index(i)), int64(t.Shape.index(j))
	v := f.viewOf(transposeRule, t, swapped(t.Shape, a, b), swapped(t.Stride, a, b))
	if v.node != nil {
		v.node.attrs.I, v.node.attrs.J = a, b
	}
	return v
}

var permuteRule = &Rule{Name: "permute", Source: "FunctionsManual.cpp:permute_backwards", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	v := m.alias(dOut[0])
	for i, from := range n.attrs.Shape.D[:n.attrs.Shape.N] {
		v.Shape.D[from], v.Stride.D[from] = dOut[0].Shape.D[i], dOut[0].Stride.D[i]
	}
	v.view = true
	return Grads{v}
}}

// Permute is t.permute(dims).
func (f *Frame) Permute(t *Tensor, dims ...int64) *Tensor {
	shape, stride := t.Shape, t.Stride
	for i, from := range dims {
		shape.D[i], stride.D[i] = t.Shape.D[from], t.Stride.D[from]
	}
	v := f.viewOf(permuteRule, t, shape, stride)
	if v.node != nil {
		v.node.attrs.Shape = D(dims...)
	}
	return v
}

// Unsqueeze inserts a dimension of size 1.
func (f *Frame) Unsqueeze(t *Tensor, at int) *Tensor {
	shape, stride := t.Shape, t.Stride
	if at < 0 {
		at += int(shape.N) + 1
	}
	shape.N, stride.N = shape.N+1, stride.N+1
	copy(shape.D[at+1:], t.Shape.D[at:MaxDims-1])
	copy(stride.D[at+1:], t.Stride.D[at:MaxDims-1])
	shape.D[at], stride.D[at] = 1, 1
	if at < int(t.Shape.N) {
		stride.D[at] = t.Shape.D[at] * t.Stride.D[at]
	}
	return f.viewOf(viewRule, t, shape, stride)
}

// Expand repeats dimensions of size 1 without copying.
func (f *Frame) Expand(t *Tensor, sizes ...int64) *Tensor {
	shape := D(sizes...)
	stride := Dims{N: shape.N}
	lead := int(shape.N - t.Shape.N)
	for i := lead; i < int(shape.N); i++ {
		if shape.D[i] == -1 {
			shape.D[i] = t.Shape.D[i-lead]
		}
		if t.Shape.D[i-lead] == shape.D[i] {
			stride.D[i] = t.Stride.D[i-lead]
		}
	}
	return f.viewOf(expandRule, t, shape, stride)
}

// Slice is t[..., from:to, ...] along one dimension.
func (f *Frame) Slice(t *Tensor, dim int, from, to int64) *Tensor {
	if from == 0 && to == t.Shape.At(dim) {
		return f.viewOf(viewRule, t, t.Shape, t.Stride)
	}
	return f.viewOf(sliceRule, t, t.Shape.With(dim, to-from), t.Stride)
}

// SliceLast is t[..., -n:, ...] along one dimension, which is recorded even
// where n is all of it.
func (f *Frame) SliceLast(t *Tensor, dim int, n int64) *Tensor {
	return f.viewOf(sliceRule, t, t.Shape.With(dim, n), t.Stride)
}

// SliceStep is t[..., from::step] along the last dimension.
func (f *Frame) SliceStep(t *Tensor, from, step int64) *Tensor {
	shape := t.Shape.With(-1, (t.Shape.At(-1)-from+step-1)/step)
	return f.viewOf(sliceRule, t, shape, t.Stride.With(-1, step*t.Stride.At(-1)))
}

var selectRule = &Rule{Name: "select", Source: "FunctionsManual.cpp:select_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	return Grads{m.alloc(n.attrs.Shape, dOut[0].DType)}
}}

// Select is t[..., i, ...] along one dimension, which disappears.
func (f *Frame) Select(t *Tensor, dim int) *Tensor {
	at := t.Shape.index(dim)
	return f.viewOf(selectRule, t, t.Shape.without(at), t.Stride.without(at))
}

// Squeeze drops a dimension of size 1.
func (f *Frame) Squeeze(t *Tensor, dim int) *Tensor {
	at := t.Shape.index(dim)
	return f.viewOf(viewRule, t, t.Shape.without(at), t.Stride.without(at))
}

// without returns the list less its i-th entry.
func (s Dims) without(i int) Dims {
	copy(s.D[i:], s.D[i+1:])
	s.N--
	s.D[s.N] = 0 // shapes are compared as they stand
	return s
}

// wholeSliceFreeSince is when indexing with ":" stopped recording a slice
// (measured on 2.6 and 2.15; the older way is assumed in between).
var wholeSliceFreeSince = spec.Version{2, 15}

// SliceWhole is the ":" of an index: a slice that cuts nothing, n times.
func (f *Frame) SliceWhole(t *Tensor, n int) *Tensor {
	if f.Versions.Torch.AtLeast(wholeSliceFreeSince) {
		return f.pass1(t)
	}
	for range n {
		t = f.viewOf(sliceRule, t, t.Shape, t.Stride)
	}
	return t
}

// Detach is tensor.detach: the same storage, outside the graph.
func (f *Frame) Detach(t *Tensor) *Tensor {
	v := f.alias(t)
	v.node, v.leaf, v.NeedsGrad, v.view = nil, nil, false, true
	f.consume(t)
	return f.produce(v)
}

var catRule = &Rule{Name: "cat", Source: "FunctionsManual.cpp:cat_tensors_backward", Many: catBackward}

// Cat is torch.cat: always a fresh tensor, contiguous unless every input has
// its channels last.
func (f *Frame) Cat(dim int, ts ...*Tensor) *Tensor {
	n := f.record(catRule, ts...)
	if n != nil && n.many == nil {
		n.takeMany(ts)
	}
	shape, d := ts[0].Shape, ts[0].DType
	at := shape.index(dim)
	for _, t := range ts[1:] {
		shape.D[at] += t.Shape.D[at]
		d = promote(d, t.DType)
	}
	out := f.allocFormat(shape, d, allChannelsLast(ts))
	f.output(n, out, 0)
	f.consume(ts...)
	return f.produce(out)
}

// catBackward hands each input its part of the gradient: a view of it.
func catBackward(m *Machine, n *Node, dOut []*Tensor) []*Tensor {
	g := dOut[0]
	out := make([]*Tensor, len(n.many))
	for i, e := range n.many {
		if e.wants() {
			v := m.alias(g)
			v.Shape, v.view, v.part = e.meta.Shape, true, true
			out[i] = v
		}
	}
	return out
}
