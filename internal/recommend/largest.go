package recommend

import (
	"context"

	"memplan/internal/units"
)

// Trial is an answer at one size.
type Trial struct {
	Size          int
	Fits          bool
	Needs, Usable units.Bytes
	Bound         bool // needs at least that much, and nothing else is known
}

// Largest finds the largest size (a micro batch, a number of steps of tokens)
// that fits, from 1 to a limit. It returns the trial that fits and the one
// directly above it: both were tried, for memory is not quite monotone in size.
// Size 0 means that not even 1 fits; above has size 0 where the limit fits.
func Largest(ctx context.Context, limit int, try func(size int) (Trial, error)) (best, above Trial, err error) {
	low, high, err := bracket(ctx, limit, try)
	if err != nil || low.Size == 0 || high.Size == 0 {
		return low, high, err
	}
	for turn := 0; high.Size-low.Size > 1; turn++ {
		if err := ctx.Err(); err != nil {
			return Trial{}, Trial{}, err
		}
		mid, err := try(between(low, high, turn))
		if err != nil {
			return Trial{}, Trial{}, err
		}
		if mid.Fits {
			low = mid
		} else {
			high = mid
		}
	}
	return low, high, nil
}

// bracket goes up from 1 until one size fits and the next does not.
func bracket(ctx context.Context, limit int, try func(size int) (Trial, error)) (low, high Trial, err error) {
	high, err = try(1)
	for tries := 0; err == nil && high.Fits; tries++ {
		if high.Size == limit {
			return high, Trial{}, nil
		}
		step := beyond(low, high, tries, limit)
		low = high
		if high, err = try(min(low.Size+step, limit)); err == nil {
			err = ctx.Err()
		}
	}
	return low, high, err
}

// beyond is how far above two fitting sizes the first that does not fit is
// expected, on the straight line through both; the least step doubles with each
// try.
func beyond(before, low Trial, tries, limit int) int {
	least := 1 << tries
	if before.Size == 0 {
		return least
	}
	rise := float64(low.Needs-before.Needs) / float64(low.Size-before.Size)
	room := float64(low.Usable - low.Needs)
	if !(rise > 0) || room/rise > float64(limit) {
		return limit
	}
	return max(least, int(room/rise)+1)
}

// between guesses where what is needed crosses the usable on the straight line
// through both trials, for it is nearly one. Every third turn takes the middle,
// so that a curve that is not straight costs no more than three bisections.
func between(low, high Trial, turn int) int {
	share := 0.5
	if turn%3 != 2 && !high.Bound {
		rise := float64(high.Needs - low.Needs)
		room := float64(low.Usable - low.Needs)
		if guess := room / rise; guess > 0 && guess < 1 {
			share = guess
		}
	}
	width := high.Size - low.Size
	return low.Size + max(1, min(int(share*float64(width)), width-1))
}
