package estimator

import (
	"fmt"

	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
)

// Ranks of one stage of a pipeline do the same; those of two do not. The answer
// is that of the stage that requires most, and lists them all.

// overStages answers for every stage and returns the answer of the worst.
func (w *Workspace) overStages(stages int, answer func(stage int) (*Estimate, error)) (*Estimate, error) {
	var worst *Estimate
	var ranks []Rank
	for stage := range stages {
		e, err := answer(stage)
		if err != nil {
			return nil, err
		}
		ranks = append(ranks, e.Ranks...)
		if worst == nil || e.Peak.Required > worst.Peak.Required {
			worst = e
		}
	}
	if stages > 1 {
		worst.Peak.At.Rank = worst.Ranks[0].Name
		worst.Summary += fmt.Sprintf(" Of %d pipeline stages, counted from 0, stage %d needs most.", stages, worst.Ranks[0].Coordinates["pipeline"])
	}
	worst.Ranks = ranks
	return worst, nil
}

// stageRank describes the ranks of a stage, of which there are so many.
func stageRank(plan *step.Plan, stage, count int, peak Peak) Rank {
	r := Rank{Name: fmt.Sprintf("pipeline stage %d", stage), Coordinates: map[string]int{"pipeline": stage}, Count: count, Peak: peak}
	if s := plan.Network.Stage; s != nil {
		r.Layers = fmt.Sprintf("%d-%d", s.From, s.To-1)
	}
	return r
}

// worstStage is the stage that the answer to a resolved job is of.
func worstStage(job spec.Job, device spec.Device, co spec.Coefficients) (int, error) {
	if step.Stages(&job) == 1 {
		return 0, nil
	}
	e, err := Run(job, device, co)
	if err != nil {
		return 0, err
	}
	for _, r := range e.Ranks {
		if r.Name == e.Peak.At.Rank {
			return r.Coordinates["pipeline"], nil
		}
	}
	return 0, nil
}
