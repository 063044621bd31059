package calibrate

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// What a fit must show before it may be put in force.
const (
	leastRuns     = 12
	leastLadders  = 3
	leastCoverage = 0.80
	goodError     = 0.04 // median absolute error that is good enough whatever the prior's
)

// Validation is how a fit does on runs that it did not see: each ladder is
// predicted from the others.
type Validation struct {
	N              int     `json:"n"`
	MedianAbsError float64 `json:"median_abs_error"`
	Coverage       float64 `json:"coverage_90"`
	Width          float64 `json:"interval_width_median"` // of the measured size
	FitsRanOut     int     `json:"said_fits_ran_out"`
	NoWouldFit     int     `json:"said_no_would_fit"`
}

// Residual is one run beside its prediction, made without its ladder.
type Residual struct {
	Run       string  `json:"run"`
	Group     string  `json:"group"`
	Measured  float64 `json:"measured_bytes"`
	Predicted float64 `json:"predicted_bytes"`
	Low       float64 `json:"low_bytes"`
	High      float64 `json:"high_bytes"`
	Error     float64 `json:"relative_error"`
}

// Validate predicts every ladder from the others.
func Validate(observed []Observation, priors []Coefficient) (Validation, []Residual) {
	ladders := map[string][]Observation{}
	for _, o := range observed {
		ladders[o.Ladder] = append(ladders[o.Ladder], o)
	}
	var residuals []Residual
	for _, l := range slices.Sorted(maps.Keys(ladders)) {
		rest := slices.DeleteFunc(slices.Clone(observed), func(o Observation) bool { return o.Ladder == l })
		residuals = append(residuals, Compare(New(rest, priors), ladders[l])...)
	}
	return Summarise(residuals), residuals
}

// Compare predicts observations by a fit.
func Compare(f *Fit, observed []Observation) []Residual {
	out := make([]Residual, len(observed))
	for i, o := range observed {
		p := f.Predict(o)
		out[i] = Residual{
			Run: o.Run, Group: o.Group, Measured: o.Measured, Predicted: math.Round(p.Mean),
			Low: math.Round(p.Low), High: math.Round(p.High), Error: (p.Mean - o.Measured) / o.Measured,
		}
	}
	return out
}

// Covers says whether the interval holds what was measured.
func (r Residual) Covers() bool { return r.Low <= r.Measured && r.Measured <= r.High }

// Summarise is the error and the coverage of residuals.
func Summarise(residuals []Residual) Validation {
	v := Validation{N: len(residuals)}
	if v.N == 0 {
		return v
	}
	var errors, widths []float64
	for _, r := range residuals {
		errors = append(errors, math.Abs(r.Error))
		widths = append(widths, (r.High-r.Low)/r.Measured)
		if r.Covers() {
			v.Coverage++
		}
	}
	v.Coverage /= float64(v.N)
	v.MedianAbsError, v.Width = median(errors), median(widths)
	return v
}

func median(xs []float64) float64 {
	slices.Sort(xs)
	n := len(xs)
	if n%2 == 1 {
		return xs[n/2]
	}
	return (xs[n/2-1] + xs[n/2]) / 2
}

// Objection is why a fit may not be put in force: too few runs, held-out errors
// beyond those without it, intervals that do not hold. Empty: it may.
func Objection(observed []Observation, v, before Validation) string {
	ladders := map[string]bool{}
	for _, o := range observed {
		ladders[o.Ladder] = true
	}
	switch {
	case v.N < leastRuns:
		return fmt.Sprintf("%d runs: at least %d are needed", v.N, leastRuns)
	case len(ladders) < leastLadders:
		return fmt.Sprintf("runs of %d kinds of job: at least %d are needed", len(ladders), leastLadders)
	case v.Coverage < leastCoverage:
		return fmt.Sprintf("its 90 %% interval held %.0f %% of the runs held out: at least %.0f %% are needed", 100*v.Coverage, 100*leastCoverage)
	case v.MedianAbsError > before.MedianAbsError && v.MedianAbsError > goodError:
		return fmt.Sprintf("its median error on runs held out is %.1f %%, without it %.1f %%", 100*v.MedianAbsError, 100*before.MedianAbsError)
	}
	return ""
}

// Binomial is the 95 % interval of a share of n by Wilson's score.
func Binomial(share float64, n int) (low, high float64) {
	if n == 0 {
		return 0, 1
	}
	const z = 1.96
	m := float64(n)
	centre := (share + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(share*(1-share)/m+z*z/(4*m*m))
	return math.Max(0, centre-half), math.Min(1, centre+half)
}
