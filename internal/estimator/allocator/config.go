package allocator

import (
	"math"
	"math/bits"

	"memplan/internal/units"
)

// Sizes that are fixed in c10/cuda/CUDACachingAllocator.cpp.
const (
	minBlock     = 512      // every size is a multiple of it
	smallLimit   = 1 << 20  // largest block of the small pool, largest slack left unsplit in the large one
	smallSegment = 2 << 20  // what the small pool asks the driver for
	largeMinimum = 10 << 20 // from here on a segment is as large as its request
	largeRound   = 2 << 20  // and rounded up to this
	largeSegment = 20 << 20 // below, it is this: option large_segment_size_mb
	granularity  = 2 << 20  // the driver's: address and charge of a segment
)

// MaxStreams is the number of CUDA streams an Event can name.
const MaxStreams = 64

const unlimited = math.MaxInt64

// maxRequest is far beyond any device, and sums of it do not overflow unseen.
const maxRequest = 1 << 60

// Config is what PYTORCH_ALLOC_CONF and the device say. The zero value is
// torch's default on a device without limit.
type Config struct {
	// Capacity is what the allocator may take from the driver: the device's
	// total less the context and everybody else. 0 has no limit.
	Capacity units.Bytes
	// DeviceTotal is cudaMemGetInfo's total, the base of MemoryFraction and
	// of the 1.125-fold virtual range of an expandable segment. 0 stands for
	// Capacity, or for a range that is never exhausted.
	DeviceTotal units.Bytes

	ExpandableSegments     bool
	MaxSplitSize           units.Bytes // max_split_size_mb; 0 has no limit
	MaxNonSplitRounding    units.Bytes // max_non_split_rounding_mb; 0 is 20 MiB
	LargeSegmentSize       units.Bytes // large_segment_size_mb; 0 is 20 MiB
	RoundupPower2Divisions Divisions

	// GarbageCollectionThreshold acts only when MemoryFractionSet, as in torch.
	GarbageCollectionThreshold float64
	// MemoryFractionSet says that set_per_process_memory_fraction was called
	// with MemoryFraction, a share of DeviceTotal.
	MemoryFractionSet bool
	MemoryFraction    float64

	// TiesByAddress is how torch chose among free blocks of equal size until
	// the spring of 2026 (2.6 does so): the lowest address. Later ones take
	// that of the oldest segment, and the lowest address within.
	TiesByAddress bool

	// Settles ends the repetitions of a part within another, the micro batches
	// of a step, once one, after the first ones, asked nothing of the driver and
	// raised no peak: the cache has settled, and what later ones might still add
	// is a few blocks handed out whole. Without it, and for the outer parts
	// always, they end only when the state itself is one seen before.
	Settles bool

	// EventLag is how many further allocations pass before the use of a
	// block on another stream is seen to be over: how far the CPU runs ahead
	// of the GPU. 0 is the low end, a large number the high one.
	EventLag int
}

// limits is a Config in the form the allocator calculates with.
type limits struct {
	capacity      int64 // of the driver
	allowed       int64 // of the memory fraction
	collectAbove  int64 // reserved bytes at which a miss collects; negative: never
	maxSplit      int64
	nonSplitRound int64
	largeSegment  int64
	virtual       int64 // address range of an expandable segment, before rounding to pages
	lag           int64
	expandable    bool
	roundup       bool
	addressTies   bool
	divisions     Divisions
}

func orDefault(b units.Bytes, d int64) int64 {
	if b <= 0 {
		return d
	}
	return int64(b)
}

func (c Config) limits() limits {
	l := limits{
		capacity:      orDefault(c.Capacity, unlimited),
		allowed:       unlimited,
		collectAbove:  -1,
		maxSplit:      orDefault(c.MaxSplitSize, unlimited),
		nonSplitRound: orDefault(c.MaxNonSplitRounding, largeSegment),
		largeSegment:  orDefault(c.LargeSegmentSize, largeSegment),
		lag:           int64(max(c.EventLag, 0)),
		expandable:    c.ExpandableSegments,
		addressTies:   c.TiesByAddress,
		roundup:       c.RoundupPower2Divisions != Divisions{},
		divisions:     c.RoundupPower2Divisions,
	}
	total := orDefault(c.DeviceTotal, orDefault(c.Capacity, 1<<50))
	l.virtual = total + total/8
	if c.MemoryFractionSet {
		l.allowed = int64(c.MemoryFraction * float64(total))
		if c.GarbageCollectionThreshold > 0 {
			l.collectAbove = int64(c.GarbageCollectionThreshold * float64(l.allowed))
		}
	}
	return l
}

// roundSize is the size of the block that serves a request, before slack.
func (l *limits) roundSize(n int64) int64 {
	if n < minBlock {
		return minBlock
	}
	if l.roundup {
		at := min(max(bits.Len64(uint64(n))-21, 0), intervals-1)
		if d := int64(l.divisions[at]); d > 1 && n > minBlock*d {
			return roundDivision(n, d)
		}
	}
	return (n + minBlock - 1) &^ (minBlock - 1)
}

// roundDivision raises n to the next of the d equal steps between the powers
// of two around it.
func roundDivision(n, d int64) int64 {
	floor := int64(1) << (bits.Len64(uint64(n)) - 1)
	if floor == n {
		return n
	}
	step := floor >> (bits.Len64(uint64(d)) - 1)
	if step == 0 {
		return floor << 1
	}
	return (n + step - 1) &^ (step - 1)
}

// segmentSize is what a miss of a rounded size asks the driver for.
func (l *limits) segmentSize(size int64) int64 {
	switch {
	case size <= smallLimit:
		return smallSegment
	case size < largeMinimum:
		return l.largeSegment
	default:
		return (size + largeRound - 1) &^ (largeRound - 1)
	}
}

// splits says whether the rest of a block stays behind when size is taken
// from it.
func (l *limits) splits(small bool, size, rest int64) bool {
	if small || l.expandable {
		return rest >= minBlock
	}
	return size < l.maxSplit && rest > smallLimit
}

// page is the unit in which an expandable segment is mapped.
func (l *limits) page(small bool) int64 {
	if small {
		return smallSegment
	}
	return l.largeSegment
}

// Round returns the block size of a request and the segment size of its miss
// under a configuration.
func (c Config) Round(requested units.Bytes) (block, segment units.Bytes) {
	l := c.limits()
	size := l.roundSize(int64(requested))
	return units.Bytes(size), units.Bytes(l.segmentSize(size))
}
