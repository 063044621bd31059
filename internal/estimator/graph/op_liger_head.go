package graph

import "memplan/internal/estimator/spec"

var ligerLinearCrossEntropyRule = &Rule{Name: "LigerFusedLinearCrossEntropyFunction", Source: "liger_kernel/ops/fused_linear_cross_entropy.py@v0.8.5", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	m.comparedWithOne(dOut[0])
	var g Grads
	for i, t := range n.saved {
		g[i] = m.alias(t)
	}
	return g
}}

// LigerLinearCrossEntropy is the head and its loss in one: logits of a few rows
// at a time, over which their gradient is written, and the gradients of input
// [rows, hidden] and weight [vocabulary, hidden] in the forward pass. Only those
// are kept.
func (f *Frame) LigerLinearCrossEntropy(input, weight, target *Tensor) *Tensor {
	n := f.record(ligerLinearCrossEntropyRule, input, weight)
	var loss *Tensor
	h := linearCrossEntropy{f: f, input: input, weight: weight}
	f.NoGrad(func() { loss = h.run(target, n != nil && n.wants(1)) })
	f.save(n, h.gradInput)
	if h.gradWeight != nil {
		f.save(n, h.gradWeight)
	}
	f.output(n, loss, 0)
	f.letGo(h.gradInput, h.gradWeight)
	f.consume(input, target)
	return f.produce(loss)
}

// linearCrossEntropy is the forward of the fused head in progress.
type linearCrossEntropy struct {
	f                     *Frame
	input, weight         *Tensor
	gradInput, gradWeight *Tensor
	logits                *Tensor // the buffer of every chunk; nil where products make their own
}

// chunkRows is how many rows are multiplied at once: as few as make their
// logits no larger than the input, rounded up to a power of two.
func (h *linearCrossEntropy) chunkRows() int64 {
	rows, width := h.input.Shape.D[0], h.input.Shape.D[1]
	chunks := divUp(h.weight.Shape.D[0], width)
	chunk := int64(1)
	for chunk < divUp(rows, chunks) {
		chunk *= 2
	}
	return min(chunk, rows)
}

// buffered reports whether the products write into a buffer: where autocast
// would change nothing.
func (h *linearCrossEntropy) buffered() bool {
	d, casting := h.f.Autocasting()
	return h.input.DType == h.weight.DType && (!casting || d == h.input.DType)
}

func (h *linearCrossEntropy) run(target *Tensor, trained bool) *Tensor {
	f := h.f
	h.gradInput = f.alloc(h.input.Shape, h.input.DType)
	if trained {
		h.gradWeight = f.alloc(h.weight.Shape, h.weight.DType)
	}
	losses := f.alloc(target.Shape, F32)
	mask := f.Own(f.Compare(target, nil))
	f.Drop(f.Sum(mask))
	rows := h.chunkRows()
	if h.buffered() {
		f.As(Logits, func() { h.logits = f.alloc(D(rows, h.weight.Shape.D[0]), h.input.DType) })
	}
	for from := int64(0); from < h.input.Shape.D[0]; from += rows {
		h.chunk(from, min(from+rows, h.input.Shape.D[0]))
	}
	f.letGo(h.logits)
	loss := f.own1(f.SumAll(losses))
	f.letGo(mask, losses)
	return loss
}

// chunk is the rows in between: their logits, and what their gradient adds to
// the others.
func (h *linearCrossEntropy) chunk(from, to int64) {
	f := h.f
	x := f.own1(f.Slice(h.input, 0, from, to))
	logits := h.logits
	if logits != nil {
		rows, width, vocabulary := x.Shape.D[0], x.Shape.D[1], h.weight.Shape.D[0]
		f.gemm()
		f.multiplies(x.DType, 1, rows, width, vocabulary)
		f.gemm()
		f.multiplies(x.DType, 1, rows, vocabulary, width)
	} else {
		transposed := f.Transpose(h.weight, 0, 1)
		f.As(Logits, func() { logits = f.own1(f.MatmulMatrix(x, transposed)) })
		f.Drop(f.MatmulMatrix(logits, h.weight))
	}
	if h.gradWeight != nil {
		h.addToWeight(x, logits)
	}
	if h.logits == nil {
		f.release(logits)
	}
	f.release(x)
}

// wideResultSince is when addmm could give fp32 from 16-bit factors.
var wideResultSince = spec.Version{2, 8}

// addToWeight adds a chunk's product to the weight's gradient, in place where
// the types allow it.
func (h *linearCrossEntropy) addToWeight(x, logits *Tensor) {
	f := h.f
	half := logits.DType != F32 && f.Device.Capability.AtLeast(spec.Version{8})
	if half && (h.gradWeight.DType == logits.DType || h.gradWeight.DType == F32 && f.Versions.Torch.AtLeast(wideResultSince)) {
		cast := f.own1(f.To(x, logits.DType))
		f.gemm()
		f.multiplies(cast.DType, 1, logits.Shape.D[1], logits.Shape.D[0], x.Shape.D[1])
		f.release(cast)
		return
	}
	product := f.MatmulMatrix(f.Transpose(logits, 0, 1), x)
	f.Drop(f.To(product, F32))
}
