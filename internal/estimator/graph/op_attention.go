package graph

// Attention is what F.scaled_dot_product_attention is asked beside its
// tensors.
type Attention struct {
	Dropout float64
	Causal  bool   // is_causal
	Grouped bool   // enable_gqa: keys and values have fewer heads
	Backend string // the only one enabled: flash, efficient, math, cudnn; empty is torch's choice
}

// ScaledDotProductAttention is F.scaled_dot_product_attention on queries, keys
// and values of shape [batch, heads, tokens, width] and a mask that is nil,
// boolean or additive. Its backend is the one torch would choose
// (aten/src/ATen/native/transformers/attention.cpp).
func (f *Frame) ScaledDotProductAttention(q, k, v, mask *Tensor, a Attention) *Tensor {
	given := [4]*Tensor{mask, v, k, q} // autocast's wrapper casts the last argument first
	for i, t := range given {
		given[i] = f.lower(t)
	}
	out := f.attend(given[3], given[2], given[1], given[0], a)
	f.letGo(given[:]...)
	f.consume(q, k, v, mask)
	return out
}

// attend runs the backend for arguments that the caller holds.
func (f *Frame) attend(q, k, v, mask *Tensor, a Attention) *Tensor {
	if f.Evaluating {
		a.Dropout = 0
	}
	backend := f.chooseAttention(q, k, v, mask, a)
	if f.work != nil {
		f.work.ahead = !a.Causal
		defer func() { f.work.ahead = false }()
	}
	switch {
	case backend == flashAttention:
		return f.paddedFlash(q, k, v, a.Dropout)
	case backend == mathAttention:
		return f.mathAttention(q, k, v, mask, a)
	}
	if mask != nil {
		mask = f.additiveMask(mask, q.DType)
	}
	if backend == cudnnAttention {
		return f.cudnnAttention(q, k, v, mask)
	}
	if mask != nil {
		mask = f.alignMask(mask, q, k)
	}
	return f.efficientAttention(q, k, v, mask, a.Dropout)
}

// additiveMask is convert_boolean_attn_mask: where a boolean mask is false the
// result is minus infinity.
func (f *Frame) additiveMask(mask *Tensor, d DType) *Tensor {
	if mask.DType != Bool {
		return mask
	}
	return f.Choose(mask, d)
}

var maskPadRule = &Rule{Name: "pad_bias", Source: "aten/src/ATen/native/transformers/attention.cpp:preprocess_mask", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	return Grads{m.alloc(n.in[0].meta.Shape, dOut[0].DType)} // constant_pad_nd by as much less
}}

// alignMask is preprocess_mask: a mask whose rows do not start at multiples of
// 8 elements is padded to such rows; then it is expanded to all heads.
func (f *Frame) alignMask(mask, q, k *Tensor) *Tensor {
	const alignment = 8
	aligned := mask.Stride.At(-1) == 1
	for i := range int(mask.Shape.N) - 1 {
		aligned = aligned && mask.Stride.D[i]%alignment == 0
	}
	if !aligned {
		columns := mask.Shape.At(-1)
		n := f.record(maskPadRule, mask)
		padded := f.alloc(mask.Shape.With(-1, columns+alignment-columns%alignment), mask.DType)
		f.output(n, padded, 0)
		f.consume(mask)
		mask = f.Slice(f.produce(padded), -1, 0, columns)
	}
	return f.Expand(mask, q.Shape.D[0], q.Shape.D[1], q.Shape.D[2], k.Shape.D[2])
}

func roundUp(n, to int64) int64 { return divUp(n, to) * to }

// heads shows t with tokens before heads, as the kernels want it. The result
// shares t's reference.
func heads(t *Tensor) *Tensor {
	r := *t
	r.Shape, r.Stride = swapped(t.Shape, 1, 2), swapped(t.Stride, 1, 2)
	return &r
}

// allocHeads allocates empty_like of t seen with tokens before heads, and
// shows it with heads first again.
func (m *Machine) allocHeads(t *Tensor, d DType) *Tensor {
	r := m.allocLike(heads(t), d)
	r.Shape, r.Stride = swapped(r.Shape, 1, 2), swapped(r.Stride, 1, 2)
	return r
}

// rowsFirst returns t laid out with tokens before heads: itself, or a copy the
// caller owns.
func (m *Machine) rowsFirst(t *Tensor) (*Tensor, bool) {
	if heads(t).Contiguous() {
		return t, false
	}
	return m.alloc(swapped(t.Shape, 1, 2), t.DType), true
}
