package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/units"
)

// ddp is torch's DistributedDataParallel on one rank: flat buckets beside the
// gradients (torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/
// reducer.cpp @v2.6.0). All-reduces work in the buckets and allocate nothing;
// what NCCL holds is outside the allocator.
type ddp struct {
	capacity units.Bytes // bucket_cap_mb
	views    bool        // gradient_as_bucket_view: gradients live in the buckets
	unused   bool        // find_unused_parameters: buckets of the final size at once
	buckets  []*graph.Tensor
	ready    []*graph.Param // in the order gradients were complete in the first backward
	rebuilt  bool
	buffers  int64 // bytes of the module's buffers
	quiet    bool  // the last forward ran under no_sync, so buffers are as they were
	own      bool  // every rank keeps its own buffers: broadcast_buffers is off
}

const (
	firstBucket       = units.MiB       // kDefaultFirstBucketBytes
	broadcastBucket   = 250 * units.MiB // broadcast_bucket_size
	broadcastInFlight = 2
	bucketCapMB       = 25
)

var (
	broadcastRule = &graph.Rule{Name: "broadcast_coalesced", Source: "torch/csrc/distributed/c10d/comm.cpp@v2.6.0"}
	bucketRule    = &graph.Rule{Name: "ddp_bucket", Source: "torch/csrc/distributed/c10d/reducer.cpp:initialize_buckets@v2.6.0"}
)

// newDDP returns the wrapper of a job, or nil where there is none.
func newDDP(r *Run) *ddp {
	p := &r.Job.Parallelism
	if p.Sharding != "ddp" || p.Data <= 1 || r.megatron != nil {
		return nil
	}
	d := &ddp{capacity: bucketCapMB * units.MiB}
	if o := p.DDP; o != nil {
		d.views, d.unused = o.GradientAsBucketView, o.FindUnusedParameters
		if o.BucketCapMB > 0 {
			d.capacity = units.Bytes(o.BucketCapMB * float64(units.MiB))
		}
	}
	return d
}

// wrap is the constructor: the module's state is broadcast in flat pieces, two
// in flight, and the buckets are made: one a type until the order in which
// gradients come is known.
func (d *ddp) wrap(r *Run) {
	verify(r.M)
	var states []*graph.Param
	states = append(states, r.Net.Root.Parameters()...)
	r.Net.Root.Walk(func(m *graph.Module) {
		for _, b := range m.Buffers {
			d.buffers += int64(b.Bytes())
			states = append(states, b)
		}
	})
	var flying []*graph.Tensor
	for _, b := range bucketsOf(states, broadcastBucket) {
		if len(flying) == broadcastInFlight {
			r.M.Forget(flying[0])
			flying = flying[1:]
		}
		if len(b) > 1 { // one tensor is sent as it is
			flying = append(flying, d.flat(r, broadcastRule, graph.Temporaries, b))
		}
	}
	for _, t := range flying {
		r.M.Forget(t)
	}
	limits := []units.Bytes{1 << 62}
	if d.unused {
		limits = []units.Bytes{firstBucket, d.capacity}
	}
	d.fill(r, reversed(r.Params), limits)
	for _, p := range r.Params {
		p.Hook = func(*graph.Leaf) { d.gradientReady(r, p) }
	}
}

// verify is _verify_param_shape_across_processes: counts are exchanged in
// tensors of one number.
func verify(m *graph.Machine) {
	var ts []*graph.Tensor
	for range 3 {
		ts = append(ts, m.Make(broadcastRule, graph.Temporaries, graph.I64, graph.D()))
	}
	for _, t := range ts {
		m.Forget(t)
	}
}

// flat allocates one tensor of the size of several.
func (d *ddp) flat(r *Run, rule *graph.Rule, c graph.Category, ps []*graph.Param) *graph.Tensor {
	n := int64(0)
	for _, p := range ps {
		n += p.Numel()
	}
	return r.M.Make(rule, c, ps[0].DType, graph.D(n))
}

// fill replaces the buckets.
func (d *ddp) fill(r *Run, ps []*graph.Param, limits []units.Bytes) {
	for _, t := range d.buckets {
		r.M.Forget(t)
	}
	d.buckets = nil
	for _, b := range bucketsOf(ps, limits...) {
		d.buckets = append(d.buckets, d.flat(r, bucketRule, graph.Buckets, b))
	}
}

// bucketsOf is compute_bucket_assignment_by_size: tensors in order, one open
// bucket a type, closed when it reaches its limit; the last limit repeats.
func bucketsOf(ps []*graph.Param, limits ...units.Bytes) [][]*graph.Param {
	type open struct {
		ps   []*graph.Param
		size units.Bytes
		n    int // buckets of this type closed so far
	}
	byType := map[graph.DType]*open{}
	var order []graph.DType
	var done [][]*graph.Param
	for _, p := range ps {
		o := byType[p.DType]
		if o == nil {
			o = &open{}
			byType[p.DType] = o
			order = append(order, p.DType)
		}
		o.ps, o.size = append(o.ps, p), o.size+p.Bytes()
		if o.size >= limits[min(o.n, len(limits)-1)] {
			done = append(done, o.ps)
			*o = open{n: o.n + 1}
		}
	}
	for _, t := range order {
		if o := byType[t]; len(o.ps) > 0 {
			done = append(done, o.ps)
		}
	}
	return done
}

func reversed(ps []*graph.Param) []*graph.Param {
	out := make([]*graph.Param, len(ps))
	for i, p := range ps {
		out[len(ps)-1-i] = p
	}
	return out
}

// gradientReady is the reducer's hook: the gradient is copied to its bucket,
// or, with views, becomes the bucket's part of it. Micro batches before the
// last run under no_sync, where it does nothing.
func (d *ddp) gradientReady(r *Run, p *graph.Param) {
	if !r.lastMicro {
		return
	}
	if !d.rebuilt {
		d.ready = append(d.ready, p)
	}
	if d.views && p.Grad != nil {
		r.M.Forget(p.Grad)
		p.Grad = nil
	}
}

// beforeForward is _pre_forward: after the first backward the buckets are made
// anew in the order gradients came, then buffers are broadcast from rank 0.
func (d *ddp) beforeForward(r *Run) {
	if len(d.ready) > 0 && !d.rebuilt && !d.unused {
		d.rebuilt = true
		order := uniqueParams(d.ready)
		next := bucketsOf(order, firstBucket, d.capacity)
		indices := r.M.Make(bucketRule, graph.Temporaries, graph.I32, graph.D(int64(len(order)+1)))
		sizes := r.M.Make(bucketRule, graph.Temporaries, graph.I32, graph.D(int64(len(next))))
		r.M.Forget(sizes)
		r.M.Forget(indices)
		d.fill(r, order, []units.Bytes{firstBucket, d.capacity})
	}
	if !d.quiet && !d.own {
		r.M.Scratch(broadcastRule, graph.Temporaries, d.buffers)
	}
	d.quiet = !r.lastMicro
}

// uniqueParams drops repetitions: with accumulation a parameter is ready once
// a micro batch.
func uniqueParams(ps []*graph.Param) []*graph.Param {
	seen := map[*graph.Param]bool{}
	var out []*graph.Param
	for _, p := range ps {
		if !seen[p] {
			seen[p] = true
			out = append(out, p)
		}
	}
	return out
}
