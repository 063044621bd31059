package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
)

// fsdp1 is torch's FullyShardedDataParallel on one rank, without
// use_orig_params: the parameters of every wrapped module are one flat
// parameter, of which a rank keeps its part, padded to the same size on all of
// them (torch/distributed/fsdp/_flat_param.py and _runtime_utils.py @v2.6.0).
type fsdp1 struct {
	ranks    int64 // a flat parameter is spread over
	replicas bool  // and the parts are replicated (HYBRID_SHARD)
	offload  bool  // parts, their gradients and the optimizer are on the host
	compute  graph.DType
	reduce   graph.DType
	mixed    bool
	reshards bool        // FULL_SHARD: parameters are let go after forward
	prefetch string      // backward_prefetch: pre, post, none
	sync     bool        // gradients of the micro batch in hand are reduced
	units    []*flatUnit // in the order of modules(): the root first
	wrapped  []*flatUnit // in the order of construction: the root last
	order    []*flatUnit // by the end of their forwards

	root   *flatUnit
	ready  bool // lazy initialization is over
	queued bool
	zero   *graph.Tensor // _zero_scalar of clip_grad_norm_
}

// Streams of FullyShardedDataParallel, whose memory is cached apart.
const (
	preUnshardStream = iota + 1
	unshardStream
	postBackwardStream
	interNodeStream
)

// newFSDP1 flattens the parameters of a job's model, or returns nil where it is
// not sharded so. From here on the run's parameters are the parts.
func newFSDP1(r *Run) *fsdp1 {
	p := &r.Job.Parallelism
	if p.Sharding != "fsdp" || p.FSDP.Version != 1 {
		return nil
	}
	s := &fsdp1{ranks: int64(p.Data / max(1, p.Replicate)), replicas: p.Replicate > 1, prefetch: p.FSDP.BackwardPrefetch, sync: true}
	s.offload = len(p.Offload) > 0
	s.reshards = p.FSDP.Strategy == "FULL_SHARD"
	if d := r.Job.Training.Precision.Mixed(); d != "" {
		s.mixed, s.compute, s.reduce = true, DTypeOf(d), DTypeOf(p.FSDP.ReduceDType)
	}
	s.wrap(r.Net, p.FSDP.Wrap)
	r.Params = nil
	for _, u := range s.units {
		if u.part.Trained {
			r.Params = append(r.Params, u.part)
		}
	}
	return s
}

// wrap makes a unit of every module the policy chooses, and of the root.
func (s *fsdp1) wrap(net *model.Network, w *spec.Wrap) {
	chosen := map[*graph.Module]bool{net.Root: true}
	if w != nil && w.MinParameters > 0 {
		bySize(net.Root, int64(w.MinParameters), chosen)
	} else {
		for _, b := range net.Blocks {
			chosen[b] = true
		}
	}
	s.make(net.Root, chosen, map[*graph.Param]bool{})
	of := map[*graph.Module]*flatUnit{}
	for _, u := range s.wrapped {
		of[u.module] = u
	}
	net.Root.Walk(func(m *graph.Module) {
		if u := of[m]; u != nil {
			s.units = append(s.units, u)
		}
	})
	s.root = s.units[0]
	for _, u := range s.units[1:] {
		u.hook()
	}
}

// make constructs the units within m, those inside first.
func (s *fsdp1) make(m *graph.Module, chosen map[*graph.Module]bool, taken map[*graph.Param]bool) {
	for _, c := range m.Children {
		s.make(c, chosen, taken)
	}
	if chosen[m] {
		if u := s.flatten(m, taken); u != nil {
			s.wrapped = append(s.wrapped, u)
		}
	}
}

// bySize is size_based_auto_wrap_policy: a module is wrapped where what is left
// of it beside the wrapped modules inside has so many parameters; the
// containers of modules are not (torch/distributed/fsdp/wrap.py @v2.6.0).
func bySize(root *graph.Module, least int64, chosen map[*graph.Module]bool) {
	var visit func(m *graph.Module) int64
	visit = func(m *graph.Module) int64 {
		total := numelOf(m)
		if total < least {
			return 0
		}
		taken := int64(0)
		for _, c := range m.Children {
			taken += visit(c)
		}
		if total-taken < least || m.Class == "ModuleList" || m.Class == "ModuleDict" {
			return taken
		}
		chosen[m] = true
		return total
	}
	visit(root)
}

// numelOf counts a module's parameters.
func numelOf(m *graph.Module) int64 {
	n := int64(0)
	for _, p := range m.Parameters() {
		n += p.Numel()
	}
	return n
}

// flatten makes a module's unit of the parameters nobody has taken yet.
func (s *fsdp1) flatten(m *graph.Module, taken map[*graph.Param]bool) *flatUnit {
	u := &flatUnit{fsdp1: s, module: m}
	for _, p := range m.Parameters() {
		if !taken[p] {
			taken[p] = true
			u.params, u.numel = append(u.params, p), u.numel+p.Numel()
		}
	}
	if len(u.params) == 0 {
		return nil
	}
	first := u.params[0]
	u.kept, u.gathered = first.DType, first.DType
	if s.mixed {
		u.gathered = s.compute
	}
	rows := divUp(u.numel, s.ranks)
	u.part = &graph.Param{Name: "_flat_param", Shape: graph.D(rows), DType: u.kept, Trained: first.Trained, Category: first.Category}
	u.whole = &graph.Param{Name: "_flat_param", Shape: graph.D(u.numel), DType: u.gathered, Trained: first.Trained, Category: graph.Buckets}
	return u
}

// load wraps the modules one by one, from the inside out: what is on the host
// is moved, joined, cut, and let go.
func (s *fsdp1) load(r *Run) {
	r.M.Register(r.Net.Root)
	seen := map[*graph.Module]bool{}
	for _, u := range s.wrapped {
		u.load(r.M, seen)
	}
}

// call runs the model within the root's hooks.
func (s *fsdp1) call(r *Run, f *graph.Frame, forward func() model.Outputs) model.Outputs {
	s.sync = r.lastMicro || !r.Job.Parallelism.FSDP.NoSyncAccumulation
	if !s.ready {
		s.lazyInit(r)
	}
	s.root.preForward(f, nil)
	out := forward()
	s.root.postForward(f.Machine, append([]*graph.Tensor{out.Loss, out.Logits}, out.Others...)...)
	return out
}

// lazyInit is _lazy_init: buffers are cast, and every flat parameter's
// destinations made and freed at once, so that only their storages are there.
func (s *fsdp1) lazyInit(r *Run) {
	s.ready = true
	if s.mixed {
		r.Net.Root.Walk(func(m *graph.Module) {
			for _, b := range m.Buffers {
				s.castBuffer(r.M, b)
			}
		})
	}
	for _, u := range s.units {
		u.makeStorages(r.M)
	}
}

// castBuffer is _cast_buffers_to_dtype_and_device.
func (s *fsdp1) castBuffer(m *graph.Machine, b *graph.Param) {
	if !b.DType.Floating() || b.DType == s.compute {
		return
	}
	old := b.Tensor
	b.DType = s.compute
	m.Place(flattenRule, b, b.Numel())
	m.Forget(old)
}

// endOfBackward is _post_backward_final_callback.
func (s *fsdp1) endOfBackward(m *graph.Machine) {
	s.order = nil
	for _, u := range s.units {
		if u.usesWhole {
			u.reshard(m, u.freesInBackward())
		}
		if s.offload && u.part.Grad != nil { // copied to the host
			m.Forget(u.part.Grad)
			u.part.Grad = nil
		}
		u.state, u.at, u.ranPreBackward, u.awaited, u.prefetched = idle, 0, false, false, false
	}
	s.queued = false
}

// numel is what the rank keeps.
func (s *fsdp1) numel() int64 {
	n := int64(0)
	for _, u := range s.units {
		n += u.part.Numel()
	}
	return n
}

// even is true: flat parameters are padded on all ranks.
func (s *fsdp1) even() bool { return true }

// clip is FullyShardedDataParallel.clip_grad_norm_: the norm of every part in
// fp32, one by one, the norm of those, and the sum of its square over the ranks.
func (s *fsdp1) clip(r *Run) *graph.Tensor {
	if s.zero == nil {
		s.zero = r.M.Make(clipRule, graph.Other, graph.F32, graph.D())
	}
	if s.offload {
		s.clipOnHost(r)
		return nil
	}
	var total *graph.Tensor
	r.noGrad(func(f *graph.Frame) {
		var norms []*graph.Tensor
		for _, u := range s.units {
			if u.part.Grad != nil {
				norms = append(norms, f.Own(f.NormIn(u.part.Grad, graph.F32)))
			}
		}
		stacked := f.StackScalars(norms)
		forgetList(r.M, norms)
		local := f.Let("local_sharded_norm", f.NormIn(stacked, graph.F32))
		whole := f.Let("total_norm", f.Pow(local))
		whole = f.Let("total_norm", f.Pow(whole))
		coef := f.Let("clip_coef", f.Func(reciprocalTimes, f.AddScalar(whole))[0])
		f.Let("clip_coef_clamped", f.Clamp(coef))
		s.castCoefficient(f)
		total = f.Own(f.To(whole, s.widest()))
	})
	return total
}

// clipOnHost is the same of gradients on the host: only the norm is summed on
// the card.
func (s *fsdp1) clipOnHost(r *Run) {
	r.noGrad(func(f *graph.Frame) {
		local := f.Let("local_sharded_norm", f.Input(graph.F32))
		f.Let("total_norm", f.Pow(local))
		f.Let("total_norm", f.Pow(local))
		f.Del("total_norm")
	})
}

// widest is the type the gradients promote to.
func (s *fsdp1) widest() graph.DType {
	for _, u := range s.units {
		if u.part.Grad != nil && u.kept == graph.F32 {
			return graph.F32
		}
	}
	return s.units[0].kept
}

// castCoefficient is clip_coef_clamped.to(grad.dtype) for every gradient of
// another type.
func (s *fsdp1) castCoefficient(f *graph.Frame) {
	for _, u := range s.units {
		if g := u.part.Grad; g != nil && g.DType != graph.F32 {
			f.Scratch(clipRule, graph.Temporaries, g.DType.Size())
		}
	}
}

var clipRule = &graph.Rule{Name: "clip_grad_norm_", Source: "torch/distributed/fsdp/fully_sharded_data_parallel.py@v2.6.0"}
