package step

import "memplan/internal/estimator/graph"

// step updates this rank's parts, group by group, and gathers the others.
func (z *zeroFlat) step(r *Run) *graph.Tensor {
	m := r.M
	m.InModule(nil)
	if z.dtype == graph.F16 {
		z.checkOverflow(r)
	}
	total := z.globalNorm(r)
	var norm *graph.Tensor
	if total != nil {
		norm = m.Make(zeroNormRule, graph.Temporaries, graph.F32, graph.D()) // / prev_scale
	}
	for _, g := range z.groups {
		if z.offload {
			m.Scratch(masterRule, graph.Temporaries, g.part*graph.F32.Size()) // what the host updated comes back
			continue
		}
		z.update(r, g)
	}
	forgetList(m, z.norms)
	z.norms = nil
	r.drop(total)
	return norm
}

// update joins a part's gradients in fp32, clips them and runs the optimizer.
func (z *zeroFlat) update(r *Run, g *flatGroup) {
	m := r.M
	flat := m.Keep(g.averaged[0])
	if len(g.averaged) > 1 {
		m.Forget(flat)
		flat = m.Make(flatRule, graph.Temporaries, z.dtype, graph.D(g.part))
	}
	grad := flat
	if z.dtype != graph.F32 {
		grad = m.Make(zeroGradRule, graph.Temporaries, graph.F32, graph.D(g.part))
		m.Forget(flat)
	}
	forgetList(m, g.averaged)
	g.averaged = nil
	if z.clips {
		unscaleAndClip(r, graph.F32)
	}
	g.master.Grad = grad
	r.Optimizer.Step(r)
	g.master.Grad = nil
	m.Forget(grad)
}

// globalNorm is scaled_global_norm: the norm of every piece in fp64, group by
// group, and the norm of those; on the host, nil, where the gradients are.
func (z *zeroFlat) globalNorm(r *Run) *graph.Tensor {
	m := r.M
	if z.offload {
		for range z.groups {
			m.Scratch(zeroNormRule, graph.Temporaries, graph.F32.Size()) // total_norm_cuda
		}
		return nil
	}
	var ofGroups []*graph.Tensor
	for _, g := range z.groups {
		ofGroups = append(ofGroups, gradNorm(r, g.averaged[:min(len(g.averaged), len(g.mine))]))
	}
	return normOfNorms(r, ofGroups)
}

// checkOverflow is has_overflow_partitioned_grads_serial.
func (z *zeroFlat) checkOverflow(r *Run) {
	m := r.M
	if z.offload {
		m.Scratch(zeroNormRule, graph.Temporaries, 1)
		return
	}
	count := m.Make(zeroNormRule, graph.Temporaries, graph.F32, graph.D(1))
	for _, g := range z.groups {
		for _, t := range g.averaged {
			overflowed(r, t.Numel(), z.dtype)
		}
	}
	flag := m.Make(zeroNormRule, graph.Temporaries, graph.Bool, graph.D(1))
	m.Forget(count)
	m.Scratch(zeroNormRule, graph.Temporaries, 1)
	m.Forget(flag)
}
