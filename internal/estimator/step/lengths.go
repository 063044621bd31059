package step

import (
	"math"

	"memplan/internal/estimator/spec"
)

// Samples of several lengths are a fixed sequence of quantiles: no chance is
// involved. A batch is padded to its longest sample; the steps run at the median
// of that, at the longest there is, at its 95th percentile, and at the longest
// again, so that the cache holds blocks of other sizes when the worst batch comes.

// batchLength is the length that a batch of so many samples is padded to, with
// the given probability that it is no longer.
func batchLength(l *spec.Lengths, samples int, probability float64) int {
	return int(math.Ceil(quantile(l, math.Pow(probability, 1/float64(max(1, samples))))))
}

// quantile of a sample's length, straight between what is known: the mean, taken
// as the median, the 95th percentile and the longest.
func quantile(l *spec.Lengths, q float64) float64 {
	longest := float64(l.Longest)
	p95, mean := l.P95, l.Mean
	if p95 == 0 {
		p95 = longest
	}
	if mean == 0 {
		mean = p95
	}
	points := [...]struct{ q, length float64 }{{0, max(1, 2*mean-p95)}, {0.5, mean}, {0.95, p95}, {1, longest}}
	for i := 1; i < len(points); i++ {
		if a, b := points[i-1], points[i]; q <= b.q {
			return a.length + (b.length-a.length)*(q-a.q)/(b.q-a.q)
		}
	}
	return longest
}

// varied writes down the steady steps of a job whose lengths vary.
func (r *Run) varied(l *spec.Lengths) {
	for _, probability := range []float64{1, 0.95, 1} {
		r.Job.Training.SequenceLength = batchLength(l, r.Job.Training.MicroBatchSize, probability)
		r.step(SteadyStep)
	}
}
