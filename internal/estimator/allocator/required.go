package allocator

import (
	"errors"

	"memplan/internal/units"
)

// Required returns the smallest capacity found at which a program completes
// when the cache is released on a miss. The program does complete there: the
// answer was replayed, or it is what an unlimited run reserves, which is never
// exceeded. A replay with one granule less failed, unless the answer is the
// peak of the active bytes, below which nothing completes. Whether a capacity
// is enough is not monotone in it: that none far below would do as well is
// likely and not proved.
// The Capacity and the memory fraction of the configuration are left aside.
func Required(c Config, p Program) (units.Bytes, error) {
	c.Capacity, c.MemoryFractionSet = 0, false
	a := New(c)
	if err := a.Run(p, nil); err != nil {
		return 0, err
	}
	return a.RequiredAfter(c, p, a.Stats(), 0)
}

// The capacities tried first lie these shares of the active peak above it. On
// training steps the answer is seldom more than a few percent above, and a
// replay that fails ends early, so it is cheaper to come from below.
const (
	firstSlack  = 0.01
	slackGrowth = 4
)

// RequiredAfter is Required for a caller who has run the program without
// limit already and kept its statistics. It stops when a replay has failed
// within the given share of the answer, 0.005 say, which bounds the cost to a
// few replays: none where the unlimited run reserved no more than was active.
// Replays begin at the latest of the checkpoints, taken during that run under the
// same configuration, that is good for their capacity. It resets the allocator
// and uses its memory.
func (a *Allocator) RequiredAfter(c Config, p Program, unlimitedRun Stats, within float64, points ...*Checkpoint) (units.Bytes, error) {
	c.MemoryFractionSet, c.Settles = false, true
	active := float64(unlimitedRun.Active.Peak)
	floor := units.Bytes(granules(int64(unlimitedRun.Active.Peak)))
	s := bracket{
		short:  floor - granularity,
		enough: unlimitedRun.Reserved.Peak,
		completes: func(capacity units.Bytes) (bool, units.Bytes, error) {
			c.Capacity = capacity
			rest := p
			if from := latestOf(points, c); from != nil {
				a.restore(from, c)
				rest = from.next.rest(p)
			} else {
				a.Reset(c)
			}
			err := a.Run(rest, nil)
			return !errors.As(err, new(*OOM)), a.Stats().Reserved.Peak, unlessOOM(err)
		},
	}
	for slack := firstSlack; !s.succeeded && s.open(within); slack *= slackGrowth {
		try := max(units.Bytes(granules(int64(active*(1+slack)))), s.short+granularity)
		if try >= s.enough {
			break
		}
		if err := s.try(try); err != nil {
			return 0, err
		}
	}
	for s.open(within) {
		if err := s.try(s.middle()); err != nil {
			return 0, err
		}
	}
	return s.enough, nil
}

// bracket narrows the capacity between one that was too little and one that is
// enough.
type bracket struct {
	short, enough units.Bytes
	succeeded     bool // a replay
	completes     func(capacity units.Bytes) (ok bool, reserved units.Bytes, err error)
}

// open says that a capacity in between is worth a replay.
func (s *bracket) open(within float64) bool {
	gap := s.enough - s.short
	return gap > granularity && float64(gap) > within*float64(s.enough)
}

func (s *bracket) middle() units.Bytes {
	return units.Bytes(granules(int64(s.short+s.enough) / 2))
}

// try replays under one capacity. Where it completes, what it reserved at most
// would have been enough as well: no request went beyond.
func (s *bracket) try(capacity units.Bytes) error {
	ok, reserved, err := s.completes(capacity)
	switch {
	case err != nil:
		return err
	case ok:
		s.enough, s.succeeded = min(capacity, reserved), true
	default:
		s.short = capacity
	}
	return nil
}

// Completes reports whether the program runs to its end under a configuration;
// an error other than exhausted memory is returned.
func Completes(c Config, p Program) (bool, error) {
	err := New(c).Run(p, nil)
	return err == nil, unlessOOM(err)
}

// unlessOOM drops the error that says memory was exhausted.
func unlessOOM(err error) error {
	if errors.As(err, new(*OOM)) {
		return nil
	}
	return err
}
