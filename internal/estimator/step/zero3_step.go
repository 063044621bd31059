package step

import "memplan/internal/estimator/graph"

// step lets all parameters go, updates the sub-groups one after the other, and
// gathers those that persist again.
func (z *zero3) step(r *Run) *graph.Tensor {
	m := r.M
	m.InModule(nil)
	z.releaseAll(m)
	z.micros = 0
	z.alike, z.learned = !z.learned, false
	if z.dtype == graph.F16 {
		z.checkOverflow(r)
	}
	ofGroups := z.groupNorms(r)
	total, norm := z.totalNorm(r, ofGroups)
	for _, g := range z.subGroups {
		z.update(r, g)
	}
	forgetList(m, z.norms)
	z.norms = nil
	z.gatherPersisting(m)
	forgetList(m, ofGroups)
	r.drop(total)
	return norm
}

// totalNorm is the norm of the groups' norms and what is kept of it, on the
// card where they are.
func (z *zero3) totalNorm(r *Run, ofGroups []*graph.Tensor) (total, norm *graph.Tensor) {
	if z.offload {
		return nil, nil
	}
	r.noGrad(func(f *graph.Frame) { total = f.Own(f.Norm(f.StackScalars(ofGroups))) })
	return total, r.M.Make(zeroNormRule, graph.Temporaries, total.DType, graph.D())
}

// update joins a sub-group's gradients in fp32, clips them and runs the
// optimizer.
func (z *zero3) update(r *Run, g *subGroup) {
	if z.offload {
		return
	}
	m := r.M
	var flat *graph.Tensor
	if len(g.params) > 1 {
		flat = m.Make(flatRule, graph.Temporaries, z.gradients.DType, graph.D(g.numel))
	}
	grad := flat
	if z.gradients.DType != graph.F32 || flat == nil {
		grad = m.Make(zeroGradRule, graph.Temporaries, graph.F32, graph.D(g.numel))
		r.drop(flat)
	}
	if z.clips {
		unscaleAndClip(r, fp64)
	}
	g.master.Grad = grad
	r.Optimizer.Step(r)
	g.master.Grad = nil
	m.Forget(grad)
}

// gatherPersisting is _post_step's all_gather of persistent_parameters, each in
// a tensor of its own.
func (z *zero3) gatherPersisting(m *graph.Machine) {
	var all []*zeroParam
	for _, p := range z.params {
		if p.persists {
			all = append(all, p)
		}
	}
	if len(all) == 1 {
		z.gatherAlone(m, all[0])
		return
	}
	brought := z.bringParts(m, all)
	for _, p := range all {
		m.Place(gather3Rule, p.Param, p.part*z.ranks)
		p.status = available
	}
	forgetList(m, brought)
}

// gatherAlone is _allgather_params of one: gathered, and copied out.
func (z *zero3) gatherAlone(m *graph.Machine, p *zeroParam) {
	flat := m.Make(gather3Rule, graph.Buckets, p.DType, graph.D(p.part*z.ranks))
	m.Place(gather3Rule, p.Param, p.Numel())
	m.Forget(flat)
	p.status = available
}

// bringParts copies parts that are on the host to the card for a gather, which
// its caller drops.
func (z *zero3) bringParts(m *graph.Machine, ps []*zeroParam) []*graph.Tensor {
	if !z.offloadParts {
		return nil
	}
	var brought []*graph.Tensor
	for _, p := range ps {
		brought = append(brought, m.Make(gather3Rule, graph.Buckets, p.DType, graph.D(p.part)))
	}
	return brought
}
