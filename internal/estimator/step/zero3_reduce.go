package step

import (
	"cmp"
	"slices"

	"memplan/internal/estimator/graph"
)

var coalescedRule = &graph.Rule{Name: "reduce_scatter_coalesced", Source: "deepspeed/runtime/comm/coalesced_collectives.py@v0.16.4"}

// beforeBackward does nothing: the bucket's buffer is always there.
func (z *zero3) beforeBackward(*Run) {}

// gradientReady is reduce_ready_partitions_and_remove_grads.
func (z *zero3) gradientReady(r *Run, p *zeroParam) {
	if z.bucketHas+p.Numel() > z.bucketSize && z.bucketHas > 0 {
		z.reduce(r)
	}
	if z.contiguous && z.bucketHas+p.Numel() <= z.bucketSize { // copied to the buffer
		m := r.M
		z.onReductionStream(m, func() { m.UseOn(p.Grad, reductionStream) })
		m.Forget(p.Grad)
		p.Grad = m.Piece(z.buffer, p.Shape)
	}
	z.bucket, z.bucketHas = append(z.bucket, p), z.bucketHas+p.Numel()
}

func (z *zero3) onReductionStream(m *graph.Machine, body func()) {
	if z.overlap {
		m.OnStream(reductionStream, body)
		return
	}
	body()
}

// reduce is reduce_scatter_coalesced and partition_grads: the gradients are
// joined rank by rank, padded, unless it is one that divides, and this rank's
// part goes where it is kept.
func (z *zero3) reduce(r *Run) {
	if len(z.bucket) == 0 {
		return
	}
	m := r.M
	z.onReductionStream(m, func() {
		var flat *graph.Tensor
		if len(z.bucket) > 1 || z.bucket[0].Numel()%z.ranks != 0 {
			flat = z.join(m)
		}
		for _, p := range byID(z.bucket) {
			z.keep(r, p)
			m.UseOn(p.Grad, reductionStream)
			m.Forget(p.Grad)
			p.Grad = nil
		}
		z.dropHeld(m)
		r.drop(flat)
	})
	z.bucket, z.bucketHas = nil, 0
}

// join makes the flat tensor, with a tensor for each padding while it does.
func (z *zero3) join(m *graph.Machine) *graph.Tensor {
	var padding []*graph.Tensor
	numel := int64(0)
	for rank := range z.ranks {
		for _, p := range byID(z.bucket) {
			has := min(max(p.Numel()-rank*p.part, 0), p.part)
			if has < p.part {
				padding = append(padding, m.Make(coalescedRule, graph.Temporaries, z.dtype, graph.D(p.part-has)))
			}
			numel += p.part
		}
	}
	flat := m.Make(coalescedRule, graph.Buckets, z.dtype, graph.D(numel))
	forgetList(m, padding)
	return flat
}

// keep copies this rank's part of a gradient, by way of the card to the host
// where the optimizer is there.
func (z *zero3) keep(r *Run, p *zeroParam) {
	if !z.offload {
		return
	}
	m := r.M
	if z.micros == 0 {
		z.dropHeld(m)
	}
	held := m.Make(zeroGradRule, graph.Temporaries, z.dtype, graph.D(p.part))
	z.dropHeld(m) // a second name has it to here where gradients are added up
	z.held = held
	if r.lastMicro {
		z.norms = append(z.norms, z.bufferedNorm(r, p.part))
		m.Scratch(zeroGradRule, graph.Temporaries, p.part*graph.F32.Size())
	}
}

func (z *zero3) dropHeld(m *graph.Machine) {
	if z.held != nil {
		m.Forget(z.held)
		z.held = nil
	}
}

// afterBackward is independent_gradient_partition_epilogue.
func (z *zero3) afterBackward(r *Run) {
	z.reduce(r)
	z.micros++
}

func byID(ps []*zeroParam) []*zeroParam {
	sorted := slices.Clone(ps)
	slices.SortStableFunc(sorted, func(a, b *zeroParam) int { return cmp.Compare(a.id, b.id) })
	return sorted
}

func contains(ps []*zeroParam, p *zeroParam) bool { return slices.Contains(ps, p) }

func removed(ps []*zeroParam, p *zeroParam) []*zeroParam {
	return slices.DeleteFunc(ps, func(q *zeroParam) bool { return q == p })
}
