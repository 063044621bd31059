package planner

import (
	"context"

	"memplan/internal/estimator"
)

// maxMicroBatch is where the search for the largest micro batch ends.
const maxMicroBatch = 4096

// probe is the estimate at one micro batch.
type probe struct {
	micro int
	est   *estimator.Estimate
}

func (p probe) fits() bool { return p.est.Target.Verdict == estimator.Fits }

// search finds the largest micro batch that fits between a size that does and
// one that does not.
type search struct {
	at func(micro int) (*estimator.Estimate, error)
}

// largest returns the largest fitting probe (micro 0 and no estimate when one
// sample does not fit) and the one directly above it (no estimate at the limit).
func (s *search) largest(ctx context.Context) (best, above probe, err error) {
	low, high, err := s.bracket(ctx)
	if err != nil || low.est == nil || high.est == nil {
		return low, high, err
	}
	for turn := 0; high.micro-low.micro > 1; turn++ {
		if err := ctx.Err(); err != nil {
			return probe{}, probe{}, err
		}
		mid, err := s.probe(between(low, high, turn))
		if err != nil {
			return probe{}, probe{}, err
		}
		if mid.fits() {
			low = mid
		} else {
			high = mid
		}
	}
	return low, high, nil
}

// bracket goes up from one sample until one probe fits and the next does not.
// Without an estimate low means that none fits, and high that all do.
func (s *search) bracket(ctx context.Context) (low, high probe, err error) {
	high, err = s.probe(1)
	for tries := 0; err == nil && high.fits(); tries++ {
		if high.micro == maxMicroBatch {
			return high, probe{}, nil
		}
		step := beyond(low, high, tries)
		low = high
		if high, err = s.probe(min(low.micro+step, maxMicroBatch)); err == nil {
			err = ctx.Err()
		}
	}
	return low, high, err
}

// beyond is how far above two fitting probes the first that does not fit is
// expected, on the straight line through both; the least step doubles with each
// try.
func beyond(before, low probe, tries int) int {
	least := 1 << tries
	if before.est == nil {
		return least
	}
	rise := float64(low.est.Peak.Interval.High-before.est.Peak.Interval.High) / float64(low.micro-before.micro)
	room := float64(low.est.Target.Usable - low.est.Peak.Interval.High)
	if !(rise > 0) || room/rise > maxMicroBatch {
		return maxMicroBatch
	}
	return max(least, int(room/rise)+1)
}

func (s *search) probe(micro int) (probe, error) {
	est, err := s.at(micro)
	return probe{micro, est}, err
}

// between guesses where required memory crosses the usable on the straight line
// through both probes, for it is nearly one. Every third turn takes the middle,
// so that a curve that is not straight costs no more than three bisections.
func between(low, high probe, turn int) int {
	share := 0.5
	if turn%3 != 2 {
		rise := float64(high.est.Peak.Interval.High - low.est.Peak.Interval.High)
		room := float64(low.est.Target.Usable - low.est.Peak.Interval.High)
		if guess := room / rise; guess > 0 && guess < 1 {
			share = guess
		}
	}
	width := high.micro - low.micro
	return low.micro + max(1, min(int(share*float64(width)), width-1))
}
