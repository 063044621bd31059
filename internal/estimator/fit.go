package estimator

import (
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

// Fit answers whether a job fits a device with a probability, as Run's answer
// would say it, and no more than that: it looks no further once the unlimited
// run leaves no doubt. With exact set it always finds the required bytes.
func (w *Workspace) Fit(job spec.Job, device spec.Device, co spec.Coefficients, probable float64, exact bool) (Fitness, error) {
	job, _, err := Resolve(job)
	if err != nil {
		return Fitness{}, err
	}
	plan, err := step.CompileIn(&w.memory, job, cardFor(device, co))
	if err != nil {
		return Fitness{}, err
	}
	cfg := settings(job.Runtime, device.Total)
	at := func(simulated units.Bytes) Fitness {
		var e Estimate
		e.conclude(plan, device, co, simulated)
		f := Fitness{Required: e.Peak.Required, Usable: e.Target.Usable, Probability: e.Target.ProbabilityFits}
		f.Fits = f.Probability >= probable
		return f
	}
	if beyond := units.Bytes(float64(device.Usable())*clearly) - co.Outside(); !exact && probable >= 0.5 && beyond > 0 {
		limited := cfg
		limited.Capacity = beyond
		if _, ranOut, err := w.peaks(plan, limited); err != nil || ranOut {
			return Fitness{Required: beyond + co.Outside(), Usable: device.Usable(), Bound: true}, err
		}
	}
	played, _, err := w.peaks(plan, cfg)
	if err != nil {
		return Fitness{}, err
	}
	if most, least := at(played.Reserved.Peak), at(played.Active.Peak); !exact && (most.Fits || !least.Fits) {
		if most.Fits {
			return most, nil
		}
		return least, nil
	}
	required, err := w.allocator.RequiredAfter(cfg, plan.Program, played, requiredWithin)
	if err != nil {
		return Fitness{}, err
	}
	f := at(required)
	f.Exact = true
	return f, nil
}
