package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"memplan/internal/calibrate"
	"memplan/internal/planner"
)

// leastRows is how many rows of one card and framework version are calibrated.
const leastRows = 12

// measuredCard is what a calibration is for.
type measuredCard struct{ gpu, version string }

// calibration prints how well the 90 % intervals hold what processes were seen
// to hold, by the priors alone and with half of the rows of a card and version
// told: rows of one job that differ in size stay in one half, and each half is
// predicted from the other.
func calibration(w io.Writer, rows []*row, p *planner.Planner) error {
	cards := map[measuredCard][]*planner.Observed{}
	var prior []calibrate.Residual
	for _, r := range rows {
		if r.err != nil || !r.hasProcess() {
			continue
		}
		o, err := p.Observe(context.Background(), r.Run)
		if err != nil {
			return err
		}
		if len(o.Observations) == 0 {
			continue
		}
		x, i := o.Observations[0], o.Estimate.Peak.ProcessInterval
		predicted, _ := predictedOf(o.Estimate, r.Measured[r.process()])
		prior = append(prior, calibrate.Residual{
			Run: x.Run, Group: x.Group, Measured: x.Measured, Predicted: float64(predicted),
			Low: float64(i.Low), High: float64(i.High), Error: float64(predicted)/x.Measured - 1,
		})
		card := measuredCard{o.Estimate.Target.GPU, cmp.Or(r.Job.Runtime.FrameworkVersion, "newest")}
		cards[card] = append(cards[card], o)
	}
	fmt.Fprintln(w, "\nwhat processes hold (nvidia-smi): 90 % interval")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tn\tmedian error\tcoverage\t95 % of it\tmedian width")
	line(t, "priors alone, all rows", prior)
	for _, card := range slices.SortedFunc(maps.Keys(cards), func(a, b measuredCard) int {
		return cmp.Or(cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.version, b.version))
	}) {
		if observed := cards[card]; len(observed) >= leastRows {
			halves(t, card, observed, prior)
		}
	}
	return t.Flush()
}

// halves prints a card's rows by the priors, and each half by the other.
func halves(w io.Writer, card measuredCard, observed []*planner.Observed, prior []calibrate.Residual) {
	ladders := map[string][]calibrate.Observation{}
	var all []calibrate.Observation
	for _, o := range observed {
		x := o.Observations[0]
		ladders[x.Ladder] = append(ladders[x.Ladder], x)
		all = append(all, x)
	}
	var half [2][]calibrate.Observation
	for i, l := range slices.Sorted(maps.Keys(ladders)) {
		half[i%2] = append(half[i%2], ladders[l]...)
	}
	var held []calibrate.Residual
	for i := range half {
		held = append(held, calibrate.Compare(calibrate.New(half[1-i], observed[0].Priors), half[i])...)
	}
	name := card.gpu + ", torch " + card.version
	line(w, name+": priors alone", slices.DeleteFunc(slices.Clone(prior), func(r calibrate.Residual) bool {
		return !slices.ContainsFunc(all, func(x calibrate.Observation) bool { return x.Run == r.Run })
	}))
	line(w, fmt.Sprintf("%s: each half of %d ladders by the other", name, len(ladders)), held)
}

func line(w io.Writer, name string, residuals []calibrate.Residual) {
	v := calibrate.Summarise(residuals)
	low, high := calibrate.Binomial(v.Coverage, v.N)
	fmt.Fprintf(w, "%s\t%d\t%.2f %%\t%.0f %%\t%.0f to %.0f %%\t%.1f %%\n", name, v.N, 100*v.MedianAbsError, 100*v.Coverage, 100*low, 100*high, 100*v.Width)
}

// process is the index of the figure of the whole process, or -1.
func (r *row) process() int {
	for i, m := range r.Measured {
		if m.Metric == "process" && m.Relation == "equals" {
			return i
		}
	}
	return -1
}

func (r *row) hasProcess() bool { return r.process() >= 0 }
