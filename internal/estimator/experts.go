package estimator

import (
	"fmt"
	"slices"

	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
)

// loadExperts says how the experts of a mixture were taken to be loaded: among
// the assumptions, and in the sentence.
func (e *Estimate) loadExperts(plan *step.Plan) {
	m := plan.Network.Mixture
	if m == nil {
		return
	}
	load := e.Job.Parallelism.ExpertLoad
	given := load != nil
	if !given {
		load = &spec.ExpertLoad{Kind: spec.BalancedLoad}
	}
	if !m.Looped {
		if !given {
			e.assume("parallelism.expert_load", load, false, "all experts of a layer run as one grouped product, whose size does not depend on who gets which token")
		}
		e.Summary += fmt.Sprintf(" Every token visits %d of %d experts a layer; how evenly changes nothing here.", m.Chosen, m.Experts)
		return
	}
	if !given {
		e.assume("parallelism.expert_load", load, true, "experts run one after the other, each on the tokens that chose it: an even share")
	}
	e.Summary += fmt.Sprintf(" Every token visits %d of %d experts a layer, taken to be loaded %s.", m.Chosen, m.Experts, load)
}

// computeRecurrence says how layers with a recurrent state were taken to be
// computed.
func (e *Estimate) computeRecurrence(plan *step.Plan) {
	if plan.Network.Recurrent && e.Job.Training.LinearAttention == "" {
		e.assume("training.linear_attention", "fallback", true,
			"no kernel library is taken to be installed for the recurrent layers: operations of torch keep several times what kernels would")
	}
}

// assume adds an assumption that only the built model shows, before those that
// do not decide where it does.
func (e *Estimate) assume(path string, value any, decides bool, why string) {
	at := len(e.Assumptions)
	if decides {
		at = slices.IndexFunc(e.Assumptions, func(a Assumption) bool { return !a.Decides })
		if at < 0 {
			at = len(e.Assumptions)
		}
	}
	e.Assumptions = slices.Insert(e.Assumptions, at, Assumption{Path: path, Value: value, Why: why, Decides: decides})
}
