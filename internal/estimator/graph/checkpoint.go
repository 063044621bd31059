package graph

// region is one run of torch.utils.checkpoint with use_reentrant=False: what
// its nodes save is only counted, and comes back when the first of it is
// wanted, by running the function again
// (torch/utils/checkpoint.py@v2.6.0, _checkpoint_hook and _recomputation_hook).
type region struct {
	fn       func(f *Frame, in ...*Tensor) []*Tensor
	mod      *Module
	in       []*Tensor // inputs, and what the function was given beside them
	inputs   int       // how many of in are inputs
	autocast autocast

	count      int          // tensors packed in the first run
	live       int          // of those, the ones whose node still needs them
	lost       map[int]bool // those whose node died before any backward
	restoring  bool
	recomputed []*Tensor // by order of packing; each is handed to its node once
}

// pack counts a node's tensors in the first run and keeps them in the second,
// whose last one ends it (set_checkpoint_early_stop, on by default).
func (r *region) pack(m *Machine, n *Node, ts []*Tensor) {
	if !r.restoring {
		if n.region == nil {
			n.region, n.regionAt = r, int32(r.count)
		}
		n.saved = append(n.saved, ts...)
		r.count += len(ts)
		r.live += len(ts)
		return
	}
	for _, t := range ts {
		at := len(r.recomputed)
		if at == r.count { // past the end: nothing from here on really happens
			return
		}
		switch {
		case r.lost[at] && at == r.count-1: // the second run ends before its node is there
			m.releaseAll(n.saved)
			n.saved, t = nil, nil
		case r.lost[at]:
			m.retain(t)
			n.saved = append(n.saved, t)
			t = nil
		default:
			m.retain(t)
			m.asActivation(t)
		}
		r.recomputed = append(r.recomputed, t)
		m.ghost = len(r.recomputed) == r.count
	}
}

// restore gives node n its saved tensors back and reports whether it had to:
// they die when the node has run, before its gradients are checked.
func (m *Machine) restore(n *Node) bool {
	if n.hosted && len(n.saved) > 0 {
		m.fromHost(n)
		return true
	}
	r := n.region
	if r == nil || len(n.saved) == 0 {
		return false
	}
	if r.recomputed == nil {
		m.recompute(r)
	}
	copy(n.saved, r.recomputed[n.regionAt:])
	m.module, m.rule = n.module, n.rule
	return true
}

// leave lets go of a region's inputs when the last node of the first run has
// given up its saved tensors: the hooks of those hold them.
func (m *Machine) leave(r *region, tensors int) {
	if r.live -= tensors; r.live > 0 {
		return
	}
	m.releaseAll(r.in)
	r.in = nil
}

// recompute runs the region's function again under its autocast, with a cache
// of its own, and keeps what it saves.
func (m *Machine) recompute(r *region) {
	r.restoring = true
	m.ownGraph(func() {
		m.recomputing(r.autocast, func() {
			m.region = r
			g := m.push(r.mod)
			m.consume(r.fn(g, r.in[:r.inputs]...)...)
			m.pop(g)
		})
	})
	m.ghost = false
}

// recomputing runs body in the state a checkpointed function runs in again:
// with gradients, and under the autocast of its first run.
func (m *Machine) recomputing(cast autocast, body func()) {
	oldGrad, oldRegion, oldPass, oldCast, oldModule := m.noGrad, m.region, m.pass, m.autocast, m.module
	m.noGrad, m.region, m.pass = false, nil, Recomputing
	m.openCasts()
	m.autocast.on, m.autocast.dtype, m.autocast.depth = cast.on, cast.dtype, 1
	body()
	m.clearCasts()
	m.noGrad, m.region, m.pass, m.autocast, m.module = oldGrad, oldRegion, oldPass, oldCast, oldModule
}

// Checkpoint calls a module through torch.utils.checkpoint: its saved tensors
// are dropped and computed again in backward.
func (f *Frame) Checkpoint(reentrant bool, mod *Module, in ...*Tensor) []*Tensor {
	return f.CheckpointFunc(reentrant, mod, mod.Forward, in...)
}

// CheckpointFunc is Checkpoint for any function that runs in the name of mod.
func (f *Frame) CheckpointFunc(reentrant bool, mod *Module, fn func(f *Frame, in ...*Tensor) []*Tensor, in ...*Tensor) []*Tensor {
	if f.noGrad {
		return f.invoke(mod, fn, in)
	}
	if reentrant {
		return f.reentrant(mod, fn, in)
	}
	r := &region{fn: fn, mod: mod, autocast: f.autocast, inputs: len(in)}
	args, bound := mod.beside()
	r.in = append(append(append(r.in, in...), args...), bound...)
	f.retainAll(r.in)
	outer := f.region
	f.region = r
	out := f.invoke(mod, fn, in)
	f.region = outer
	if r.count == 0 {
		f.leave(r, 0)
	}
	return out
}

// beside returns what the module is called with beside its inputs.
func (mod *Module) beside() (args, bound []*Tensor) {
	if mod.Beside == nil {
		return nil, nil
	}
	return mod.Beside()
}

func (m *Machine) retainAll(ts []*Tensor) {
	for _, t := range ts {
		if t != nil {
			m.retain(t)
			m.asActivation(t)
		}
	}
}

func (m *Machine) releaseAll(ts []*Tensor) {
	for _, t := range ts {
		if t != nil {
			m.release(t)
		}
	}
}

// asActivation counts what is kept for backward among the activations.
func (m *Machine) asActivation(t *Tensor) {
	if m.storages[t.storage].cat == Temporaries {
		m.recat(t.storage, Activations)
	}
}

var checkpointRule = &Rule{Name: "CheckpointFunction", Source: "torch/utils/checkpoint.py:CheckpointFunction"}

// reentrant is CheckpointFunction: forward without gradients, inputs saved,
// and in backward a second forward and a backward of its own. Tensors bound
// into the function live as long as the graph.
func (f *Frame) reentrant(mod *Module, fn func(f *Frame, in ...*Tensor) []*Tensor, in []*Tensor) []*Tensor {
	held := f.hold(in)
	var out []*Tensor
	n := f.record(checkpointRule, in...)
	cast := f.autocast
	if n != nil {
		args, bound := mod.beside()
		for _, t := range append(append([]*Tensor(nil), in...), args...) {
			if t != nil {
				f.save(n, t)
			}
		}
		f.keepWithGraph(bound...)
	}
	f.NoGrad(func() { out = f.invoke(mod, fn, in) })
	f.rule = checkpointRule
	if n != nil {
		m := f.Machine
		n.apply = func(n *Node, dOut []*Tensor) (g Grads) {
			m.materialise(out, dOut)
			m.ownGraph(func() { g = m.replay(mod, fn, in, cast, dOut) })
			return g
		}
		for i, t := range out {
			if t != nil && t.DType.Floating() {
				f.output(n, t, int16(i))
			}
		}
	}
	for i, t := range in {
		if held&(1<<i) != 0 {
			f.release(t)
		}
	}
	return out
}

var materialiseRule = &Rule{Name: "zeros_like", Source: "torch/csrc/autograd/python_function.cpp:PyNode::apply (materialize_grads)"}

// materialise makes zeros of the gradients that did not come: a Python
// function gets one for each of its results.
func (m *Machine) materialise(out, dOut []*Tensor) {
	for i := range dOut {
		if dOut[i] == nil && out[i] != nil {
			m.rule = materialiseRule
			dOut[i] = m.alloc(out[i].Shape, out[i].DType) // of the size alone, whatever the layout
		}
	}
}

// replay is CheckpointFunction.backward.
func (m *Machine) replay(mod *Module, fn func(f *Frame, in ...*Tensor) []*Tensor, in []*Tensor, cast autocast, dOut []*Tensor) Grads {
	detached, leaves := m.detachAll(in)
	var out []*Tensor
	m.recomputing(cast, func() {
		g := m.push(mod)
		out = fn(g, detached...)
		for i, t := range out {
			if t != nil && !t.temp {
				out[i] = m.alias(t)
			} else if t != nil {
				m.own(t)
			}
		}
		m.pop(g)
	})
	var roots, grads []*Tensor
	for i, t := range out {
		if t != nil && t.NeedsGrad && dOut[i] != nil {
			roots, grads = append(roots, t), append(grads, dOut[i])
		}
	}
	m.run(roots, grads)
	var dIn Grads
	for i, l := range leaves {
		if l != nil && l.Grad != nil {
			dIn[i] = l.Grad // detached_inputs[i].grad, which dies with its tensor
			m.recat(l.Grad.storage, Temporaries)
		}
	}
	m.releaseAll(out)
	m.releaseAll(detached)
	return dIn
}

// detachAll makes leaves of tensors, as detach_variable does.
func (m *Machine) detachAll(in []*Tensor) ([]*Tensor, []*Leaf) {
	detached := make([]*Tensor, len(in))
	leaves := make([]*Leaf, len(in))
	for i, t := range in {
		if t == nil {
			continue
		}
		d := m.alias(t)
		d.node, d.leaf = nil, nil
		if d.NeedsGrad {
			leaves[i] = &Leaf{Tensor: d}
			d.leaf = leaves[i]
		}
		detached[i] = d
	}
	return detached, leaves
}

// lose is told that a node died before any backward: what it packed is not
// kept in the second run.
func (r *region) lose(n *Node) {
	if r.lost == nil {
		r.lost = map[int]bool{}
	}
	for i := range n.saved {
		r.lost[int(n.regionAt)+i] = true
	}
	r.live -= len(n.saved)
}
