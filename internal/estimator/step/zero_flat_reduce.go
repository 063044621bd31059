package step

import "memplan/internal/estimator/graph"

// flatBucket is the gradients that are reduced together next.
type flatBucket struct {
	entries []bucketEntry
	numel   int64
	large   bool // its one gradient is larger than a buffer and stays where it is
}

// bucketEntry is a parameter whose gradient is in the bucket; grad is the
// bucket's own reference to it.
type bucketEntry struct {
	param *graph.Param
	grad  *graph.Tensor
}

var ipgRule = &graph.Rule{Name: "ipg_buffer", Source: "deepspeed/runtime/zero/stage_1_and_2.py:backward@v0.16.4"}

// reductionStream is that of overlap_comm.
const reductionStream = 1

// beforeBackward makes the buffers gradients are copied to, two under
// overlap_comm so that one can be reduced while the other fills.
func (z *zeroFlat) beforeBackward(r *Run) {
	if !z.contiguous {
		return
	}
	z.dropBuffers(r.M) // stage 1 kept them after a micro batch that was not reduced
	z.buffers = append(z.buffers, r.M.Make(ipgRule, graph.Buckets, z.dtype, graph.D(z.bucketSize)))
	if z.overlap {
		z.buffers = append(z.buffers, r.M.Make(ipgRule, graph.Buckets, z.dtype, graph.D(z.bucketSize)))
	}
	z.current = 0
}

func (z *zeroFlat) dropBuffers(m *graph.Machine) {
	forgetList(m, z.buffers)
	z.buffers = nil
}

// gradientReady is reduce_ready_partitions_and_remove_grads.
func (z *zeroFlat) gradientReady(r *Run, p *graph.Param) {
	if z.keepsAll && !r.lastMicro {
		return
	}
	if z.bucket.numel+p.Numel() > z.bucketSize {
		z.reduce(r)
		if z.contiguous && z.overlap {
			z.current = 1 - z.current
		}
	}
	b := &z.bucket
	switch {
	case !z.contiguous:
	case p.Numel() > z.bucketSize:
		b.large = true
	default: // copied to the buffer
		r.M.Forget(p.Grad)
		p.Grad = r.M.Piece(z.buffers[z.current], p.Shape)
	}
	b.numel += p.Numel()
	b.entries = append(b.entries, bucketEntry{p, r.M.Keep(p.Grad)})
}

// reduce is reduce_ipg_grads: the bucket is summed over the ranks, this rank's
// gradients are kept, the others let go.
func (z *zeroFlat) reduce(r *Run) {
	m := r.M
	z.average(m)
	z.onReductionStream(m, func() {
		for i := range z.bucket.entries {
			e := &z.bucket.entries[i]
			switch mine := z.mineOf(e.param) > 0; {
			case mine && z.contiguous:
				z.keep(r, e)
			case mine || z.keepsAll:
			case z.overlap && !z.contiguous:
				z.late = append(z.late, e.param) // until the reduction is known to be over
			default:
				z.clear(m, e.param)
			}
		}
	})
	for _, e := range z.bucket.entries {
		m.Forget(e.grad)
	}
	z.bucket = flatBucket{}
}

func (z *zeroFlat) onReductionStream(m *graph.Machine, body func()) {
	if z.overlap {
		m.OnStream(reductionStream, body)
		return
	}
	body()
}

func (z *zeroFlat) clear(m *graph.Machine, p *graph.Param) {
	if p.Grad != nil {
		m.Forget(p.Grad)
		p.Grad = nil
	}
}

func (z *zeroFlat) clearLate(m *graph.Machine) {
	for _, p := range z.late {
		z.clear(m, p)
	}
	z.late = nil
}

// average is average_tensor, and buffered_reduce_fallback of gradients that do
// not lie together: what is summed in one call is joined first, unless it is
// one tensor.
func (z *zeroFlat) average(m *graph.Machine) {
	if !z.contiguous {
		if z.bucket.numel > 0 && z.overlap {
			z.clearLate(m)
		}
		z.onReductionStream(m, func() { z.join(m, len(z.bucket.entries), z.bucket.numel) })
		return
	}
	z.onReductionStream(m, func() {
		pieces, numel := 0, int64(0)
		for _, n := range z.slices() {
			pieces, numel = pieces+1, numel+n
			if numel > z.bucketSize {
				z.join(m, pieces, numel)
				pieces, numel = 0, 0
			}
		}
		z.join(m, pieces, numel)
	})
}

// join is allreduce_bucket: the flattened pieces die when the sum is copied
// back.
func (z *zeroFlat) join(m *graph.Machine, pieces int, numel int64) {
	if pieces > 1 {
		m.Scratch(flatRule, graph.Buckets, numel*z.dtype.Size())
	}
}

// slices cuts the bucket where the rank that a gradient goes to changes.
func (z *zeroFlat) slices() []int64 {
	var numels []int64
	last := int64(-1)
	for _, e := range z.bucket.entries {
		g, at := z.place[e.param].group, z.place[e.param].offset
		for begin, end := at, at+e.param.Numel(); begin < end; {
			rank := begin / g.part
			stop := min(end, (rank+1)*g.part)
			if rank == last {
				numels[len(numels)-1] += stop - begin
			} else {
				numels = append(numels, stop-begin)
			}
			last, begin = rank, stop
		}
	}
	return numels
}

// keep is copy_grads_in_partition: the gradient moves to a tensor that outlives
// the buffers, or to the host.
func (z *zeroFlat) keep(r *Run, e *bucketEntry) {
	m := r.M
	if z.offload {
		z.keepOnHost(r, e.param)
		return
	}
	if z.kept == nil {
		total := int64(0)
		for _, g := range z.groups {
			for _, p := range g.mine {
				total += p.Numel()
			}
		}
		z.kept = m.Make(zeroGradRule, graph.Gradients, z.dtype, graph.D(total))
	}
	m.Forget(e.param.Grad)
	m.Forget(e.grad)
	e.param.Grad = m.Piece(z.kept, e.param.Shape)
	e.grad = m.Keep(e.param.Grad)
}

// keepOnHost adds the gradient to what the host holds. At the last micro batch
// its norm is taken and it is looked at for overflows, in wide copies.
func (z *zeroFlat) keepOnHost(r *Run, p *graph.Param) {
	if !r.lastMicro {
		return
	}
	m := r.M
	n := z.mineOf(p)
	r.noGrad(func(f *graph.Frame) {
		z.norms = append(z.norms, f.Own(f.Norm(unnamed(f, zeroNormRule, fp64, graph.D(n)))))
	})
	overflowed(r, p.Numel(), z.dtype)
	m.Scratch(zeroGradRule, graph.Temporaries, n*graph.F32.Size())
	z.clear(m, p)
}

// mineOf is how many elements of p this rank updates; none where it is not
// positive.
func (z *zeroFlat) mineOf(p *graph.Param) int64 {
	g, at := z.place[p].group, z.place[p].offset
	return min(at+p.Numel(), g.part*(z.rank+1)) - max(at, g.part*z.rank)
}

// afterBackward is reduce_gradients and independent_gradient_partition_epilogue.
func (z *zeroFlat) afterBackward(r *Run) {
	m := r.M
	if z.keepsAll && !r.lastMicro {
		return
	}
	if z.keepsAll && !z.overlap {
		for _, g := range z.groups {
			for _, p := range g.params {
				if p.Grad != nil {
					z.gradientReady(r, p)
				}
			}
		}
	}
	z.reduce(r)
	z.clearLate(m)
	var added []*graph.Tensor // avg_new
	if !z.offload {
		for _, g := range z.groups {
			fresh := z.partsOf(m, g)
			if g.averaged == nil {
				g.averaged = fresh
				continue
			}
			forgetList(m, added)
			added = fresh
		}
	}
	if z.contiguous {
		z.dropBuffers(m)
		r.drop(z.kept)
		z.kept = nil
	}
	for _, g := range z.groups {
		for _, p := range g.params {
			z.clear(m, p)
		}
	}
	forgetList(m, added)
}

// partsOf is get_flat_partition: this rank's pieces of the gradients, zeros
// where there are none, and padding behind the last.
func (z *zeroFlat) partsOf(m *graph.Machine, g *flatGroup) []*graph.Tensor {
	var parts []*graph.Tensor
	numel := int64(0)
	for _, p := range g.mine {
		grad := p.Grad
		if grad == nil {
			grad = m.Make(zeroGradRule, graph.Gradients, z.dtype, p.Shape)
		} else {
			grad = m.Keep(grad)
		}
		piece := m.Piece(grad, graph.D(z.mineOf(p)))
		m.Forget(grad)
		parts = append(parts, piece)
		numel += z.mineOf(p)
	}
	if numel < g.part {
		parts = append(parts, m.Make(zeroGradRule, graph.Gradients, z.dtype, graph.D(g.part-numel)))
	}
	return parts
}
