package planner

import (
	"memplan/internal/recommend"
	"memplan/internal/wire"
)

// AdviceOf is a question of the wire as a use case.
func AdviceOf(a wire.Advice) Advice {
	return Advice{
		Job: a.Job, Goal: recommend.Goal(a.Goal), Probability: a.Probability,
		Allow: a.Allow, GPUs: a.GPUs, GlobalBatch: a.GlobalBatch,
	}
}

// Wire is the question as it is sent.
func (a Advice) Wire() wire.Advice {
	return wire.Advice{
		Job: a.Job, Goal: string(a.Goal), Probability: a.Probability,
		Allow: a.Allow, GPUs: a.GPUs, GlobalBatch: a.GlobalBatch,
	}
}
