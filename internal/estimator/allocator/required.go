package allocator

import (
	"errors"

	"memplan/internal/units"
)

// tightening is how many replays Required spends at most.
const tightening = 8

// Required returns the smallest capacity found at which a program completes
// when the cache is released on a miss. The program does complete there: the
// answer was replayed, or it is what an unlimited run reserves, which is never
// exceeded. It is no less than the peak of the active bytes. That nothing in
// between would do is likely and not proved: whether a capacity is enough is
// not monotone in it. The Capacity and the memory fraction of the
// configuration are left aside.
func Required(c Config, p Program) (units.Bytes, error) {
	c.Capacity, c.MemoryFractionSet = 0, false
	a := New(c)
	if err := a.Run(p, nil); err != nil {
		return 0, err
	}
	return a.RequiredAfter(c, p, a.Stats(), tightening)
}

// RequiredAfter is Required for a caller who has run the program without
// limit already and kept its statistics. It spends at most the given number of
// replays: none where the unlimited run reserved no more than was active, 2
// for a first answer, more to tighten it. It resets the allocator and uses its
// memory.
func (a *Allocator) RequiredAfter(c Config, p Program, unlimitedRun Stats, replays int) (units.Bytes, error) {
	c.MemoryFractionSet = false
	enough := unlimitedRun.Reserved.Peak
	try := units.Bytes(granules(int64(unlimitedRun.Active.Peak)))
	short := try - granularity
	for ; replays > 0 && short+granularity < enough; replays-- {
		c.Capacity = try
		grown, err := a.grow(c, p, enough)
		if err != nil {
			return 0, err
		}
		if grown == try {
			enough = try
		} else {
			short = try
		}
		if try = grown; try >= enough {
			try = units.Bytes(granules(int64(short+enough) / 2))
		}
		if try >= enough {
			break
		}
	}
	return enough, nil
}

// grow runs the program from an empty device of the configured capacity,
// raises that by what is missing wherever it would fail, and returns where it
// ended; it gives up once that is no less than ceiling.
func (a *Allocator) grow(c Config, p Program, ceiling units.Bytes) (units.Bytes, error) {
	c.Settles = true
	a.Reset(c)
	a.ceiling = int64(ceiling) - 1
	err := a.Run(p, nil)
	var oom *OOM
	if errors.As(err, &oom) {
		return ceiling, nil
	}
	return a.Capacity(), err
}

// Completes reports whether the program runs to its end under a configuration;
// an error other than exhausted memory is returned.
func Completes(c Config, p Program) (bool, error) {
	err := New(c).Run(p, nil)
	var oom *OOM
	if errors.As(err, &oom) {
		return false, nil
	}
	return err == nil, err
}
