package allocator

import (
	"errors"

	"memplan/internal/units"
)

// verifications bounds how often Required raises its answer and replays.
const verifications = 4

// Required returns the smallest capacity found at which a program completes
// when the cache is released on a miss. It is exact in that the program does
// complete there, and it lies between the peak of the active bytes and the
// peak that an unlimited run reserves; that nothing between the first and the
// answer would do is likely but not proved (see the package comment). The
// Capacity and the memory fraction of the configuration are left aside.
func Required(c Config, p Program) (units.Bytes, error) {
	c.Capacity, c.MemoryFractionSet = 0, false
	a := New(c)
	if err := a.Run(p, nil); err != nil {
		return 0, err
	}
	return a.RequiredAfter(c, p, a.Stats())
}

// RequiredAfter is Required for a caller who has run the program without
// limit already and kept its statistics. It resets the allocator and uses its
// memory. Where the unlimited run reserved no more than was active, no replay
// is needed.
func (a *Allocator) RequiredAfter(c Config, p Program, unlimitedRun Stats) (units.Bytes, error) {
	c.MemoryFractionSet = false
	most := unlimitedRun.Reserved.Peak
	c.Capacity = units.Bytes(granules(int64(unlimitedRun.Active.Peak)))
	for range verifications {
		if c.Capacity >= most {
			break
		}
		grown, err := a.grow(c, p)
		if err != nil {
			return 0, err
		}
		if grown == c.Capacity {
			return grown, nil
		}
		c.Capacity = grown
	}
	return most, nil
}

// grow runs the program from an empty device of the given capacity, raises
// that by what is missing wherever it would fail, and returns where it ended.
func (a *Allocator) grow(c Config, p Program) (units.Bytes, error) {
	a.Reset(c)
	a.growing = true
	if err := a.Run(p, nil); err != nil {
		return 0, err
	}
	return a.Capacity(), nil
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
