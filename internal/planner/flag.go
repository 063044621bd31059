package planner

import (
	"context"
	"fmt"

	"memplan/internal/estimator"
	"memplan/internal/fault"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// wildRatio is how far a counter of the allocator may lie from its prediction
// before the job is taken to be another one than was run.
const wildRatio = 1.5

// judgeRun says why a run feeds no fit, if so, and what is predicted for it. A
// job that names nothing known is the reporter's error.
func (p *Planner) judgeRun(ctx context.Context, run wire.Run) (reason string, est *estimator.Estimate, err error) {
	est, err = p.Estimate(ctx, run.Job)
	if err != nil {
		if fault.KindOf(err) != fault.Invalid {
			return "", nil, err
		}
		return "the engine has no answer for this job: " + err.Error(), nil, nil
	}
	for _, check := range []func(wire.Run, *estimator.Estimate) string{p.otherCard, contradicts, beyondCard, wildly, unfitted} {
		if reason = check(run, est); reason != "" {
			break
		}
	}
	return reason, est, nil
}

// otherCard: the run was measured on a card that is not the job's target.
func (p *Planner) otherCard(run wire.Run, est *estimator.Estimate) string {
	on, err := p.catalog.GPU(run.Environment.GPU)
	if run.Environment.GPU == "" || err != nil || on.Key == est.Target.GPU || run.Job.Target.MIGProfile != "" {
		return ""
	}
	if target, err := p.catalog.GPU(est.Target.GPU); err != nil || target.Key == on.Key {
		return ""
	}
	return fmt.Sprintf("it was measured on %s, and its job is for %s", on.Key, est.Target.GPU)
}

// figure is what a run measured of a metric over its steps, 0 for nothing.
func figure(run wire.Run, metric string) units.Bytes {
	most := units.Bytes(0)
	for _, m := range run.Measured {
		if m.Metric == metric && m.Relation == "equals" && m.Phase != "load" && (m.Rank == "" || m.Rank == "0") {
			most = max(most, m.Bytes+m.Rounding)
		}
	}
	return most
}

// contradicts: a process holds what it reserved, and that what is allocated.
func contradicts(run wire.Run, _ *estimator.Estimate) string {
	order := []string{"tensor", "requested", "allocated", "reserved", "process"}
	for i, small := range order {
		for _, large := range order[i+1:] {
			a, b := figure(run, small), figure(run, large)
			if b > 0 && a > b+units.MiB {
				return fmt.Sprintf("it contradicts itself: %s %s is more than %s %s", small, a, large, b)
			}
		}
	}
	return ""
}

func beyondCard(run wire.Run, est *estimator.Estimate) string {
	total := est.Target.Usable + est.Job.Target.OtherProcessesGiB + est.Job.Target.HeadroomGiB
	for _, metric := range []string{"reserved", "process"} {
		if b := figure(run, metric); b > total+2*units.GiB {
			return fmt.Sprintf("%s %s is more than %s has", metric, b, est.Target.GPU)
		}
	}
	return ""
}

func wildly(run wire.Run, est *estimator.Estimate) string {
	for _, x := range []struct {
		metric    string
		predicted units.Bytes
	}{{"allocated", est.Peak.Allocated}, {"reserved", est.Peak.Reserved}, {"process", est.Peak.Process}} {
		b := figure(run, x.metric)
		outside := units.Bytes(0)
		if x.metric == "process" { // the context of a small job may be most of it
			outside = 2 * units.GiB
		}
		if b > 0 && (float64(b) > wildRatio*float64(x.predicted)+float64(outside) || float64(b) < float64(x.predicted)/wildRatio-float64(outside)) {
			return fmt.Sprintf("%s %s is far from the predicted %s: a setting of the run is probably not in the job", x.metric, b, x.predicted)
		}
	}
	return ""
}

// unfitted is a run without a figure that a fit is made of.
func unfitted(run wire.Run, _ *estimator.Estimate) string {
	if _, ok := fitted(run); ok {
		return ""
	}
	for _, m := range run.Measured {
		if m.Relation != "equals" {
			return "" // counts among those that ran out, or fitted
		}
	}
	return "nothing to fit was measured: neither the process nor what the allocator reserved"
}
