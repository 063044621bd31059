package step

import (
	"slices"
	"strconv"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
)

// zero3 is ZeRO of stage 3: every parameter is cut evenly over the ranks and
// gathered around the modules that use it
// (deepspeed/runtime/zero/stage3.py:DeepSpeedZeroOptimizer_Stage3 @v0.16.4).
type zero3 struct {
	ranks        int64
	settings     *spec.Zero
	overlap      bool // overlap_comm: collectives on streams of their own
	contiguous   bool // contiguous_gradients
	bucketSize   int64
	offload      bool // fp32 weights, optimizer and gradients are on the host
	offloadParts bool // and so are the parameters' parts
	dtype        graph.DType
	clips        bool
	built        bool // within zero.Init, as the Trainer does

	params    []*zeroParam // by ds_id
	of        map[*graph.Param]*zeroParam
	trained   []*zeroParam
	subGroups []*subGroup
	outer     []*zeroModule // the model, and what wraps it
	inForward bool
	coordinator
	alike bool // the last step did nothing that the next will not

	parts      *graph.Tensor // lp_param_buffer: the trained parameters' parts
	gradients  *graph.Tensor // grad_partitions_flat_buffer
	buffer     *graph.Tensor // ipg_bucket_flat_buffer
	bucket     []*zeroParam  // whose gradients are reduced together next
	bucketHas  int64
	barrierOld *graph.Tensor // barriers keep their tensor to the next
	held       *graph.Tensor // on its way to the host
	micros     int           // micro_step_id
	norms      []*graph.Tensor
}

// zeroParam is a parameter as ZeRO 3 marks it.
type zeroParam struct {
	*graph.Param
	id       int
	kind     graph.Category // of its part
	part     int64          // elements of one rank's part, padded
	shard    *graph.Tensor  // ds_tensor, until it is part of the flat one
	nothing  *graph.Tensor  // what data is between uses
	persists bool           // ds_persist: kept from the end of one step to the next
	status   zeroStatus
	users    []*zeroModule // ds_active_sub_modules
	handle   *gather       // of the gather in flight
}

// zeroStatus is ZeroParamStatus.
type zeroStatus uint8

// The states of a parameter.
const (
	partitioned zeroStatus = iota
	inFlight
	available
)

// subGroup is the parameters that are stepped at once.
type subGroup struct {
	params []*zeroParam
	group  int // of the optimizer's
	numel  int64
	master *graph.Param
}

// zeroModule is a module with ZeRO 3's hooks.
type zeroModule struct {
	module  *graph.Module
	params  []*zeroParam // its own
	reads   *zeroParam   // what the caller reads after it has called this one
	caller  *zeroModule
	awaited int // ds_grads_remaining
	outputs int // applied_pre_backward_ref_cnt
}

var (
	partitionRule = &graph.Rule{Name: "partition", Source: "deepspeed/runtime/zero/partition_parameters.py:_partition_param@v0.16.4"}
	defragRule    = &graph.Rule{Name: "defragment", Source: "deepspeed/runtime/zero/stage3.py:defragment@v0.16.4"}
	barrierRule   = &graph.Rule{Name: "barrier", Source: "torch/distributed/distributed_c10d.py:barrier@v2.6.0"}
	emptyRule     = &graph.Rule{Name: "empty", Source: "deepspeed/runtime/zero/partition_parameters.py:free_param@v0.16.4"}
)

// newZero3 cuts the parameters; the run's parameters are the fp32 parts of the
// sub-groups from here on.
func newZero3(r *Run, groups [][]*graph.Param) *zero3 {
	p := &r.Job.Parallelism
	z := &zero3{
		ranks: int64(p.Data), settings: p.Zero, overlap: *p.Zero.OverlapComm, contiguous: enabled(p.Zero.ContiguousGradients),
		bucketSize: int64(p.Zero.ReduceBucketSize.Value), offload: offloads(p, "optimizer"), offloadParts: offloads(p, "parameters"),
		dtype: engineDType(&r.Job.Training), clips: enabled(r.Job.Training.GradClipping), of: map[*graph.Param]*zeroParam{},
		built: r.Job.Runtime.Trainer == "hf",
	}
	threshold := int64(p.Zero.ParamPersistenceThreshold.Value)
	for i, w := range r.Net.Root.Parameters() {
		q := &zeroParam{Param: w, id: i, kind: w.Category, part: divUp(w.Numel(), z.ranks), persists: w.Numel() <= threshold, status: available}
		z.params = append(z.params, q)
		z.of[w] = q
		w.Category = graph.Buckets // while it is whole
	}
	r.Params, r.ParamGroups = nil, nil
	for i, ps := range groups {
		for _, g := range z.split(ps, int64(p.Zero.SubGroupSize.Value)) {
			g.group = i
			z.subGroups = append(z.subGroups, g)
			z.trained = append(z.trained, g.params...)
			r.Params = append(r.Params, g.master)
			r.ParamGroups = append(r.ParamGroups, []*graph.Param{g.master})
		}
	}
	z.coordinator = newCoordinator(z)
	z.hook(r)
	return z
}

// split is _create_fp16_sub_groups: parameters in order until their parts are
// as many elements as a sub-group may have.
func (z *zero3) split(ps []*graph.Param, size int64) []*subGroup {
	var all []*subGroup
	g := &subGroup{}
	for i, p := range ps {
		g.params, g.numel = append(g.params, z.of[p]), g.numel+z.of[p].part
		if g.numel >= size || i == len(ps)-1 {
			g.master = &graph.Param{Name: "fp32_partition", Shape: graph.D(g.numel), DType: graph.F32, Trained: true, Category: graph.MasterWeights}
			all = append(all, g)
			g = &subGroup{}
		}
	}
	return all
}

// load is deepspeed.initialize of a model that was built whole on the host: it
// is moved to the card, cut there parameter by parameter, and the trained parts
// are moved by way of the host into one tensor.
func (z *zero3) load(r *Run) {
	m := r.M
	m.SwapsData()
	if z.built {
		m.LinearFunction()
	}
	if r.Job.Training.Optimizer.Library == deepSpeedLibrary && !z.offload {
		m.Make(adamRule, graph.OptimizerState, graph.I32, graph.D()) // _dummy_overflow_buf
	}
	z.loadParts(r)
	m.InModule(nil)
	if !z.offload {
		m.Make(zeroGradRule, graph.Other, graph.Bool, graph.D(1)) // inf_or_nan_tracker
	}
	z.barrier(m)
	if !z.offloadParts {
		z.defragment(m)
	}
	for _, g := range z.subGroups {
		z.makeMaster(m, g)
	}
	z.barrier(m)
	if !z.offload { // initialize_optimizer_states, whose gradients are dropped again
		largest := int64(0)
		for _, g := range z.subGroups {
			largest = max(largest, g.numel)
		}
		m.Scratch(zeroGradRule, graph.Temporaries, largest*graph.F32.Size())
	}
	z.barrier(m)
	if z.contiguous {
		z.buffer = m.Make(ipgRule, graph.Buckets, z.dtype, graph.D(z.bucketSize))
	}
	if !z.offload {
		z.gradients = m.Make(zeroGradRule, graph.Gradients, z.accumulates(&r.Job.Training), graph.D(z.numelOf(z.trained)))
	}
	for _, p := range z.trained { // create_reduce_and_remove_grad_hooks gathers each once
		z.gatherAlone(m, p)
		z.free(m, p)
		p.Hook = func(*graph.Leaf) { z.gradientReady(r, p) }
	}
}

// loadParts brings the parameters to the card and cuts them: one by one where
// the model was built within zero.Init, else when all are there.
func (z *zero3) loadParts(r *Run) {
	m := r.M
	if !z.built {
		m.ToDevice(r.Net.Root)
		m.InModule(nil)
		for _, p := range z.params {
			z.cut(m, p)
		}
		return
	}
	m.Register(r.Net.Root)
	m.EachState(r.Net.Root, func(p *graph.Param) {
		q := z.of[p]
		switch {
		case p.Tied != nil || p.Tensor != nil:
		case q != nil:
			m.Place(partitionRule, p, p.Numel())
			z.cut(m, q)
		default:
			m.Place(partitionRule, p, p.Numel())
		}
	})
}

// cut is _partition_param for the first time.
func (z *zero3) cut(m *graph.Machine, p *zeroParam) {
	if !z.offloadParts {
		p.shard = m.Make(partitionRule, p.kind, p.DType, graph.D(p.part))
	}
	whole := p.Tensor
	m.Place(emptyRule, p.Param, 0)
	p.nothing, p.Tensor = p.Tensor, whole
	z.free(m, p)
}

// free is free_param: data holds nothing any more.
func (z *zero3) free(m *graph.Machine, p *zeroParam) {
	m.UseOn(p.Tensor, defaultStream)
	m.Forget(p.Tensor)
	p.Tensor, p.status = p.nothing, partitioned
}

// defragment joins the trained parts.
func (z *zero3) defragment(m *graph.Machine) {
	for _, p := range z.trained {
		m.Forget(p.shard)
		p.shard = nil
	}
	m.EmptyCache()
	category := graph.Parameters
	if len(z.trained) > 0 {
		category = z.trained[0].kind
	}
	z.parts = m.Make(defragRule, category, z.dtype, graph.D(z.numelOf(z.trained)))
}

func (z *zero3) makeMaster(m *graph.Machine, g *subGroup) {
	if z.offload {
		return
	}
	clone := m.Make(masterRule, graph.Temporaries, z.dtype, graph.D(g.numel))
	g.master.Tensor = clone
	if z.dtype != graph.F32 {
		g.master.Tensor = m.Make(masterRule, graph.MasterWeights, graph.F32, graph.D(g.numel))
		m.Forget(clone)
	}
}

// barrier reduces one byte, kept until the next barrier.
func (z *zero3) barrier(m *graph.Machine) {
	fresh := m.Make(barrierRule, graph.Other, graph.U8, graph.D(1))
	if z.barrierOld != nil {
		m.Forget(z.barrierOld)
	}
	z.barrierOld = fresh
	m.Scratch(barrierRule, graph.Temporaries, graph.F32.Size())
}

func (z *zero3) numelOf(ps []*zeroParam) int64 {
	n := int64(0)
	for _, p := range ps {
		n += p.part
	}
	return n
}

// host is the fp32 weights, gradients and moments of the trained parts, their
// gradients in the type they come in, and the parts themselves where the job
// keeps them there.
func (z *zero3) host(r *Run) (n int64) {
	trained := z.numelOf(z.trained)
	if z.offload {
		n += trained * ((2+hostMoments)*graph.F32.Size() + z.accumulates(&r.Job.Training).Size())
	}
	if z.offloadParts {
		n += z.numelOf(z.params) * z.dtype.Size()
	}
	return n
}

// settled reports whether the order of modules was known before the last step.
func (z *zero3) settled() bool { return z.alike }

// numel is the parts of all parameters.
func (z *zero3) numel() int64 { return z.numelOf(z.params) }

// hook puts the hooks around every module. The root's run in call, and around
// it those of PeftModel and LoraModel where there is an adapter.
func (z *zero3) hook(r *Run) {
	if r.Job.Training.Adapter != nil {
		z.outer = append(z.outer, &zeroModule{}, &zeroModule{})
	}
	of := map[*graph.Module]*zeroModule{}
	r.Net.Root.Walk(func(m *graph.Module) {
		u := &zeroModule{module: m, params: z.own(m)}
		of[m] = u
		switch {
		case m == r.Net.Root:
			z.outer = append(z.outer, u)
		case m.Forward != nil:
			forward := m.Forward
			m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
				return z.around(f, u, forward, in)
			}
		}
	})
	r.Net.Root.Walk(func(m *graph.Module) {
		if base, down := childNamed(m, "base_layer"), childNamed(m, "lora_A"); base != nil && down != nil {
			u := of[base]
			u.caller, u.reads = of[m], of[down.Children[0]].params[0] // for its type
		}
	})
}

func childNamed(m *graph.Module, name string) *graph.Module {
	for _, c := range m.Children {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// own are the parameters of a module itself.
func (z *zero3) own(m *graph.Module) []*zeroParam {
	var own []*zeroParam
	for _, p := range m.Params {
		if p.Tied != nil {
			p = p.Tied
		}
		own = append(own, z.of[p])
	}
	return own
}

// around runs a module's forward between its hooks: its parameters are fetched
// before and released after, and in backward when the gradients of its outputs
// come and when those of its inputs are there. What runs past the end of a
// recomputation does not really run.
func (z *zero3) around(f *graph.Frame, u *zeroModule, forward graphFunc, in []*graph.Tensor) []*graph.Tensor {
	m := f.Machine
	if m.Ghost() {
		return forward(f, in...)
	}
	z.enter(m, u)
	args := append([]*graph.Tensor(nil), in...)
	for i, t := range in {
		if t != nil {
			args[i] = z.watchInput(f, u, i, t)
		}
	}
	out := forward(f, args...)
	if m.Ghost() {
		return out
	}
	z.release(m, u)
	for i, t := range out {
		if t != nil {
			out[i] = z.watchOutput(f, u, t)
		}
	}
	if u.reads != nil {
		z.readOutside(m, u.caller, u.reads)
	}
	return out
}

// readOutside is ZeROOrderedDict.__getitem__: a parameter that a module reads
// of another in forward is gathered there and then, and is one of its own from
// then on (register_external_parameter).
func (z *zero3) readOutside(m *graph.Machine, by *zeroModule, p *zeroParam) {
	if !z.inForward || p.status != partitioned {
		return
	}
	by.params = append(by.params, p)
	z.gatherAlone(m, p)
}

var (
	preBackwardRule  = &graph.Rule{Name: "PreBackwardFunctionForModule", Source: "deepspeed/runtime/zero/parameter_offload.py@v0.16.4"}
	postBackwardRule = &graph.Rule{Name: "PostBackwardFunctionModule", Source: "deepspeed/runtime/zero/parameter_offload.py@v0.16.4"}
)

// watchInput is _post_backward_module_hook.
func (z *zero3) watchInput(f *graph.Frame, u *zeroModule, i int, t *graph.Tensor) *graph.Tensor {
	m := f.Machine
	if t.NeedsGrad {
		u.awaited++
	}
	through := f.Through(postBackwardRule, func() {
		if u.awaited--; u.awaited == 0 {
			z.release(m, u)
		}
	}, t)[0]
	return f.Let("zero_input"+strconv.Itoa(i), f.Give(through))
}

// watchOutput is _pre_backward_module_hook. The tensor that the module returned
// gives way to the function's.
func (z *zero3) watchOutput(f *graph.Frame, u *zeroModule, t *graph.Tensor) *graph.Tensor {
	m := f.Machine
	u.outputs++
	through := f.Through(preBackwardRule, func() {
		if u.outputs > 0 {
			z.enter(m, u)
			u.outputs--
		}
	}, t)[0]
	f.Drop(t)
	return f.Give(through)
}

// call runs the model within its hooks and those of what wraps it.
func (z *zero3) call(r *Run, f *graph.Frame, forward func() model.Outputs) model.Outputs {
	m := r.M
	z.inForward = true
	z.resetStep(m)
	for _, u := range z.outer {
		z.enter(m, u)
	}
	out := forward()
	for _, u := range slices.Backward(z.outer) {
		z.release(m, u)
		z.watchOutputs(f, u, &out)
	}
	z.inForward = false
	return out
}

func (z *zero3) watchOutputs(f *graph.Frame, u *zeroModule, out *model.Outputs) {
	watch := func(t *graph.Tensor) *graph.Tensor {
		if t == nil {
			return nil
		}
		return f.Own(z.watchOutput(f, u, f.Give(t)))
	}
	out.Loss, out.Logits = watch(out.Loss), watch(out.Logits)
	for i, t := range out.Others {
		out.Others[i] = watch(t)
	}
}

// accumulates is the type gradients are kept in.
func (z *zero3) accumulates(t *spec.Training) graph.DType {
	if t.GradientDType != "" {
		return DTypeOf(t.GradientDType)
	}
	return z.dtype
}
