package step

import "memplan/internal/estimator/graph"

// flatUnit is a wrapped module: an _FSDPState and its FlatParamHandle.
type flatUnit struct {
	*fsdp1
	module *graph.Module
	params []*graph.Param // the original ones, views of the flat one while the module runs
	numel  int64

	kept, gathered graph.DType
	part           *graph.Param  // what the rank keeps, and the optimizer sees
	whole          *graph.Param  // the gathered flat parameter
	low            *graph.Tensor // the part in the compute type (_mp_shard)
	padded         *graph.Tensor // the all-gather's destination (_full_param_padded)

	state          trainingState
	usesWhole      bool // flat_param.data is the gathered one
	prefetched     bool
	awaited        bool // _needs_pre_backward_unshard
	ranPreBackward bool
	at             int // place in the order of forwards, from 1; 0 is none
}

var (
	flattenRule = &graph.Rule{Name: "flatten_tensors", Source: "torch/distributed/fsdp/_flat_param.py@v2.6.0"}
	unshardRule = &graph.Rule{Name: "unshard", Source: "torch/distributed/fsdp/_flat_param.py:_alloc_padded_unsharded_flat_param@v2.6.0"}
	scatterRule = &graph.Rule{Name: "_reduce_grad", Source: "torch/distributed/fsdp/_runtime_utils.py@v2.6.0"}
)

// load is the constructor: parameters and buffers are moved to the card, level
// by level; the parameters joined, the rank's part copied, the rest freed.
func (u *flatUnit) load(m *graph.Machine, seen map[*graph.Module]bool) {
	m.InModule(u.module)
	mine := map[*graph.Param]bool{}
	for _, p := range u.params {
		mine[p] = true
	}
	var wholes []*graph.Tensor
	var buffers []*graph.Param
	for queue := []*graph.Module{u.module}; len(queue) > 0; queue = queue[1:] {
		mod := queue[0]
		for _, p := range mod.Params {
			if p.Tied != nil {
				p = p.Tied
			}
			if mine[p] {
				mine[p] = false
				wholes = append(wholes, m.Make(flattenRule, p.Category, p.DType, p.Shape))
			}
		}
		buffers = append(buffers, mod.Buffers...)
		for _, c := range mod.Children {
			if !seen[c] {
				queue = append(queue, c)
			}
		}
	}
	for _, b := range buffers {
		m.Place(flattenRule, b, b.Numel())
	}
	flat := m.Make(flattenRule, u.part.Category, u.kept, graph.D(u.numel))
	m.Place(flattenRule, u.part, u.part.Numel())
	m.Forget(flat)
	if u.offload {
		m.Forget(u.part.Tensor)
	}
	forgetList(m, wholes)
	seen[u.module] = true
}

// makeStorages is init_flat_param_attributes.
func (u *flatUnit) makeStorages(m *graph.Machine) {
	m.InModule(u.module)
	n := u.part.Numel()
	cast := u.mixed && u.gathered != u.kept
	if cast {
		u.low = m.Make(flattenRule, graph.Buckets, u.gathered, u.part.Shape)
		m.Resize(u.low, 0)
	}
	u.padded = m.Make(unshardRule, graph.Buckets, u.gathered, graph.D(n*u.ranks))
	m.Resize(u.padded, 0)
	if cast {
		m.Scratch(flattenRule, graph.Buckets, n*u.ranks*u.kept.Size()) // for full precision, never used
	}
	m.Over(u.padded, u.whole)
}

// hook wraps the module's forward.
func (u *flatUnit) hook() {
	forward := u.module.Forward
	u.module.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		u.preForward(f, in)
		out := forward(f, in...)
		u.postForward(f.Machine, out...)
		return out
	}
}

// preForward is _pre_forward. The recomputation of a checkpoint finds the unit
// in backward already.
func (u *flatUnit) preForward(f *graph.Frame, in []*graph.Tensor) {
	if u.state == preBackward {
		return
	}
	u.state = inForward
	if !u.prefetched {
		u.unshard(f.Machine)
	}
	if !f.GradEnabled() {
		return
	}
	if u.part.Trained {
		u.whole.Hook = func(*graph.Leaf) { u.postBackward(f.Machine) }
	}
}

// postForward is _post_forward.
func (u *flatUnit) postForward(m *graph.Machine, out ...*graph.Tensor) {
	if u.state == preBackward {
		return
	}
	if u.at == 0 {
		u.order = append(u.order, u)
		u.at = len(u.order)
	}
	u.reshard(m, u != u.root && u.reshards)
	if m.GradEnabled() {
		u.awaited, u.ranPreBackward = false, false
		for _, t := range out {
			if m.OnGradient(t, func() { u.beforeBackward(m) }) {
				u.awaited = true
			}
		}
	}
	u.state = idle
}

// unshard is _unshard: the part is cast on one stream and gathered on another,
// and the parameters become views of the result.
func (u *flatUnit) unshard(m *graph.Machine) {
	m.InModule(u.module)
	size := u.padded.Bytes()
	here := u.here(m)
	if u.low != nil && (!here || u.offload) {
		m.OnStream(preUnshardStream, func() { u.lower(m) })
	}
	if !here {
		m.OnStream(unshardStream, func() { m.Resize(u.padded, int64(size)) })
	}
	m.OnStream(unshardStream, func() {
		u.usesWhole = true
		if u.state == inForward {
			u.view(m)
		}
		if u.low != nil {
			m.UseOn(u.low, unshardStream)
			m.Resize(u.low, 0)
		}
	})
}

// lower is _use_low_precision_shard: the part in the compute type, by way of the
// card where it is on the host.
func (u *flatUnit) lower(m *graph.Machine) {
	m.Resize(u.low, int64(u.low.Bytes()))
	if u.offload {
		m.Scratch(flattenRule, graph.Buckets, int64(u.part.Bytes()))
	}
}

// here reports whether the gathered parameter has its bytes.
func (u *flatUnit) here(m *graph.Machine) bool { return m.Holds(u.padded) }

// view is _use_unsharded_views: fresh views, recorded, take the places of the
// old ones.
func (u *flatUnit) view(m *graph.Machine) {
	shapes := make([]graph.Dims, len(u.params))
	for i, p := range u.params {
		shapes[i] = p.Shape
	}
	for i, v := range m.Unflatten(u.whole.Tensor, shapes) {
		if old := u.params[i].Tensor; old != nil {
			m.Forget(old)
		}
		u.params[i].Tensor = v
	}
}

// reshard is _reshard.
func (u *flatUnit) reshard(m *graph.Machine, free bool) {
	u.usesWhole, u.prefetched = false, false
	if free {
		m.UseOn(u.padded, defaultStream)
		m.Resize(u.padded, 0)
	}
}

// freesInBackward is _should_free_in_backward.
func (u *flatUnit) freesInBackward() bool { return u.sync || u.reshards }

// beforeBackward is _pre_backward_hook.
func (u *flatUnit) beforeBackward(m *graph.Machine) {
	if u.ranPreBackward {
		return
	}
	if u == u.root && !u.queued {
		u.queued = true
		m.AfterBackward(func() { u.endOfBackward(m) })
	}
	u.state = preBackward
	if u.awaited && !u.prefetched {
		u.unshard(m)
	}
	u.awaited = false
	if u.prefetch == "pre" {
		u.fetchNext(m)
	}
	u.ranPreBackward = true
}

// fetchNext is _prefetch_handle: the unit that ran forward before this one.
func (u *flatUnit) fetchNext(m *graph.Machine) {
	if u.at < 2 {
		return
	}
	next := u.order[u.at-2]
	if !next.awaited || next.prefetched {
		return
	}
	state := next.state
	next.state = preBackward
	next.unshard(m)
	next.state, next.prefetched = state, true
}

// postBackward is _post_backward_hook: the flat gradient is complete.
func (u *flatUnit) postBackward(m *graph.Machine) {
	u.state = postBackward
	m.InModule(u.module)
	u.reshard(m, u.freesInBackward())
	if u.prefetch == "post" {
		u.fetchNext(m)
	}
	if !u.sync {
		return
	}
	grad := u.whole.Grad
	u.whole.Grad = nil
	m.OnStream(postBackwardStream, func() { u.reduceGradient(m, grad) })
	m.UseOn(grad, postBackwardStream)
	m.Forget(grad)
}

// reduceGradient is _reduce_grad: the gradient in the type it is reduced in,
// padded to a multiple of the ranks, and this rank's part of the sum.
func (u *flatUnit) reduceGradient(m *graph.Machine, grad *graph.Tensor) {
	d := u.gathered
	if u.mixed {
		d = u.fsdp1.reduce
	}
	var held []*graph.Tensor
	if grad.DType != d {
		held = append(held, m.Make(scatterRule, graph.Buckets, d, grad.Shape))
	}
	n := u.part.Numel()
	if n*u.ranks > u.numel {
		held = append(held, m.Make(scatterRule, graph.Buckets, d, graph.D(n*u.ranks)))
	}
	out := m.Make(scatterRule, graph.Gradients, d, graph.D(n))
	if u.replicas {
		m.UseOn(out, interNodeStream)
	}
	if d != u.kept {
		out = u.castBack(m, out)
	}
	if u.part.Grad == nil {
		u.part.Grad = out
	} else {
		m.Forget(out)
	}
	forgetList(m, held)
}

// castBack is _cast_grad_to_param_dtype, on the stream of the replicas'
// all-reduce where there is one.
func (u *flatUnit) castBack(m *graph.Machine, out *graph.Tensor) *graph.Tensor {
	stream := uint8(postBackwardStream)
	if u.replicas {
		stream = interNodeStream
	}
	var cast *graph.Tensor
	m.OnStream(stream, func() { cast = m.Make(scatterRule, graph.Gradients, u.kept, out.Shape) })
	m.UseOn(out, stream)
	m.Forget(out)
	return cast
}
