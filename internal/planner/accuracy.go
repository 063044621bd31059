package planner

import (
	"context"
	"math"
	"slices"

	"memplan/internal/calibrate"
	"memplan/internal/estimator"
	"memplan/internal/fault"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// mostCompared is how many of the newest runs accuracy is told of.
const mostCompared = 200

// Accuracy is how right the answers are, by the measured runs that are kept:
// with the calibrations in force, and by the priors alone.
type Accuracy struct {
	Runs   int             `json:"runs" doc:"Runs compared: the newest that are not flagged."`
	Tiers  []TierAccuracy  `json:"tiers" doc:"Errors by what was measured."`
	After  AccuracyOfAll   `json:"after" doc:"With the calibrations in force."`
	Before AccuracyOfAll   `json:"before" doc:"By the priors alone."`
	Points []AccuracyPoint `json:"points"`
}

// TierAccuracy is the error of one metric.
type TierAccuracy struct {
	Metric       string  `json:"metric" enum:"allocated,reserved,process"`
	N            int     `json:"n"`
	Median       float64 `json:"median_abs_error"`
	P90          float64 `json:"p90_abs_error"`
	Bias         float64 `json:"bias" doc:"Mean of the signed errors."`
	MedianBefore float64 `json:"median_abs_error_before"`
}

// AccuracyOfAll is the interval's coverage of processes, and verdicts that were
// wrong.
type AccuracyOfAll struct {
	N          int     `json:"n" doc:"Runs whose process was measured."`
	Coverage   float64 `json:"coverage_90"`
	Low        float64 `json:"coverage_low" doc:"Of its 95 % binomial interval."`
	High       float64 `json:"coverage_high"`
	Width      float64 `json:"interval_width_median" doc:"Of the measured size."`
	RanOut     int     `json:"ran_out"`
	FitsRanOut int     `json:"said_fits_ran_out"`
	Ran        int     `json:"ran"`
	NoWouldFit int     `json:"said_no_would_fit"`
}

// AccuracyPoint is one figure of one run beside its predictions.
type AccuracyPoint struct {
	Run         string      `json:"run"`
	Name        string      `json:"name"`
	Model       string      `json:"model"`
	GPU         string      `json:"gpu"`
	Metric      string      `json:"metric"`
	Measured    units.Bytes `json:"measured_bytes"`
	Predicted   units.Bytes `json:"predicted_bytes"`
	Before      units.Bytes `json:"predicted_before_bytes"`
	Low         units.Bytes `json:"low_bytes,omitempty" doc:"Of the 90 % interval, of a process."`
	High        units.Bytes `json:"high_bytes,omitempty"`
	Calibration string      `json:"calibration"`
}

// Error is the signed relative error.
func (p AccuracyPoint) Error() float64 { return float64(p.Predicted)/float64(p.Measured) - 1 }

// compared is a run with its answers by both.
type compared struct {
	run           ReportedRun
	after, before *estimator.Estimate
}

// Accuracy compares the newest runs of a card, or of all, with what is answered
// for their jobs now.
func (p *Planner) Accuracy(ctx context.Context, f RunFilter) (Accuracy, error) {
	f.Flagged, f.Limit, f.Cursor = "false", mostCompared, ""
	page, err := p.Runs(ctx, f)
	if err != nil {
		return Accuracy{}, err
	}
	prior, err := p.By(ctx, priorCalibration)
	if err != nil {
		return Accuracy{}, err
	}
	all := make([]compared, len(page.Items))
	errs := make([]error, len(page.Items))
	each(len(all), func(i int) {
		all[i].run = page.Items[i]
		if all[i].after, errs[i] = p.Estimate(ctx, all[i].run.Job); errs[i] == nil {
			all[i].before, errs[i] = prior.Estimate(ctx, all[i].run.Job)
		}
	})
	answered := all[:0]
	for i, c := range all {
		switch {
		case errs[i] == nil:
			answered = append(answered, c)
		case fault.KindOf(errs[i]) != fault.Invalid: // a job that is refused now has no accuracy
			return Accuracy{}, errs[i]
		}
	}
	return p.summariseAccuracy(answered), nil
}

func (p *Planner) summariseAccuracy(all []compared) Accuracy {
	a := Accuracy{Runs: len(all), Points: []AccuracyPoint{}, Tiers: []TierAccuracy{}}
	for _, c := range all {
		for _, m := range c.run.Measured {
			a.add(p, c, m)
		}
	}
	for _, metric := range []string{"allocated", "reserved", "process"} {
		if t := tierOf(metric, a.Points); t.N > 0 {
			a.Tiers = append(a.Tiers, t)
		}
	}
	a.After = ofAll(all, func(c compared) *estimator.Estimate { return c.after })
	a.Before = ofAll(all, func(c compared) *estimator.Estimate { return c.before })
	return a
}

// add notes a figure that an answer has too.
func (a *Accuracy) add(p *Planner, c compared, m wire.Measurement) {
	after, ok := predictedAs(c.after, m)
	if m.Relation != "equals" || !ok || m.Bytes <= 0 || m.Rank != "" && m.Rank != "0" {
		return
	}
	before, _ := predictedAs(c.before, m)
	x := AccuracyPoint{
		Run: c.run.ID, Name: c.run.Job.Name, Model: p.modelName(c.run.Job.Model), GPU: c.after.Target.GPU, Metric: m.Metric,
		Measured: m.Bytes, Predicted: after, Before: before, Calibration: c.after.Peak.Interval.Source,
	}
	if m.Metric == "process" {
		x.Low, x.High = c.after.Peak.ProcessInterval.Low, c.after.Peak.ProcessInterval.High
	}
	a.Points = append(a.Points, x)
}

// predictedAs is the answer's figure for a measurement: without a phase the
// largest of the steps.
func predictedAs(est *estimator.Estimate, m wire.Measurement) (units.Bytes, bool) {
	most, ok := units.Bytes(0), false
	for _, ph := range est.Phases {
		if m.Phase == "" && ph.Name == "load" || m.Phase != "" && m.Phase != ph.Name {
			continue
		}
		switch m.Metric {
		case "allocated":
			most, ok = max(most, ph.PeakAllocated), true
		case "reserved":
			most, ok = max(most, ph.PeakReserved), true
		case "process":
			most, ok = max(most, ph.PeakProcess), true
		}
	}
	return most, ok
}

func tierOf(metric string, points []AccuracyPoint) TierAccuracy {
	t := TierAccuracy{Metric: metric}
	var after, before []float64
	for _, x := range points {
		if x.Metric == metric {
			after = append(after, math.Abs(x.Error()))
			before = append(before, math.Abs(float64(x.Before)/float64(x.Measured)-1))
			t.Bias += x.Error()
		}
	}
	if t.N = len(after); t.N == 0 {
		return t
	}
	slices.Sort(after)
	slices.Sort(before)
	t.Bias /= float64(t.N)
	t.Median, t.P90, t.MedianBefore = after[t.N/2], after[t.N*9/10], before[t.N/2]
	return t
}

// ofAll is coverage and verdicts by one of a run's answers.
func ofAll(all []compared, answer func(compared) *estimator.Estimate) AccuracyOfAll {
	var a AccuracyOfAll
	var residuals []calibrate.Residual
	for _, c := range all {
		est := answer(c)
		if b := figure(c.run.Run, "process"); b > 0 {
			i := est.Peak.ProcessInterval
			residuals = append(residuals, calibrate.Residual{Measured: float64(b), Predicted: float64(est.Peak.Process), Low: float64(i.Low), High: float64(i.High)})
		}
		switch v := est.Target.Verdict; {
		case ranOut(c.run.Run):
			a.RanOut++
			if v == estimator.Fits {
				a.FitsRanOut++
			}
		default:
			a.Ran++
			if v == estimator.Exceeds {
				a.NoWouldFit++
			}
		}
	}
	s := calibrate.Summarise(residuals)
	a.N, a.Coverage, a.Width = s.N, s.Coverage, s.Width
	a.Low, a.High = calibrate.Binomial(s.Coverage, s.N)
	return a
}
