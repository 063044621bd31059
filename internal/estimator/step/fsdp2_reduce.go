package step

import "memplan/internal/estimator/graph"

// postBackward is post_backward: the gradients of the unit are complete. They
// are kept whole while gradients accumulate unsynchronised, else reduced.
func (u *shardUnit) postBackward(m *graph.Machine) {
	u.groupState = postBackward
	m.InModule(u.module)
	for _, p := range u.params {
		if p.accumulated != nil {
			p.dropGradient(m)
		}
	}
	if u.keepsGradients {
		u.reshard(m)
		if m.Versions.Torch.Before(newerShardsSince) {
			for _, p := range u.params {
				u.accumulate(m, p)
			}
		}
		return
	}
	with, grads := u.takeGradients()
	u.reshard(m)
	if len(with) == 0 {
		return
	}
	u.drop(m, &u.reducing)
	u.drop(m, &u.allReduced)
	u.reduceScatter(m, with, grads)
}

// dropGradient lets the autograd gradient go: it was added to another.
func (p *shardParam) dropGradient(m *graph.Machine) {
	if p.whole.Grad != nil {
		m.Forget(p.whole.Grad)
		p.whole.Grad = nil
	}
}

// accumulate is to_accumulated_grad_if_needed: a whole gradient is kept in the
// type it will be reduced in.
func (u *shardUnit) accumulate(m *graph.Machine, p *shardParam) {
	if g := p.whole.Grad; u.mixed && g != nil && g.DType != u.fsdp2.reduce {
		p.accumulated = m.Make(reduceRule, graph.Gradients, u.fsdp2.reduce, g.Shape)
		p.dropGradient(m)
	}
}

// takeGradients takes the gradients away from the parameters that have one.
func (u *shardUnit) takeGradients() (with []*shardParam, grads []*graph.Tensor) {
	for _, p := range u.params {
		g := &p.accumulated
		if *g == nil {
			g = &p.whole.Grad
		}
		if *g != nil {
			with, grads = append(with, p), append(grads, *g)
			*g = nil
		}
	}
	return with, grads
}

// reduceScatter is foreach_reduce: gradients are copied into one tensor in the
// order of the ranks, its sum over them is scattered, and the shards' gradients
// are pieces of the result.
func (u *shardUnit) reduceScatter(m *graph.Machine, with []*shardParam, grads []*graph.Tensor) {
	total := int64(0)
	for _, p := range with {
		total += p.shard.Numel()
	}
	d := grads[0].DType
	if u.mixed {
		d = u.fsdp2.reduce
	}
	u.reducing = m.Make(reduceRule, graph.Buckets, d, graph.D(total*u.ranks))
	m.Scratch(chunkCatRule, graph.Temporaries, u.chunkCatTable(with, d))
	held := 0
	if m.Versions.Torch.Before(newerShardsSince) {
		held = 1 // a loop's variable holds the last until the function returns
	}
	forgetList(m, grads[:len(grads)-held])
	var out *graph.Tensor
	m.OnStream(reduceScatterStream, func() {
		out = m.Make(reduceRule, graph.Gradients, d, graph.D(total))
	})
	out = u.allReduce(m, out, with[0].shard.DType)
	for _, p := range with {
		if p.shard.Grad == nil {
			p.shard.Grad = m.Piece(out, p.shard.Shape)
		}
	}
	m.Forget(out)
	forgetList(m, grads[len(grads)-held:])
}

// allReduce sums the result over replicas, if there are any, on a stream of
// its own, and casts it to the parameters' type.
func (u *shardUnit) allReduce(m *graph.Machine, out *graph.Tensor, d graph.DType) *graph.Tensor {
	stream := uint8(reduceScatterStream)
	if u.replicas {
		stream = allReduceStream
		m.UseOn(out, ncclStream) // ProcessGroupNCCL records its own stream
		u.allReduced = m.Keep(out)
	}
	if out.DType == d {
		return out
	}
	m.OnStream(stream, func() {
		cast := m.Make(reduceRule, graph.Gradients, d, out.Shape)
		m.Forget(out)
		out = cast
	})
	return out
}

const (
	tableEntry    = 8        // bytes of an entry of a kernel's table
	blockBytes    = 128 * 16 // what a block of threads copies at once
	copyBlockSize = 128      // its threads
)

// copyOutTable is the size of the table split_with_sizes_copy hands its kernel:
// addresses and sizes of the pieces, and which block copies which
// (TensorShape.cu:split_with_sizes_copy_out_cuda_contiguous_no_cast).
func (u *shardUnit) copyOutTable(d graph.Device) int64 {
	blocks := int64(0)
	size := func(p *shardParam) int64 { return p.shard.Numel() * p.whole.DType.Size() }
	for _, p := range u.params {
		blocks += divUp(size(p), blockBytes)
	}
	most := d.Multiprocessors * d.ThreadsPerSM / copyBlockSize * 2
	factor := divUp(blocks*u.ranks, most)
	chunks := min(ceilSqrt(factor), u.ranks)
	each := divUp(factor, chunks)
	blocks = 0
	for _, p := range u.params {
		blocks += divUp(size(p), blockBytes*each)
	}
	return (4*int64(len(u.params)) + 1 + blocks) * tableEntry
}

// chunkCatTable is the same for _chunk_cat (get_chunk_cat_metadata).
func (u *shardUnit) chunkCatTable(with []*shardParam, d graph.DType) int64 {
	entries := 6*int64(len(with)) + 2
	for _, p := range with {
		entries += divUp(p.shard.Numel()*d.Size(), blockBytes)
	}
	return entries * tableEntry
}

func divUp(a, b int64) int64 { return (a + b - 1) / b }

// ceilSqrt is the smallest number whose square is not below n.
func ceilSqrt(n int64) int64 {
	r := int64(0)
	for r*r < n {
		r++
	}
	return r
}
