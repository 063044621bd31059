package step

import "memplan/internal/estimator/graph"

// Lion of lion-pytorch and AdamW, SGD and RAdam of schedulefree, which keep no
// more than a state or two like the parameter.

var (
	lionRule         = &graph.Rule{Name: "lion", Source: "lion_pytorch/lion_pytorch.py@0.2.5"}
	scheduleFreeRule = &graph.Rule{Name: "schedulefree", Source: "schedulefree/adamw_schedulefree.py@1.4.1"}
)

var (
	lionPlain       = elementwise{rule: lionRule, slots: 1, inTurn: true, update: lionOneByOne}
	freeAdamForeach = elementwise{rule: scheduleFreeRule, slots: 2, update: oneList} // denom
	freeAdamForLoop = elementwise{rule: scheduleFreeRule, slots: 2, update: freeOneByOne}
	freeSGD         = elementwise{rule: scheduleFreeRule, slots: 1, update: noTemporaries}
)

// lionOneByOne is update_fn: the momentum is cloned and the gradient added, out
// of place.
func lionOneByOne(r *Run, e *elementwise, ps []*graph.Param) {
	r.noGrad(func(f *graph.Frame) {
		for _, p := range ps {
			e.init(r, p)
			f.Drop(f.AddScalar(f.Clone(e.state[p][0])))
		}
	})
}

// oneList is an update whose list of temporaries spans types: what _foreach
// functions do with tensors of several.
func oneList(r *Run, e *elementwise, ps []*graph.Param) { forgetList(r.M, likeEach(r, e.rule, ps)) }

// freeOneByOne divides the second moment out of place; denom lives from one
// parameter to the next.
func freeOneByOne(r *Run, e *elementwise, ps []*graph.Param) {
	r.noGrad(func(f *graph.Frame) {
		for _, p := range ps {
			f.Let("denom", f.DivScalar(e.state[p][1]))
		}
	})
}
