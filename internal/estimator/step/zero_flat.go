package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/units"
)

// zeroFlat is ZeRO of stage 1 and 2: the parameters of each group lie in one
// flat tensor, of which every rank updates a part in fp32 and gathers the rest
// (deepspeed/runtime/zero/stage_1_and_2.py:DeepSpeedZeroOptimizer @v0.16.4).
type zeroFlat struct {
	keepsAll   bool // stage 1: gradients stay whole until the last micro batch
	ranks      int64
	rank       int64
	overlap    bool // overlap_comm: gradients are reduced on a stream of their own
	contiguous bool // contiguous_gradients: they are copied into buffers as they come
	offload    bool // fp32 weights, optimizer and gradients of the part are on the host
	bucketSize int64
	dtype      graph.DType
	clips      bool
	groups     []*flatGroup
	place      map[*graph.Param]flatPlace

	buffers []*graph.Tensor // ipg_buffer: one, or two in turn under overlap_comm
	current int             // ipg_index
	bucket  flatBucket
	kept    *graph.Tensor // grads_in_partition
	offset  int64         // in it
	late    []*graph.Param
	staging *graph.Tensor // temp_grad_buffer_for_gpu_offload
	norms   []*graph.Tensor
}

// flatPlace is where a parameter lies.
type flatPlace struct {
	group  *flatGroup
	offset int64
}

// flatGroup is one parameter group.
type flatGroup struct {
	params   []*graph.Param
	mine     []*graph.Param // parameters that this rank's part has something of
	part     int64          // elements of one rank's part
	flat     *graph.Tensor
	master   *graph.Param    // the part in fp32, which the optimizer steps
	averaged []*graph.Tensor // its gradients, over mine and padding
}

// ncclAlignment is nccl_start_alignment_factor: parts begin at four bytes.
const ncclAlignment = 2

var (
	flatRule     = &graph.Rule{Name: "flatten", Source: "deepspeed/runtime/zero/stage_1_and_2.py:__init__@v0.16.4"}
	masterRule   = &graph.Rule{Name: "fp32_partition", Source: "deepspeed/runtime/zero/stage_1_and_2.py:__init__@v0.16.4"}
	zeroGradRule = &graph.Rule{Name: "zero_gradients", Source: "deepspeed/runtime/zero/stage_1_and_2.py@v0.16.4"}
)

// newZeroFlat cuts the groups; the run's parameters are the fp32 parts from here
// on.
func newZeroFlat(r *Run, groups [][]*graph.Param) *zeroFlat {
	p := &r.Job.Parallelism
	z := &zeroFlat{
		keepsAll: p.Sharding == "zero1", ranks: int64(p.Data), offload: offloads(p, "optimizer"),
		dtype: engineDType(&r.Job.Training), clips: enabled(r.Job.Training.GradClipping),
		bucketSize: int64(p.Zero.ReduceBucketSize.Value), overlap: p.Zero.OverlapComm != nil && *p.Zero.OverlapComm,
	}
	z.place = map[*graph.Param]flatPlace{}
	z.contiguous = enabled(p.Zero.ContiguousGradients) || z.offload
	r.Params, r.ParamGroups = nil, nil
	for _, ps := range groups {
		if len(ps) == 0 {
			continue
		}
		g := z.cut(ps)
		z.groups = append(z.groups, g)
		r.Params = append(r.Params, g.master)
		r.ParamGroups = append(r.ParamGroups, []*graph.Param{g.master})
	}
	if most, own := z.fullest(), z.keeps(z.rank); most > own+own/worthTelling && !z.offload {
		r.doubt(Doubt{
			Code: "ranks_differ", Path: "parallelism.sharding",
			Text: "The first rank is counted. A rank keeps the whole gradient of a parameter that it updates any part of, and the fullest keeps up to " +
				units.Bytes((most-own)*z.dtype.Size()).String() + " more of them.",
		})
	}
	return z
}

// worthTelling is the part of a rank's gradients that another must keep more for
// the answer to say so: a tenth.
const worthTelling = 10

// keeps is the elements of all parameters that a rank updates a part of.
func (z *zeroFlat) keeps(rank int64) int64 {
	n := int64(0)
	for p, at := range z.place {
		if at.offset < at.group.part*(rank+1) && at.group.part*rank < at.offset+p.Numel() {
			n += p.Numel()
		}
	}
	return n
}

// fullest is the most that any rank keeps.
func (z *zeroFlat) fullest() int64 {
	most := int64(0)
	for rank := range z.ranks {
		most = max(most, z.keeps(rank))
	}
	return most
}

// cut lays a group's parameters one behind the other and finds this rank's
// part.
func (z *zeroFlat) cut(ps []*graph.Param) *flatGroup {
	g := &flatGroup{params: ps}
	total := int64(0)
	for _, p := range ps {
		z.place[p] = flatPlace{g, total}
		total += p.Numel()
	}
	g.part = divUp(total, ncclAlignment*z.ranks) * ncclAlignment
	for _, p := range ps {
		if z.mineOf(p) > 0 {
			g.mine = append(g.mine, p)
		}
	}
	g.master = &graph.Param{Name: "fp32_partition", Shape: graph.D(g.part), DType: graph.F32, Trained: true, Category: graph.MasterWeights}
	return g
}

// load is deepspeed.initialize: the model is moved in its 16-bit type, then
// every group is flattened on the host and moved as one.
func (z *zeroFlat) load(r *Run) {
	m := r.M
	if r.Job.Training.Optimizer.Library == deepSpeedLibrary && !z.offload {
		m.Make(adamRule, graph.OptimizerState, graph.I32, graph.D()) // _dummy_overflow_buf
	}
	m.ToDevice(r.Net.Root)
	m.InModule(nil)
	for _, g := range z.groups {
		z.flatten(m, g)
	}
	if z.offload {
		largest := int64(0)
		for _, g := range z.groups {
			for _, p := range g.params {
				largest = max(largest, p.Numel())
			}
		}
		z.staging = m.Make(zeroGradRule, graph.Buckets, z.dtype, graph.D(largest))
	} else {
		var parts []*graph.Tensor
		for _, g := range z.groups { // initialize_optimizer_states, whose gradients are dropped again
			parts = append(parts, m.Make(zeroGradRule, graph.Temporaries, graph.F32, graph.D(g.part)))
		}
		forgetList(m, parts)
	}
	for _, g := range z.groups {
		for _, p := range g.params {
			if !z.keepsAll || z.overlap {
				p.Hook = func(*graph.Leaf) { z.gradientReady(r, p) }
			}
		}
	}
}

// flatten moves a group by way of the host: a placeholder a parameter, the flat
// tensor, and this rank's part of it in fp32.
func (z *zeroFlat) flatten(m *graph.Machine, g *flatGroup) {
	var placeholders []*graph.Tensor
	for _, p := range g.params {
		placeholders = append(placeholders, m.Make(flatRule, graph.Temporaries, graph.F32, graph.D(1)))
		m.Forget(p.Tensor)
	}
	m.EmptyCache()
	g.flat = m.Make(flatRule, graph.Parameters, z.dtype, graph.D(g.part*z.ranks))
	for _, p := range g.params {
		m.Over(g.flat, p)
	}
	forgetList(m, placeholders)
	if z.offload {
		return
	}
	clone := m.Make(masterRule, graph.Temporaries, z.dtype, graph.D(g.part))
	g.master.Tensor = clone
	if z.dtype != graph.F32 {
		g.master.Tensor = m.Make(masterRule, graph.MasterWeights, graph.F32, graph.D(g.part))
		m.Forget(clone)
	}
}

// call runs the model as it is.
func (z *zeroFlat) call(_ *Run, _ *graph.Frame, forward func() model.Outputs) model.Outputs {
	return forward()
}

// host is the part's fp32 weights, gradients and moments, a buffer as large as
// the largest parameter, and, where micro batches are added up, this rank's
// gradients.
func (z *zeroFlat) host(r *Run) int64 {
	if !z.offload {
		return 0
	}
	n := z.staging.Numel() * z.dtype.Size()
	for _, g := range z.groups {
		n += g.part * (2 + hostMoments) * graph.F32.Size()
		for _, p := range g.mine {
			if r.Job.Training.GradAccumSteps > 1 {
				n += p.Numel() * z.dtype.Size()
			}
		}
	}
	return n
}

// hostMoments is how many tensors DeepSpeedCPUAdam keeps beside the weights.
const hostMoments = 2

// settled is true: all steps are alike.
func (z *zeroFlat) settled() bool { return true }

// numel is all parameters: they are whole on every rank.
func (z *zeroFlat) numel() int64 {
	n := int64(0)
	for _, g := range z.groups {
		for _, p := range g.params {
			n += p.Numel()
		}
	}
	return n
}
