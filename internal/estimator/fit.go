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
}

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
	played, err := w.peaks(plan, cfg)
	if err != nil {
		return Fitness{}, err
	}
	at := func(simulated units.Bytes) Fitness {
		var e Estimate
		e.conclude(plan, device, co, simulated)
		f := Fitness{Required: e.Peak.Required, Usable: e.Target.Usable, Probability: e.Target.ProbabilityFits}
		f.Fits = f.Probability >= probable
		return f
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
