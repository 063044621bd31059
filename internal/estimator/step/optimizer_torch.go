package step

import "memplan/internal/estimator/graph"

// elementwise is an optimizer of torch.optim whose state is some tensors like
// each parameter, and a step count: on the host, or a scalar on the card for
// fused kernels.
type elementwise struct {
	rule     *graph.Rule
	slots    int  // state tensors of a parameter
	onDevice bool // the step count is on the card
	early    bool // the state is made with the optimizer
	inTurn   bool // each parameter is updated before the next one's state is made
	wide     bool // the state is cast to fp32, whatever the parameter's type
	scaled   bool // the kernels take the gradient scaler's tensors
	update   func(r *Run, e *elementwise, ps []*graph.Param)
	state    map[*graph.Param][]*graph.Tensor
}

func (e *elementwise) takesScale() bool { return e.scaled }

// Construct makes the state of optimizers that make it in __init__.
func (e *elementwise) Construct(r *Run) {
	if !e.early {
		return
	}
	for _, p := range r.Params {
		e.init(r, p)
	}
}

// Step makes missing state parameter by parameter and updates, group by group.
func (e *elementwise) Step(r *Run) {
	for _, g := range r.groups() {
		if !e.inTurn {
			for _, p := range g {
				e.init(r, p)
			}
		}
		e.update(r, e, g)
	}
}

func (e *elementwise) init(r *Run, p *graph.Param) {
	if _, ok := e.state[p]; ok {
		return
	}
	if e.onDevice {
		r.M.Make(e.rule, graph.OptimizerState, graph.F32, graph.D())
	}
	slots := make([]*graph.Tensor, e.slots)
	for i := range slots {
		if e.wide && p.DType != graph.F32 { // zeros_like(p).float()
			narrow := r.M.Make(e.rule, graph.Temporaries, p.DType, p.Shape)
			slots[i] = stateLike(r, e.rule, p, graph.F32)
			r.M.Forget(narrow)
			continue
		}
		slots[i] = stateLike(r, e.rule, p, p.DType)
	}
	if e.state == nil {
		e.state = map[*graph.Param][]*graph.Tensor{}
	}
	e.state[p] = slots
}

// noTemporaries is an update in place: a fused kernel.
func noTemporaries(*Run, *elementwise, []*graph.Param) {}

// multiTensor is an update by _foreach functions that keeps n lists of
// temporaries like the parameters, each under a name: a list of one group of
// types lives until the next group's is there.
func multiTensor(n int) func(r *Run, e *elementwise, ps []*graph.Param) {
	return func(r *Run, e *elementwise, ps []*graph.Param) {
		lists := make([][]*graph.Tensor, n)
		for _, same := range byDType(ps) {
			for i := range lists {
				fresh := likeEach(r, e.rule, same)
				forgetList(r.M, lists[i])
				lists[i] = fresh
			}
		}
		for _, l := range lists {
			forgetList(r.M, l)
		}
	}
}

// likeEach is the list an out-of-place _foreach function returns.
func likeEach(r *Run, rule *graph.Rule, ps []*graph.Param) []*graph.Tensor {
	list := make([]*graph.Tensor, len(ps))
	for i, p := range ps {
		list[i] = r.M.Make(rule, graph.Temporaries, p.DType, p.Shape)
	}
	return list
}

func forgetList(m *graph.Machine, list []*graph.Tensor) {
	for _, t := range list {
		m.Forget(t)
	}
}

// byDType splits parameters by type as
// Optimizer._group_tensors_by_device_and_dtype does. Its map hands the types
// out in the reverse of the order in which they first occur
// (torch/csrc/utils/... a std::unordered_map; measured on 2.6 and 2.15).
func byDType(ps []*graph.Param) [][]*graph.Param {
	var groups [][]*graph.Param
next:
	for _, p := range ps {
		for i := range groups {
			if groups[i][0].DType == p.DType {
				groups[i] = append(groups[i], p)
				continue next
			}
		}
		groups = append([][]*graph.Param{{p}}, groups...)
	}
	return groups
}

// noGrad runs body in a frame of its own under torch.no_grad.
func (r *Run) noGrad(body func(f *graph.Frame)) {
	r.M.Run(func(f *graph.Frame) { f.NoGrad(func() { body(f) }) })
}
