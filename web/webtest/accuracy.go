package webtest

import (
	"context"
	"time"

	"memplan/internal/calibrate"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// Accuracy is of one run, measured three ways; of no run on an H100.
func (p *Planner) Accuracy(_ context.Context, f planner.RunFilter) (planner.Accuracy, error) {
	if f.GPU == "H100-SXM5-80GB" {
		return planner.Accuracy{Points: []planner.AccuracyPoint{}}, nil
	}
	point := func(metric string, measured, predicted units.Bytes) planner.AccuracyPoint {
		return planner.AccuracyPoint{
			Run: "run_aaaaaaaaaaaaaaaa", Model: "=gpt2", GPU: "A100-SXM4-80GB", Metric: metric,
			Measured: measured * units.GiB, Predicted: predicted * units.GiB, Before: measured * units.GiB, Calibration: "cal_aaaaaaaaaaaaaaaa",
		}
	}
	process := point("process", 24, 25)
	process.Low, process.High = 23*units.GiB, 27*units.GiB
	return planner.Accuracy{
		Runs: 1, Points: []planner.AccuracyPoint{point("allocated", 20, 20), point("reserved", 22, 21), process},
		Tiers:  []planner.TierAccuracy{{Metric: "allocated", N: 1}, {Metric: "process", N: 1, Median: 0.04, Bias: 0.04}},
		After:  planner.AccuracyOfAll{N: 1, Coverage: 1, High: 1, Low: 0.2, Width: 0.16, Ran: 1},
		Before: planner.AccuracyOfAll{N: 1, RanOut: 1, FitsRanOut: 1},
	}, nil
}

// Calibrations lists two: one in force, and one that is not offered.
func (p *Planner) Calibrations(ctx context.Context, _ planner.CalibrationFilter) (wire.Page[*planner.Calibration], error) {
	active, err := p.Calibration(ctx, "cal_aaaaaaaaaaaaaaaa")
	refused, _ := p.Calibration(ctx, "cal_bbbbbbbbbbbbbbbb")
	return wire.NewPage([]*planner.Calibration{active, refused}, ""), err
}

// Calibration is a fit of one run.
func (p *Planner) Calibration(_ context.Context, id string) (*planner.Calibration, error) {
	c := &planner.Calibration{
		ID: id, GPU: "A100-SXM4-80GB", Framework: planner.Software{Name: "pytorch", Version: "2.6"}, RunsUsed: 1,
		CreatedAt: time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC), State: planner.Active,
		Coefficients: []calibrate.Coefficient{
			{Name: "context", Unit: "bytes", Prior: calibrate.Belief{Mean: 1 << 30, SD: 1 << 29, Source: "a guess"}, Posterior: calibrate.Belief{Mean: 3 << 29, SD: 1 << 27}},
			{Name: "conv_workspace", Unit: "ratio", Prior: calibrate.Belief{Mean: 1, SD: 0.5}, Posterior: calibrate.Belief{Mean: 1.2, SD: 0.1}},
		},
		EngineError: []calibrate.GroupError{{Group: "gpt2 hf none", Scale: 0.02, N: 1}},
		Residuals:   []calibrate.Residual{{Run: "run_aaaaaaaaaaaaaaaa", Group: "gpt2 hf none", Measured: 24 << 30, Predicted: 25 << 30, Low: 23 << 30, High: 27 << 30, Error: 1.0 / 24}},
		Excluded:    []planner.Excluded{{Run: "run_bbbbbbbbbbbbbbbb", Reason: "it lies wildly off"}},
	}
	switch id {
	case "cal_aaaaaaaaaaaaaaaa":
	case "cal_bbbbbbbbbbbbbbbb":
		reason := "1 runs: at least 12 are needed"
		c.State, c.NotOffered = planner.Candidate, &reason
	default:
		return nil, fault.New(fault.NotFound, "There is no calibration %s.", id)
	}
	return c, nil
}

// Activate refuses the fit that is not offered.
func (p *Planner) Activate(ctx context.Context, id string) (*planner.Calibration, error) {
	c, err := p.Calibration(ctx, id)
	if err == nil && c.NotOffered != nil {
		err = fault.New(fault.Conflict, "It may not be activated: %s", *c.NotOffered)
	}
	return c, err
}

// Retire retires nothing.
func (p *Planner) Retire(ctx context.Context, id string) (*planner.Calibration, error) {
	return p.Calibration(ctx, id)
}
