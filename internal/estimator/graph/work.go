package graph

// Kind says what bounds the time of a kernel.
type Kind uint8

// The kinds of kernel.
const (
	Moves      Kind = iota // elementwise, reductions, copies: memory traffic
	Multiplies             // a matrix product, batched or not
	Attends                // a fused attention
	Convolves              // a convolution
)

// Kernel is what one operation computes and moves, as often as it runs.
type Kernel struct {
	Rule  *Rule
	Kind  Kind
	Pass  Pass
	DType DType
	Count int64 // times it runs: once for each layer that is a copy of this one's
	// A product is Batch times [Rows, Inner] by [Inner, Columns]; an attention
	// Batch heads of Rows queries by Inner keys of Columns numbers.
	Batch, Rows, Inner, Columns int64
	FLOPs                       float64 // of one run, a multiplication and an addition counted as two
	Bytes                       float64 // read and written by one run, nothing of it cached

	tag int16
}

// Work is what a stretch of a run computes: its kernels, in order, views and
// allocations left out. It is written down only where it is asked for.
type Work struct {
	Kernels []Kernel

	pending float64 // bytes that the operation in hand has read
	ahead   bool    // the attention in hand looks ahead
}

// Record makes the machine write down what it computes from here on; nil ends
// that.
func (m *Machine) Record(w *Work) { m.work = w }

// add appends a kernel of the operation in hand.
func (m *Machine) add(k Kernel) {
	k.Rule, k.Pass, k.Count, k.tag = m.rule, m.pass, 1, m.tag
	m.work.Kernels = append(m.work.Kernels, k)
}

// reads notes what the operation in hand reads.
func (m *Machine) reads(ts ...*Tensor) {
	if m.work == nil {
		return
	}
	m.work.pending = 0
	for _, t := range ts {
		if t != nil {
			m.work.pending += float64(t.Bytes())
		}
	}
}

// readsBack notes what a node's backward reads: the gradients of its results
// and what it saved.
func (m *Machine) readsBack(n *Node, dOut []*Tensor) {
	if m.work == nil {
		return
	}
	m.reads(dOut...)
	before := m.work.pending
	m.reads(n.saved...)
	m.work.pending += before
}

// wrote notes a fresh storage: the kernel that fills it reads what its
// operation was given, once. Products say themselves what they move.
func (m *Machine) wrote(bytes int64, cat Category) {
	if m.work == nil || m.ghost || m.rule.Product || bytes == 0 || cat == CuBLASWorkspace || cat == ConvWorkspace {
		return
	}
	m.add(Kernel{Bytes: float64(bytes) + m.work.pending})
	m.work.pending = 0
}

// touches notes a kernel that works in place.
func (m *Machine) touches(bytes int64) {
	if m.work != nil && !m.ghost {
		m.add(Kernel{Bytes: float64(bytes)})
	}
}

// multiplies notes a batch of products of [rows, inner] and [inner, columns].
func (m *Machine) multiplies(d DType, batch, rows, inner, columns int64) {
	if m.work == nil || m.ghost {
		return
	}
	m.add(Kernel{
		Kind: Multiplies, DType: d, Batch: batch, Rows: rows, Inner: inner, Columns: columns,
		FLOPs: 2 * float64(batch) * float64(rows) * float64(inner) * float64(columns),
		Bytes: float64(batch*d.Size()) * (float64(rows*inner) + float64(inner*columns) + float64(rows*columns)),
	})
}

// Products of an attention: two forward; five backward, the scores again and
// four gradients (Dao, FlashAttention-2, section 3.1).
const (
	attentionForward  = 2
	attentionBackward = 5
)

// attends notes the forward of a fused attention over queries and keys of shape
// [batch, heads, tokens, width]; its node remembers whether it looks ahead.
func (m *Machine) attends(n *Node, q, k *Tensor) {
	if m.work == nil {
		return
	}
	if n != nil {
		n.attrs.J = looksBack
		if m.work.ahead {
			n.attrs.J = looksAhead
		}
	}
	m.attention(q, k, !m.work.ahead, attentionForward)
}

// attendsBack notes its backward.
func (m *Machine) attendsBack(n *Node, q, k *Tensor) {
	if m.work != nil {
		m.attention(q, k, n.attrs.J == looksBack, attentionBackward)
	}
}

// What an attention's node remembers.
const (
	looksAhead = 1 + iota
	looksBack
)

// attention notes so many products. Where it does not look ahead, half of them
// is skipped.
func (m *Machine) attention(q, k *Tensor, causal bool, products float64) {
	if m.ghost {
		return
	}
	b, h, rows, width, keys := q.Shape.D[0], q.Shape.D[1], q.Shape.D[2], q.Shape.D[3], k.Shape.D[2]
	flops := products * 2 * float64(b*h) * float64(rows) * float64(keys) * float64(width)
	if causal && rows == keys {
		flops /= 2
	}
	m.add(Kernel{
		Kind: Attends, DType: q.DType, Batch: b * h, Rows: rows, Inner: keys, Columns: width, FLOPs: flops,
		Bytes: products * float64(q.Bytes()+k.Bytes()),
	})
}

// convolves notes one of a convolution's three products, all of which cost the
// same: image x and result y by filters w.
func (m *Machine) convolves(x, w, y *Tensor, groups int64) {
	if m.work == nil || m.ghost {
		return
	}
	inner := w.Numel() / w.Shape.D[0]
	rows := y.Numel() / y.Shape.D[1]
	m.add(Kernel{
		Kind: Convolves, DType: y.DType, Batch: groups, Rows: rows, Inner: inner, Columns: y.Shape.D[1] / max(1, groups),
		FLOPs: 2 * float64(y.Numel()) * float64(inner), Bytes: float64(x.Bytes() + w.Bytes() + y.Bytes()),
	})
}

// repeatWork counts the kernels of a layer once more for each of its copies.
func (m *Machine) repeatWork(tag int16, copies int) {
	if m.work == nil {
		return
	}
	for i := range m.work.Kernels {
		if k := &m.work.Kernels[i]; k.tag == tag && tag != noTag {
			k.Count += int64(copies)
			k.tag = noTag
		}
	}
}
