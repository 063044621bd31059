package main

import (
	"slices"
	"strings"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/planner"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// withoutCard is the beginning of the source of rows that ran on a CUDA driver
// without a card behind it.
const withoutCard = "oracle: "

// driverContext is what that driver charges for the context.
const driverContext = 500 * units.MiB

// driverTotals are the totals it reports where the catalogue, which goes by
// what other drivers reported, has others. They decide where a job comes close
// to what the card gives and cached segments are released.
var driverTotals = map[string]units.Bytes{
	"RTX-4090": 25393692672,
	"T4":       15828320256,
}

// withoutWorkspace marks rows measured where no convolution takes a workspace.
const withoutWorkspace = "cudnn-workspace-zero"

// planners answer for real cards, and for the driver without one.
type planners struct{ cards, driver *planner.Planner }

func (p planners) of(run wire.Run) *planner.Planner {
	if strings.HasPrefix(run.Source, withoutCard) || slices.Contains(run.Tags, withoutWorkspace) {
		return p.driver
	}
	return p.cards
}

// onDriver estimates for the card as the driver without one presents it.
func onDriver(job spec.Job, device spec.Device, co spec.Coefficients) (*estimator.Estimate, error) {
	if total, ok := driverTotals[device.Key]; ok {
		device.Total = total
	}
	co.Context.Mean, co.NCCL.Mean, co.ConvWorkspace = driverContext, 0, spec.Ratio{}
	return estimator.Run(job, device, co)
}
