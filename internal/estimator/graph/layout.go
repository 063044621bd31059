package graph

// Memory formats of images and volumes: torch's contiguous [N, C, H, W], and
// channels last, in which the elements of one pixel lie together
// (c10/core/MemoryFormat.h).

// channelsLast returns the strides of a fresh channels-last tensor of a shape
// of four or five dimensions.
func (s Dims) channelsLast() Dims {
	st := Dims{N: s.N}
	step := int64(1)
	put := func(i int) {
		st.D[i] = step
		step *= max(s.D[i], 1)
	}
	put(1)
	for i := int(s.N) - 1; i >= 2; i-- {
		put(i)
	}
	put(0)
	return st
}

// lastOrder is the order in which channels-last strides must grow.
func lastOrder(n int8) []int {
	if n == 5 {
		return []int{1, 4, 3, 2, 0}
	}
	return []int{1, 3, 2, 0}
}

// prefersChannelsLast is suggest_memory_format: whether the strides say
// channels last, and no ambiguous shape with them
// (is_channels_last_strides_2d and _3d).
func (t *Tensor) prefersChannelsLast() bool {
	if t.Shape.N != 4 && t.Shape.N != 5 || t.Stride.D[1] == 0 {
		return false
	}
	least := int64(0)
	for _, d := range lastOrder(t.Shape.N) {
		if t.Shape.D[d] == 0 || t.Stride.D[d] < least || d == 0 && least == t.Stride.D[1] {
			return false
		}
		least = t.Stride.D[d]
		if t.Shape.D[d] > 1 {
			least *= t.Shape.D[d]
		}
	}
	return true
}

// isChannelsLast is is_contiguous(memory_format=channels_last).
func (t *Tensor) isChannelsLast() bool {
	if t.Shape.N != 4 && t.Shape.N != 5 {
		return false
	}
	step := int64(1)
	for _, d := range lastOrder(t.Shape.N) {
		if t.Shape.D[d] == 1 {
			continue
		}
		if t.Stride.D[d] != step {
			return false
		}
		step *= t.Shape.D[d]
	}
	return true
}

// ChannelsLast lays a tensor that nobody has used yet out with channels last;
// other than images it leaves as they are.
func (t *Tensor) ChannelsLast() *Tensor {
	if t.Shape.N == 4 {
		t.Stride = t.Shape.channelsLast()
	}
	return t
}

// allocFormat makes a fresh tensor, with channels last or contiguous.
func (m *Machine) allocFormat(shape Dims, d DType, last bool) *Tensor {
	r := m.alloc(shape, d)
	if last {
		r.Stride = shape.channelsLast()
	}
	return r
}

// inFormat is t.contiguous(memory_format) outside the graph: t itself with one
// more reference, or a copy. The caller owns the result.
func (m *Machine) inFormat(t *Tensor, last bool) *Tensor {
	if last && t.isChannelsLast() || !last && t.Contiguous() {
		return m.alias(t)
	}
	return m.allocFormat(t.Shape, t.DType, last)
}

// allChannelsLast is compute_output_memory_format of torch.cat.
func allChannelsLast(ts []*Tensor) bool {
	for _, t := range ts {
		if t == nil || !t.prefersChannelsLast() {
			return false
		}
	}
	return true
}
