package estimator

import (
	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
	"memplan/internal/units"
)

// Fitness is whether a job fits, without the explanation.
type Fitness struct {
	Fits        bool        // with the probability asked for
	Required    units.Bytes // as Run says it; where Exact is not set, no more (Fits) or no less than this
	Usable      units.Bytes
	Probability float64 // of fitting; a bound in the same way
	Exact       bool
	Bound       bool // it ran out of a little more than is usable, and nothing else is known
}

// clearly is how much of what is usable a job must run out of to be given up
// without looking further.
const clearly = 1.025

// Look says how far Fit looks.
type Look int

// The looks.
const (
	Decide Look = iota // whether it fits, and no further
	Live               // and what is live at the peak, at the least
	Exact              // what is required, exactly
)

// Fit answers whether a job fits a device with a probability, as Run's answer
// would say it. To decide it looks no further than to the first step of a job
// that runs out there of clearly more than is usable, and no further than to
// the unlimited run where that leaves no doubt.
func (w *Workspace) Fit(job spec.Job, device spec.Device, co spec.Coefficients, probable float64, look Look) (Fitness, error) {
	job, _, err := Resolve(job)
	if err != nil {
		return Fitness{}, err
	}
	var worst Fitness
	for stage := range step.Stages(&job) {
		f, err := w.fitStage(job, device, co, probable, look, stage)
		if err != nil {
			return Fitness{}, err
		}
		if stage == 0 || f.Required > worst.Required || worst.Fits && !f.Fits {
			worst = f
		}
		if look == Decide && !f.Fits {
			break
		}
	}
	return worst, nil
}

// fitStage is Fit for the ranks of one stage of a resolved job's pipeline.
func (w *Workspace) fitStage(job spec.Job, device spec.Device, co spec.Coefficients, probable float64, look Look, stage int) (Fitness, error) {
	cfg, limited := settings(job.Runtime, device.Total), settings(job.Runtime, device.Total)
	limited.Capacity = units.Bytes(float64(device.Usable())*clearly) - co.Outside()
	limits := look == Decide && probable >= 0.5 && limited.Capacity > 0
	plan, err := step.CompileStage(&w.memory, job, cardFor(device, co), stage, func(first allocator.Program) bool {
		if !limits {
			return true
		}
		_, ranOut, err := w.peaks(first, limited)
		return err == nil && !ranOut
	})
	if err != nil {
		return Fitness{}, err
	}
	if plan == nil {
		return Fitness{Required: limited.Capacity + co.Outside(), Usable: device.Usable(), Bound: true}, nil
	}
	at := func(simulated units.Bytes) Fitness {
		var e Estimate
		e.conclude(plan, device, co, simulated)
		f := Fitness{Required: e.Peak.Required, Usable: e.Target.Usable, Probability: e.Target.ProbabilityFits}
		f.Fits = f.Probability >= probable
		return f
	}
	played, _, err := w.peaks(plan.Program, cfg)
	if err != nil {
		return Fitness{}, err
	}
	most, least := at(played.Reserved.Peak), at(played.Active.Peak)
	switch {
	case look == Live, look == Decide && !least.Fits:
		return least, nil
	case look == Decide && most.Fits:
		return most, nil
	}
	required, err := w.required(plan.Program, cfg, played)
	if err != nil {
		return Fitness{}, err
	}
	f := at(required)
	f.Exact = true
	return f, nil
}
