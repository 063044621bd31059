package estimator

import (
	"math"

	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

// spread is how a size may differ from its estimate: normally, and with a
// probability by what a process holds more where its libraries load every
// kernel. So the interval reaches further up than down.
type spread struct {
	sd      float64
	modules spec.Modules
}

// spreadOf joins the coefficients' spread and the engine's relative error on
// the simulated bytes; conv is what the convolution workspace is of. The two
// are independent.
func spreadOf(co spec.Coefficients, conv, simulated units.Bytes, relative float64) spread {
	own := relative * float64(simulated)
	return spread{math.Sqrt(co.Variance(float64(conv), float64(simulated)) + own*own), co.Modules}
}

// below is the probability that the size is at most over bytes above its
// estimate.
func (s spread) below(over float64) float64 {
	p := s.modules.Probability
	lazy := normal(over / max(s.sd, 1))
	if p == 0 {
		return lazy
	}
	eager := math.Hypot(s.sd, float64(s.modules.SD))
	return (1-p)*lazy + p*normal((over-float64(s.modules.Mean))/max(eager, 1))
}

// quantile is the bytes above the estimate that the size stays within with
// probability q.
func (s spread) quantile(q float64) float64 {
	wide := 6*(s.sd+float64(s.modules.SD)) + float64(s.modules.Mean) + 1
	low, high := -wide, wide
	for high-low > 1 {
		mid := (low + high) / 2
		if s.below(mid) < q {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}

// around is the 90 % interval of a size by its estimate.
func (s spread) around(b units.Bytes) Range {
	return Range{max(0, b+units.Bytes(s.quantile(0.05))), b + units.Bytes(s.quantile(0.95))}
}

// normal is the standard normal distribution function.
func normal(z float64) float64 { return 0.5 * math.Erfc(-z/math.Sqrt2) }
