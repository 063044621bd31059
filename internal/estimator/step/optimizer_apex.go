package step

import "memplan/internal/estimator/graph"

// Apex's FusedAdam and FusedLAMB, and the AdamW that transformers had of its own
// until torch's took its place.

var (
	fusedAdamRule = &graph.Rule{Name: "fused_adam", Source: "NVIDIA/apex:apex/optimizers/fused_adam.py"}
	fusedLAMBRule = &graph.Rule{Name: "fused_lamb", Source: "NVIDIA/apex:apex/optimizers/fused_lamb.py"}
	oldAdamWRule  = &graph.Rule{Name: "adamw", Source: "transformers/optimization.py:AdamW@v4.49.0"}
)

var (
	apexAdam = elementwise{rule: fusedAdamRule, slots: 2, wide: true, update: noTemporaries}
	apexLAMB = elementwise{rule: fusedLAMBRule, slots: 2, update: noTemporaries} // scalars of the norms left out
	oldAdamW = elementwise{rule: oldAdamWRule, slots: 2, inTurn: true, update: oldAdamWOneByOne}
)

// oldAdamWOneByOne takes the root out of place; denom lives from one parameter
// to the next.
func oldAdamWOneByOne(r *Run, e *elementwise, ps []*graph.Param) {
	r.noGrad(func(f *graph.Frame) {
		for _, p := range ps {
			e.init(r, p)
			f.Let("denom", f.Sqrt(e.state[p][1]))
		}
	})
}
