package graph

import (
	"math"

	"memplan/internal/estimator/spec"
)

var flashRule = &Rule{Name: "_scaled_dot_product_flash_attention", Product: true, Source: "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp", Backward: flashBackward}

// paddedFlash runs flash attention on heads whose width is a multiple of 8:
// others are padded first and the result is cut again.
func (f *Frame) paddedFlash(q, k, v *Tensor, dropout float64) *Tensor {
	width := q.Shape.D[3]
	pad := roundUp(width, 8) - width
	if pad == 0 {
		return f.FlashAttention(q, k, v, dropout)
	}
	q = f.PadLast(q, pad)
	k = f.PadLast(k, pad)
	v = f.PadLast(v, pad)
	return f.Slice(f.FlashAttention(q, k, v, dropout), -1, 0, width)
}

// flashStateSince is when flash's random-number state moved to the card.
var flashStateSince = spec.Version{2, 7}

// FlashAttention is the flash kernel on queries, keys and values of shape
// [batch, heads, tokens, width], keys and values with fewer heads if grouped.
// It keeps all three, its result, the log-sum-exp of each query in fp32, and
// two random-number states.
func (f *Frame) FlashAttention(q, k, v *Tensor, dropout float64) *Tensor {
	n := f.record(flashRule, q, k, v)
	f.save(n, q, k, v)
	out := f.allocHeads(q, q.DType)
	lse := f.alloc(D(q.Shape.D[0], q.Shape.D[1], q.Shape.D[2]), F32)
	splits := f.flashSplits(q, k, dropout)
	f.attends(n, q, k)
	kept := append([]*Tensor{out, lse}, f.flashState(dropout)...)
	f.letGo(splits...)
	f.output(n, out, 0)
	f.save(n, kept...)
	f.letGo(kept[1:]...)
	f.consume(q, k, v)
	return f.produce(out)
}

// flashSplits is what the forward kernel adds up when it splits the keys, as it
// does without dropout where queries alone do not fill the card: log-sum-exp
// and result of each split, in fp32 (flash_api.cpp:set_params_splitkv).
func (m *Machine) flashSplits(q, k *Tensor, dropout float64) []*Tensor {
	b, h, s, d := q.Shape.D[0], q.Shape.D[1], q.Shape.D[2], q.Shape.D[3]
	keysPerBlock := int64(64)
	if d <= 64 {
		keysPerBlock = 256
	} else if d <= 128 {
		keysPerBlock = 128
	}
	n := splitsOf(b*h*divUp(s, 64), 2*m.Device.Multiprocessors, divUp(k.Shape.D[2], keysPerBlock))
	if dropout > 0 || n == 1 {
		return nil
	}
	return []*Tensor{m.alloc(D(n, b, h, s), F32), m.alloc(D(n, b, h, s, roundUp(d, 32)), F32)}
}

// splitsOf is num_splits_heuristic: the fewest splits that use the card within
// 85 % as well as the best number does.
func splitsOf(work, slots, keyBlocks int64) int64 {
	if float32(work) >= 0.8*float32(slots) {
		return 1
	}
	most := min(128, slots, keyBlocks)
	use := func(n int64) float64 { // 0 where n splits are no more than n-1
		if n > 1 && divUp(keyBlocks, n) == divUp(keyBlocks, n-1) {
			return 0
		}
		waves := float64(work*n) / float64(slots)
		return waves / math.Ceil(waves)
	}
	best := 0.0
	for n := int64(1); n <= most; n++ {
		best = max(best, use(n))
	}
	for n := int64(1); n <= most; n++ {
		if u := use(n); u > 0 && u >= 0.85*best {
			return n
		}
	}
	return 1
}

// flashState is the seed and an unused tensor; with dropout the seed is made
// anew.
func (m *Machine) flashState(dropout float64) []*Tensor {
	if m.Versions.Torch.Before(flashStateSince) {
		return nil
	}
	seed := m.alloc(D(2), I64)
	unused := m.alloc(D(), I64)
	if dropout > 0 {
		again := m.alloc(D(2), I64)
		m.release(seed)
		seed = again
	}
	return []*Tensor{seed, unused}
}

// flashBackward: copies of what does not lie with tokens before heads, the
// three gradients, the row sums, the fp32 accumulator of the queries' gradient
// and, for grouped keys, their gradients at all heads.
func flashBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	q, k, v, out := n.saved[0], n.saved[1], n.saved[2], n.saved[3]
	b, h, s, d := q.Shape.D[0], q.Shape.D[1], q.Shape.D[2], q.Shape.D[3]
	var temps []*Tensor
	for _, t := range []*Tensor{dOut[0], out} {
		if c, copied := m.rowsFirst(t); copied {
			temps = append(temps, c)
		}
	}
	var g Grads
	for i, t := range []*Tensor{q, k, v} {
		g[i] = m.allocHeads(t, t.DType)
		g[i].view = true
	}
	m.attendsBack(n, q, k)
	rows := roundUp(s, 128)
	temps = append(temps, m.alloc(D(b, h, rows), F32), m.alloc(D(b, rows, h, roundUp(d, 32)), F32))
	if k.Shape.D[1] != h {
		keys := k.Shape.D[2]
		temps = append(temps, m.alloc(D(b, keys, h, d), k.DType), m.alloc(D(b, keys, h, d), v.DType))
	}
	m.letGo(temps...)
	return g
}
