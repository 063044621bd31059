package step

import (
	"strconv"

	"memplan/internal/estimator/graph"
)

// shardUnit is a module fully_shard was called on: its FSDPState and
// FSDPParamGroup.
type shardUnit struct {
	*fsdp2
	module   *graph.Module
	managed  []*graph.Module
	params   []*shardParam
	reshards bool // reshard_after_forward

	state, groupState trainingState
	whole             bool          // the parameters are gathered
	keepsGradients    bool          // reduce_grads is off
	gathering         *graph.Tensor // the all-gather's output until it was copied out
	allReduced        *graph.Tensor // what the replicas' all-reduce works on
	uses              []int         // places in the order of forwards
}

// trainingState is TrainingState: where in a step a unit is.
type trainingState uint8

const (
	idle trainingState = iota
	inForward
	preBackward
	postBackward
)

// shardParam is a parameter of a unit: FSDPParam.
type shardParam struct {
	whole, shard *graph.Param
	cast         bool          // gathered in another type than it is kept in
	accumulated  *graph.Tensor // whole gradient of earlier micro batches, in the type it is reduced in
}

var (
	gatherRule   = &graph.Rule{Name: "foreach_all_gather", Source: "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:foreach_all_gather@v2.6.0"}
	copyOutRule  = &graph.Rule{Name: "split_with_sizes_copy", Source: "aten/src/ATen/native/cuda/TensorShape.cu:split_with_sizes_copy_out_cuda"}
	wholeRule    = &graph.Rule{Name: "unsharded_param", Source: "torch/distributed/fsdp/_fully_shard/_fsdp_param.py:init_all_gather_outputs@v2.6.0"}
	reduceRule   = &graph.Rule{Name: "foreach_reduce", Source: "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:foreach_reduce@v2.6.0"}
	chunkCatRule = &graph.Rule{Name: "_chunk_cat", Source: "aten/src/ATen/native/cuda/TensorShape.cu:_chunk_cat_out_cuda"}
	postRule     = &graph.Rule{Name: "RegisterPostBackwardFunction", Source: "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py@v2.6.0"}
)

// loadWhole is fully_shard on a module that is on the host: its parameters and
// buffers are moved to the card, cut, and the whole ones let go.
func (u *shardUnit) loadWhole(r *Run) {
	m := r.M
	m.InModule(u.module)
	var wholes []*graph.Tensor
	for _, p := range u.params {
		wholes = append(wholes, m.Make(shardRule, p.shard.Category, p.shard.DType, p.whole.Shape))
	}
	for _, mod := range u.managed {
		for _, b := range mod.Buffers {
			m.Place(shardRule, b, b.Numel())
		}
	}
	for _, p := range u.params {
		m.Place(shardRule, p.shard, p.shard.Numel())
	}
	for _, t := range wholes {
		m.Forget(t)
	}
}

// hook wraps the module's forward.
func (u *shardUnit) hook() {
	forward := u.module.Forward
	u.module.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		out := forward(f, u.preForward(f, in)...)
		u.postForward(f.Machine, out...)
		return out
	}
}

// preForward is FSDPState._pre_forward and FSDPParamGroup.pre_forward: the
// parameters are gathered, and a node in front of the inputs will know when the
// unit's backward is over. The recomputation of a checkpoint finds the unit in
// backward already.
func (u *shardUnit) preForward(f *graph.Frame, in []*graph.Tensor) []*graph.Tensor {
	if u.state == preBackward {
		return in
	}
	u.state = inForward
	if u.running == nil {
		u.running = u
	}
	if len(u.params) == 0 {
		return in
	}
	u.groupState = inForward
	u.unshard(f.Machine)
	u.waitForUnshard(f.Machine)
	if !f.GradEnabled() {
		return in
	}
	return u.watch(f, in)
}

// watch is _register_post_backward_hook.
func (u *shardUnit) watch(f *graph.Frame, in []*graph.Tensor) []*graph.Tensor {
	var at []int
	var watched []*graph.Tensor
	for i, t := range in {
		if t != nil && t.NeedsGrad {
			at, watched = append(at, i), append(watched, t)
		}
	}
	if len(at) == 0 {
		return in
	}
	m := f.Machine
	args := append([]*graph.Tensor(nil), in...)
	for i, t := range f.Through(postRule, func() { u.postBackward(m) }, watched...) {
		args[at[i]] = f.Let("fsdp_args"+strconv.Itoa(i), f.Give(t))
	}
	return args
}

// postForward is post_forward: the parameters are let go, and the outputs'
// gradients will start the unit's backward.
func (u *shardUnit) postForward(m *graph.Machine, out ...*graph.Tensor) {
	if u.state == preBackward {
		return
	}
	if len(u.params) > 0 {
		if u.reshards {
			u.reshard(m)
		}
		u.uses = append(u.uses, len(u.order))
		u.order = append(u.order, u)
		u.groupState = idle
	}
	if m.GradEnabled() {
		for _, t := range out {
			m.OnGradient(t, func() { u.beforeBackward(m) })
		}
	}
	u.state = idle
	if u.running == u {
		u.drop(m, &u.gathered)
		u.running = nil
	}
}

// unshard is the all-gather: shards are cast into one flat tensor, unless they
// have the compute type, which is copied into its place in the output.
func (u *shardUnit) unshard(m *graph.Machine) {
	if u.gathering != nil || u.whole {
		return
	}
	m.InModule(u.module)
	var total, cast int64
	for _, p := range u.params {
		total += p.shard.Numel()
		if p.cast {
			cast += p.shard.Numel()
		}
	}
	d := u.params[0].whole.DType
	m.OnStream(copyInStream, func() {
		var flat *graph.Tensor
		if cast > 0 {
			flat = m.Make(gatherRule, graph.Buckets, d, graph.D(cast))
		}
		u.gathering = m.Make(gatherRule, graph.Buckets, d, graph.D(total*u.ranks))
		u.drop(m, &flat)
	})
}

// waitForUnshard copies the gathered shards out into the parameters. In forward
// the output is kept until the next unit's copy, so that both overlap.
func (u *shardUnit) waitForUnshard(m *graph.Machine) {
	if u.gathering == nil {
		return
	}
	if u.groupState == inForward && m.Versions.Torch.AtLeast(newerShardsSince) {
		u.drop(m, &u.gathered)
	}
	for _, p := range u.params {
		n := p.shard.Numel() * u.ranks
		if p.whole.Tensor == nil {
			m.Place(wholeRule, p.whole, n)
		}
		m.Resize(p.whole.Tensor, n*p.whole.DType.Size())
	}
	m.Scratch(copyOutRule, graph.Temporaries, u.copyOutTable(m.Device))
	u.whole = true
	if u.groupState == inForward {
		u.drop(m, &u.gathered) // which a local name held to the end
		u.gathered, u.gathering = u.gathering, nil
	} else {
		u.drop(m, &u.gathering)
	}
}

// reshard frees the gathered parameters, whose storages others may hold.
func (u *shardUnit) reshard(m *graph.Machine) {
	if !u.whole {
		return
	}
	for _, p := range u.params {
		m.Resize(p.whole.Tensor, 0)
	}
	u.whole = false
}

// beforeBackward is _pre_backward: the parameters are gathered again, and those
// of the unit that ran forward before this one are asked for.
func (u *shardUnit) beforeBackward(m *graph.Machine) {
	u.state = preBackward
	if !u.queued {
		u.queued = true
		m.AfterBackward(func() { u.endOfBackward(m) })
	}
	if len(u.params) == 0 || u.groupState == preBackward {
		return
	}
	u.groupState = preBackward
	u.unshard(m)
	u.waitForUnshard(m)
	if u.mixed && m.Versions.Torch.AtLeast(newerShardsSince) {
		u.widen()
	}
	u.prefetch(m)
}

// widen is _set_unsharded_grad_dtypes: gradients that begin to accumulate
// unsynchronised are cast as they come, where torch is new enough.
func (u *shardUnit) widen() {
	for _, p := range u.params {
		p.whole.Widens = u.keepsGradients && p.whole.Grad == nil && u.fsdp2.reduce == graph.F32
		p.whole.GradDType = u.fsdp2.reduce
	}
}

// prefetch is _backward_prefetch.
func (u *shardUnit) prefetch(m *graph.Machine) {
	if len(u.uses) == 0 {
		return
	}
	last := u.uses[len(u.uses)-1]
	u.uses = u.uses[:len(u.uses)-1]
	if last > 0 {
		u.order[last-1].unshard(m)
	}
}

// finalize is finalize_backward: a gather nobody waited for is dropped.
func (u *shardUnit) finalize(m *graph.Machine) {
	u.drop(m, &u.allReduced)
	u.drop(m, &u.gathering)
	u.uses = nil
}
