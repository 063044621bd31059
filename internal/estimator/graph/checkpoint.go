package graph

// region is one run of torch.utils.checkpoint with use_reentrant=False: its
// saved tensors are only counted, and come back when the first of them is
// wanted, by running the function again
// (torch/utils/checkpoint.py@v2.6.0, _checkpoint_hook and _recomputation_hook).
type region struct {
	machine     *Machine
	fn          func(f *Frame, in ...*Tensor) []*Tensor
	mod         *Module
	in          []*Tensor
	autocast    autocast
	count       int       // tensors packed in the first run
	recomputed  []*Tensor // held until unpacked
	recomputing bool
	done        bool
	outer       *region
}

// stopRecompute unwinds the recomputation once its last saved tensor exists
// (set_checkpoint_early_stop, on by default).
type stopRecompute struct{ r *region }

// pack counts tensors in the first run, and keeps them in the second.
func (r *region) pack(m *Machine, n *Node, ts []*Tensor) {
	if !r.recomputing {
		n.region, n.regionAt = r, int32(r.count)
		n.saved = append(n.saved, ts...)
		r.count += len(ts)
		return
	}
	for _, t := range ts {
		m.retain(t)
		if m.storages[t.storage].cat == Temporaries {
			m.recat(t.storage, Activations)
		}
		r.recomputed = append(r.recomputed, t)
		if len(r.recomputed) == r.count {
			panic(stopRecompute{r})
		}
	}
}

// unpack gives node n its saved tensors back.
func (m *Machine) unpack(n *Node) {
	r := n.region
	if r == nil || len(n.saved) == 0 {
		return
	}
	if !r.done {
		m.recompute(r)
	}
	copy(n.saved, r.recomputed[n.regionAt:])
	n.region = nil
	m.module, m.rule = n.module, n.rule
}

// recompute runs the region's function again under its autocast, with a cache
// of its own, and keeps what it saves.
func (m *Machine) recompute(r *region) {
	oldGrad, oldRegion, oldPass, oldCast, oldModule := m.noGrad, m.region, m.pass, m.autocast, m.module
	depth, temps := m.depth, len(m.temps)
	r.recomputing = true
	m.noGrad, m.region, m.pass = false, r, Recomputing
	m.openCasts()
	m.autocast.on, m.autocast.dtype, m.autocast.depth = r.autocast.on, r.autocast.dtype, 1
	func() {
		defer func() {
			if x := recover(); x != nil {
				if s, ok := x.(stopRecompute); !ok || s.r != r {
					panic(x)
				}
				m.abandon(depth, temps)
			}
		}()
		g := m.push(r.mod)
		out := r.fn(g, r.in...)
		for _, t := range out {
			if t != nil && t.temp {
				m.consume(t)
			}
		}
		m.pop(g)
	}()
	m.clearCasts()
	m.noGrad, m.region, m.pass, m.autocast, m.module = oldGrad, oldRegion, oldPass, oldCast, oldModule
	r.done = true
	for _, t := range r.in {
		if t != nil {
			m.release(t)
		}
	}
	r.in = nil
}

// abandon drops every frame and temporary of an unwound call: what happens to
// Python's locals when an exception passes through.
func (m *Machine) abandon(depth, temps int) {
	for m.depth > depth {
		m.unwind(m.frames[m.depth-1])
	}
	for len(m.temps) > temps {
		t := m.temps[len(m.temps)-1]
		m.own(t)
		m.release(t)
	}
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
	r := &region{machine: f.Machine, fn: fn, mod: mod, autocast: f.autocast, outer: f.region}
	for _, t := range in {
		if t != nil {
			f.retain(t)
			if t.NeedsGrad {
				f.keepInput(t)
			}
		}
		r.in = append(r.in, t)
	}
	f.region = r
	out := f.invoke(mod, fn, in)
	f.region = r.outer
	return out
}

// keepInput counts a checkpointed region's input among the activations.
func (m *Machine) keepInput(t *Tensor) {
	if m.storages[t.storage].cat == Temporaries {
		m.recat(t.storage, Activations)
	}
}

var checkpointRule = &Rule{Name: "CheckpointFunction", Source: "torch/utils/checkpoint.py:CheckpointFunction"}

// reentrant is CheckpointFunction: forward without gradients, inputs saved,
// and in backward a second forward and a backward of its own.
func (f *Frame) reentrant(mod *Module, fn func(f *Frame, in ...*Tensor) []*Tensor, in []*Tensor) []*Tensor {
	held := f.hold(in)
	var out []*Tensor
	n := f.record(checkpointRule, in...)
	cast := f.autocast
	f.NoGrad(func() { out = f.invoke(mod, fn, in) })
	f.rule = checkpointRule
	kept := make([]*Tensor, 0, len(in))
	for _, t := range in {
		if t != nil {
			kept = append(kept, t)
		}
	}
	f.save(n, kept...)
	if n != nil {
		n.apply = func(n *Node, dOut []*Tensor) Grads { return f.Machine.replay(mod, fn, in, cast, dOut) }
		for i, t := range out {
			if t != nil && t.DType.Floating() {
				f.output(n, t, int8(i))
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

// replay is CheckpointFunction.backward.
func (m *Machine) replay(mod *Module, fn func(f *Frame, in ...*Tensor) []*Tensor, in []*Tensor, cast autocast, dOut []*Tensor) Grads {
	oldGrad, oldPass, oldCast, oldModule := m.noGrad, m.pass, m.autocast, m.module
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
	m.noGrad, m.pass = false, Recomputing
	m.openCasts()
	m.autocast.on, m.autocast.dtype, m.autocast.depth = cast.on, cast.dtype, 1
	g := m.push(mod)
	out := fn(g, detached...)
	for i, t := range out {
		if t != nil && !t.temp {
			out[i] = m.alias(t)
		} else if t != nil {
			m.own(t)
		}
	}
	m.pop(g)
	m.clearCasts()
	m.autocast = oldCast
	m.noGrad, m.pass = true, Backward
	var roots, grads []*Tensor
	for i, t := range out {
		if t != nil && t.NeedsGrad && i < len(dOut) && dOut[i] != nil {
			roots, grads = append(roots, t), append(grads, dOut[i])
		}
	}
	m.run(roots, grads)
	m.noGrad, m.pass, m.module = oldGrad, oldPass, oldModule
	var dIn Grads
	for i, l := range leaves {
		if l != nil && l.Grad != nil {
			dIn[i] = m.alias(l.Grad)
		}
	}
	for _, t := range out {
		if t != nil {
			m.release(t)
		}
	}
	for i, d := range detached {
		if d != nil {
			m.release(d)
		}
		if l := leaves[i]; l != nil && l.Grad != nil {
			m.release(l.Grad)
		}
	}
	return dIn
}
