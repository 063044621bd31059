package estimator

import (
	"slices"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
	"memplan/internal/units"
)

// Version is the engine's own version, part of every answer.
const Version = "0.1.0"

// requiredWithin is the share of the required bytes by which they may be
// more than the least that would do.
const requiredWithin = 0.005

// Run answers one job on one device. The job's model must be given by config
// (an id or a bare count is looked up by the planner). It resolves the job
// first; what it fills in is among the answer's assumptions. Errors are
// fault.Fields where the job is wrong.
func Run(job spec.Job, device spec.Device, co spec.Coefficients) (*Estimate, error) {
	return new(Workspace).Run(job, device, co)
}

// Run is the function Run in this workspace.
func (w *Workspace) Run(job spec.Job, device spec.Device, co spec.Coefficients) (*Estimate, error) {
	job, assumptions, err := Resolve(job)
	if err != nil {
		return nil, err
	}
	return w.overStages(step.Stages(&job), func(stage int) (*Estimate, error) {
		return w.stage(job, assumptions, device, co, stage)
	})
}

// stage answers for the ranks of one stage of a resolved job's pipeline.
func (w *Workspace) stage(job spec.Job, assumptions []Assumption, device spec.Device, co spec.Coefficients, stage int) (*Estimate, error) {
	plan, err := step.CompileStage(&w.memory, job, cardFor(device, co), stage, nil)
	if err != nil {
		return nil, err
	}
	outside := co.Outside()
	e := &Estimate{
		Version: 1, Engine: Engine{Version: Version}, Job: job,
		Assumptions: slices.Clone(assumptions), Warnings: []Warning{},
	}
	played, required, err := w.play(e, plan, settings(job.Runtime, device.Total), device.Usable()-outside)
	if err != nil {
		return nil, err
	}
	e.measure(plan, played, outside)
	co = e.conclude(plan, device, co, required)
	e.explain(plan, played, co)
	e.count(plan, stage)
	e.summarise(device)
	e.loadExperts(plan)
	e.computeRecurrence(plan)
	return e, nil
}

// conclude sets what the job requires, the doubts about it and the verdict. It
// returns the coefficients with the engine's own error as wide as the plan asks
// for.
func (e *Estimate) conclude(plan *step.Plan, device spec.Device, co spec.Coefficients, required units.Bytes) spec.Coefficients {
	e.Peak.Required = required + co.Outside()
	e.correct(co.EngineBias.Mean, co.Outside())
	if plan.Machine.Convolved() {
		e.warn("convolutions", "cuDNN chooses the algorithm of each convolution on the card, and with it a workspace: what is counted for it is an expectation, and the interval is wider for it.", 0, "model")
		if !co.Calibrated() { // a measured error has the workspaces in it
			co.EngineError = max(co.EngineError, convolutionError)
		}
	}
	for _, d := range plan.Doubts {
		e.warn(d.Code, d.Text, d.Bytes, d.Path)
		co.EngineError = max(co.EngineError, d.Error)
	}
	e.HostMemory = units.Bytes(plan.Host)
	e.judge(device, co, units.Bytes(plan.Machine.ConvOperands()))
	return co
}

// play replays the plan and finds what it requires. The replay it returns is
// the one the answer reports: without limit, or, where that reserves more than
// the card gives and the job still completes by releasing cached segments,
// under the card's capacity.
func (w *Workspace) play(e *Estimate, plan *step.Plan, cfg allocator.Config, capacity units.Bytes) (*replay, units.Bytes, error) {
	played, err := w.run(plan, cfg)
	if err != nil {
		return nil, 0, err
	}
	required, err := w.required(plan.Program, cfg, played.stats)
	if err != nil || capacity <= 0 || played.stats.Reserved.Peak <= capacity || required > capacity {
		return played, required, err
	}
	over := played.stats.Reserved.Peak - capacity
	under := cfg
	under.Capacity = capacity
	limited, err := w.run(plan, under)
	if err != nil {
		return nil, 0, err
	}
	if limited.oom != nil { // the steps after the cache had settled asked for more
		played, err = w.run(plan, cfg)
		return played, required, err
	}
	e.warn("allocator_retries", "The job completes only because the allocator releases cached segments when it runs out; each time costs a synchronisation, and fragmentation may yet end it.", over, "target")
	return limited, required, nil
}

// correct moves the process by what the engine is known to be wrong by, of what
// it simulated.
func (e *Estimate) correct(bias float64, outside units.Bytes) {
	if bias == 0 {
		return
	}
	e.Peak.Required += units.Bytes(bias * float64(e.Peak.Required-outside))
	e.Peak.Process += units.Bytes(bias * float64(e.Peak.Reserved))
	for i := range e.Phases {
		e.Phases[i].PeakProcess += units.Bytes(bias * float64(e.Phases[i].PeakReserved))
	}
}

func (e *Estimate) warn(code, text string, bytes units.Bytes, path string) {
	e.Warnings = append(e.Warnings, Warning{Code: code, Text: text, Bytes: bytes, Path: path})
}

// measure fills phases and peaks from a replay.
func (e *Estimate) measure(plan *step.Plan, r *replay, outside units.Bytes) {
	for _, ph := range r.took() {
		s := &r.phases[ph]
		p := Phase{
			Name: ph.String(), StartAllocated: s.start, PeakRequested: s.requested, PeakAllocated: s.allocated,
			PeakReserved: s.reserved, PeakProcess: s.reserved + outside, EndAllocated: s.end, Parts: []Part{},
		}
		for pt := step.ForwardPart; pt <= step.OptimizerPart; pt++ {
			if s.parts[pt].peak > 0 {
				p.Parts = append(p.Parts, Part{Name: pt.String(), PeakAllocated: s.parts[pt].peak, EndAllocated: s.parts[pt].end})
			}
		}
		e.Phases = append(e.Phases, p)
		e.Peak.Requested = max(e.Peak.Requested, s.requested)
		e.Peak.Allocated = max(e.Peak.Allocated, s.allocated)
		e.Peak.Reserved = max(e.Peak.Reserved, s.reserved)
	}
	e.Peak.Process = e.Peak.Reserved + outside
}
