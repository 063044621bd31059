package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
)

// fsdp2 is torch's fully_shard on one rank: every parameter is cut into
// chunks of its first dimension, and the modules it was called on gather theirs
// before they run and reduce their gradients after
// (torch/distributed/fsdp/_fully_shard @v2.6.0). The rank is the first of its
// group, whose chunks are the largest.
type fsdp2 struct {
	ranks    int64         // a parameter is spread over
	replicas bool          // and the shards are replicated (hybrid sharding)
	compute  graph.DType   // MixedPrecisionPolicy.param_dtype
	reduce   graph.DType   // reduce_dtype
	mixed    bool          // there is such a policy
	wholes   bool          // the model is built on the host and cut there, not made of shards from the start
	units    []*shardUnit  // in the order of root.named_modules()
	wrapped  []*shardUnit  // in the order in which fully_shard was called
	shards   []*shardParam // in the order of root.parameters()

	// What the communication of all units shares (FSDPCommContext).
	gathered *graph.Tensor // the last all-gather's output, kept while the next one runs (all_gather_state)
	reducing *graph.Tensor // the last reduce-scatter's input (reduce_scatter_state)
	order    []*shardUnit  // by the end of their forwards (post_forward_order)
	running  *shardUnit    // whose forward is the outermost (iter_forward_root)
	queued   bool          // the callback at the end of backward is
}

// newerShardsSince is a torch whose fully_shard lets the root go after forward
// where it was told to, keeps no local names of the last gather and the last
// gradient, and opens no context for a DTensor (measured on 2.6 and 2.15; the
// older way is assumed in between).
var newerShardsSince = spec.Version{2, 15}

// Streams of the collectives, whose memory is cached apart.
const (
	defaultStream = iota
	copyInStream
	_ // all-gathers, which allocate nothing
	reduceScatterStream
	allReduceStream
	ncclStream
)

// newFSDP2 cuts the parameters of a job's model, or returns nil where it is not
// sharded so. From here on the run's parameters are the shards.
func newFSDP2(r *Run) *fsdp2 {
	p := &r.Job.Parallelism
	if p.Sharding != "fsdp" || p.FSDP.Version != 2 {
		return nil
	}
	s := &fsdp2{ranks: int64(p.Data / max(1, p.Replicate)), replicas: p.Replicate > 1}
	if d := r.Job.Training.Precision.Mixed(); d != "" {
		s.mixed, s.compute, s.reduce = true, DTypeOf(d), graph.F32
		if p.FSDP.ReduceDType != "" {
			s.reduce = DTypeOf(p.FSDP.ReduceDType)
		}
	}
	s.wholes = r.Job.Training.Adapter != nil || tied(r.Net.Root)
	s.wrap(r.Net, p.FSDP, r.M.Versions.Torch)
	s.shard(r)
	return s
}

// tied reports whether modules share a parameter.
func tied(root *graph.Module) bool {
	found := false
	root.Walk(func(m *graph.Module) {
		for _, p := range m.Params {
			found = found || p.Tied != nil
		}
	})
	return found
}

// wrap makes the units: modules named for it, the layers, and the root, which
// takes what is left.
func (s *fsdp2) wrap(net *model.Network, o *spec.FSDP, torch spec.Version) {
	reshards := enabled(o.ReshardAfterForward)
	add := func(m *graph.Module) {
		s.wrapped = append(s.wrapped, &shardUnit{fsdp2: s, module: m, reshards: reshards})
	}
	for _, name := range o.ShardedSeparately {
		net.Root.Walk(func(m *graph.Module) {
			if m.Name == name {
				add(m)
			}
		})
	}
	for _, b := range net.Blocks {
		add(b)
	}
	add(net.Root)
	if o.ReshardAfterForward == nil || torch.Before(newerShardsSince) {
		s.wrapped[len(s.wrapped)-1].reshards = false // _lazy_init: the root is needed at once in backward
	}
	of := map[*graph.Module]*shardUnit{}
	for _, u := range s.wrapped {
		of[u.module] = u
	}
	net.Root.Walk(func(m *graph.Module) {
		if u := of[m]; u != nil {
			s.units = append(s.units, u)
			u.managed = managed(m, of)
			if m != net.Root {
				u.hook()
			}
		}
	})
}

// managed lists the modules of a unit, children first, without those of units
// within it (_get_managed_modules).
func managed(root *graph.Module, units map[*graph.Module]*shardUnit) []*graph.Module {
	var all []*graph.Module
	for _, c := range root.Children {
		if units[c] == nil {
			all = append(all, managed(c, units)...)
		}
	}
	return append(all, root)
}

// shard cuts every parameter and gives it to its unit.
func (s *fsdp2) shard(r *Run) {
	of := map[*graph.Param]*shardParam{}
	for _, u := range s.wrapped {
		for _, m := range u.managed {
			for _, p := range m.Params {
				if p.Tied != nil {
					p = p.Tied
				}
				if of[p] == nil {
					of[p] = s.cut(p)
					u.params = append(u.params, of[p])
				}
			}
		}
	}
	for _, p := range r.Net.Root.Parameters() {
		s.shards = append(s.shards, of[p])
	}
	for i, p := range r.Params {
		r.Params[i] = of[p].shard
	}
}

// cut makes the first rank's chunk of a parameter, and the parameter one that
// is gathered in the compute type.
func (s *fsdp2) cut(p *graph.Param) *shardParam {
	rows := (p.Shape.D[0] + s.ranks - 1) / s.ranks
	shard := &graph.Param{Name: p.Name, Shape: p.Shape.With(0, rows), DType: p.DType, Trained: p.Trained, Category: p.Category}
	if s.mixed {
		p.DType = s.compute
	}
	p.Category = graph.Buckets
	return &shardParam{whole: p, shard: shard, cast: shard.DType != p.DType}
}

var shardRule = &graph.Rule{Name: "fully_shard", Source: "torch/distributed/fsdp/_fully_shard/_fsdp_param.py@v2.6.0"}

// load puts the shards on the card: at once where the model was on the meta
// device, else unit by unit through the whole parameters.
func (s *fsdp2) load(r *Run) {
	r.M.Register(r.Net.Root)
	if s.wholes {
		for _, u := range s.wrapped {
			u.loadWhole(r)
		}
		return
	}
	if r.M.Versions.Torch.Before(newerShardsSince) {
		r.M.Scratch(shardRule, graph.Temporaries, 4) // the first DTensor made from another opens the context with a tensor
	}
	of := map[*graph.Param]*shardParam{}
	for _, p := range s.shards {
		of[p.whole] = p
	}
	r.M.EachState(r.Net.Root, func(p *graph.Param) {
		if sharded := of[p]; sharded != nil {
			p = sharded.shard
		} else if p.Tied != nil {
			return
		}
		r.M.Place(shardRule, p, p.Numel())
	})
}

// call runs the model within the root's hooks.
func (s *fsdp2) call(r *Run, f *graph.Frame, forward func() model.Outputs) model.Outputs {
	s.sync(r.lastMicro || !r.Job.Parallelism.FSDP.NoSyncAccumulation)
	root := s.units[0]
	root.preForward(f, nil)
	out := forward()
	root.postForward(f.Machine, append([]*graph.Tensor{out.Loss, out.Logits}, out.Others...)...)
	return out
}

// sync is set_requires_gradient_sync: micro batches before the last keep whole
// gradients, where the job says so.
func (s *fsdp2) sync(on bool) {
	for _, u := range s.units {
		u.keepsGradients = !on
	}
}

// clip is clip_grad_norm_ on DTensors: norms are summed over the ranks where
// their total is wanted, and since the newer torch before it is taken.
func (s *fsdp2) clip(r *Run) *graph.Tensor {
	if r.M.Versions.Torch.AtLeast(newerShardsSince) {
		return clipBy(r, reducedNormOf, reciprocalTimes)
	}
	return clipBy(r, normOf, reducedReciprocalTimes)
}

// numel is what the rank keeps.
func (s *fsdp2) numel() int64 {
	n := int64(0)
	for _, p := range s.shards {
		n += p.shard.Numel()
	}
	return n
}

// even reports whether all parameters divide by the ranks: the optimizer's
// state is not padded.
func (s *fsdp2) even() bool {
	for _, p := range s.shards {
		if p.whole.Shape.D[0]%s.ranks != 0 {
			return false
		}
	}
	return true
}

// endOfBackward is _root_post_backward_final_callback: units whose inputs
// needed no gradient, the root above all, come to their end here.
func (s *fsdp2) endOfBackward(m *graph.Machine) {
	for _, u := range s.units {
		if u.whole && len(u.params) > 0 {
			u.postBackward(m)
		}
		u.state, u.groupState = idle, idle
		u.finalize(m)
	}
	s.order = nil
	s.drop(m, &s.reducing)
	s.queued = false
}

// drop gives a tensor back, if there is one.
func (s *fsdp2) drop(m *graph.Machine, t **graph.Tensor) {
	if *t != nil {
		m.Forget(*t)
		*t = nil
	}
}
