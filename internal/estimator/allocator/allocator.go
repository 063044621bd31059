package allocator

import (
	"math/bits"

	"memplan/internal/units"
)

// An Allocator is torch's caching allocator of one device, with the driver
// beneath it. It is not safe for concurrent use.
type Allocator struct {
	limits limits
	space  space

	blocks   []block
	spare    []int32                   // unused blocks
	lists    [2 * MaxStreams]*freeList // large and small pool of each stream, made when first used
	streams  int                       // bound of the streams used
	arenas   []arena                   // expandable segments
	segments []segment                 // oldest first, unless ties go by address
	dead     int                       // of them, released
	created  int32                     // segments so far
	searches [2]int64                  // of the large and the small pools, counted for garbage collection

	// ids tells the state of every storage: 0 unknown, held known without
	// bytes, otherwise its block plus one.
	ids     []int32
	parked  []use // uses that are not over, oldest first
	mallocs int64

	window  Stats // peaks since the last mark
	overall Stats // peaks before it

	traffic int  // how often the driver was asked, since the beginning
	settles bool // a repetition that does not ask the driver ends its part: see Config.Settles
	watch   Watcher
	serial  int       // events run so far
	buffers [][]int64 // of snapshots that are not in use
}

const held = -1

// segment is what the driver gave in one piece.
type segment struct {
	age  int32 // ordinal
	base int64 // or gone
}

const gone = -1

// use is a block parked until one stream is done with it, which is seen at
// the first allocation after due others.
type use struct {
	block int32
	due   int64
}

// New returns an allocator that holds nothing.
func New(c Config) *Allocator {
	return &Allocator{limits: c.limits(), settles: c.Settles}
}

// Reset returns the allocator to the state New gave it, for another
// configuration, and keeps its memory.
func (a *Allocator) Reset(c Config) {
	a.limits = c.limits()
	a.space.reset()
	a.blocks, a.spare, a.arenas = a.blocks[:0], a.spare[:0], a.arenas[:0]
	a.segments, a.dead, a.created = a.segments[:0], 0, 0
	for _, f := range a.pools() {
		if f != nil {
			f.reset()
		}
	}
	clear(a.ids)
	a.searches, a.parked, a.mallocs, a.serial = [2]int64{}, a.parked[:0], 0, 0
	a.window, a.overall, a.watch = Stats{}, Stats{}, Watcher{}
	a.traffic, a.settles = 0, c.Settles
}

// pools returns the free lists of the streams used so far; some may be nil.
func (a *Allocator) pools() []*freeList { return a.lists[:2*a.streams] }

// Stats returns the counters with their peaks since New, Reset or ResetPeaks.
func (a *Allocator) Stats() Stats { return a.window.cover(a.overall) }

// ResetPeaks starts all peaks anew, as torch.cuda.reset_peak_memory_stats does.
func (a *Allocator) ResetPeaks() {
	a.window.restart()
	a.overall = Stats{}
}

// Capacity returns what the allocator may take from the driver; 0 is no limit.
func (a *Allocator) Capacity() units.Bytes {
	if a.limits.capacity == unlimited {
		return 0
	}
	return units.Bytes(a.limits.capacity)
}

// Address returns where a storage lies and how large its block is; false when
// it holds no bytes. The driver's addresses begin at 0.
func (a *Allocator) Address(storage int32) (addr int64, size units.Bytes, ok bool) {
	if storage < 0 || int(storage) >= len(a.ids) || a.ids[storage] <= 0 {
		return 0, 0, false
	}
	b := &a.blocks[a.ids[storage]-1]
	return b.addr, units.Bytes(b.size), true
}

// malloc returns a living block for a request of more than zero bytes, or
// none when memory is exhausted.
func (a *Allocator) malloc(requested int64, stream uint8) int32 {
	if len(a.parked) > 0 {
		a.reap(a.mallocs)
	}
	a.mallocs++
	size := a.limits.roundSize(requested)
	small := size <= smallLimit
	f := a.pool(stream, small)
	i := a.cached(f, size, small)
	if i == none {
		if i = a.fresh(f, size, stream, small); i == none {
			return none
		}
	}
	if rest := a.blocks[i].size - size; a.limits.splits(small, size, rest) {
		r := a.cut(i, size)
		b := &a.blocks[r]
		b.born = a.searches[poolIndex(small)]
		f.insert(b.entry(r))
	}
	b := &a.blocks[i]
	b.live, b.requested, b.uses = true, requested, 0
	a.window.Allocated.add(b.size)
	a.window.Active.add(b.size)
	a.window.Requested.add(requested)
	return i
}

// cached takes the best fitting free block out of its list.
func (a *Allocator) cached(f *freeList, size int64, small bool) int32 {
	if a.limits.collectAbove >= 0 {
		a.searches[poolIndex(small)]++
	}
	p := f.lowerBound(size)
	if p.class < 0 {
		return none
	}
	if a.limits.expandable {
		p = a.leastExpandable(f, p)
	}
	e := f.at(p)
	if size < a.limits.maxSplit && e.size >= a.limits.maxSplit {
		return none // an oversize block is not for ordinary requests
	}
	if size >= a.limits.maxSplit && e.size >= size+a.limits.nonSplitRound {
		return none // nor to be wasted on much smaller ones
	}
	i := e.block
	f.removeAt(p)
	return i
}

// free returns a living block to its list, or parks it.
func (a *Allocator) free(i int32) {
	b := &a.blocks[i]
	b.live = false
	a.window.Allocated.sub(b.size)
	if b.uses == 0 {
		a.retire(i)
		return
	}
	b.events = int32(bits.OnesCount64(b.uses))
	for range b.events {
		a.parked = append(a.parked, use{i, a.mallocs + a.limits.lag})
	}
	b.uses = 0
}

// retire makes an idle block available.
func (a *Allocator) retire(i int32) {
	b := &a.blocks[i]
	a.window.Active.sub(b.size)
	a.window.Requested.sub(b.requested)
	a.absorb(i)
	a.shelve(i)
}

// reap ends the uses that are over after the given number of allocations.
func (a *Allocator) reap(mallocs int64) {
	n := 0
	for ; n < len(a.parked) && a.parked[n].due <= mallocs; n++ {
		i := a.parked[n].block
		if a.blocks[i].events--; a.blocks[i].events == 0 {
			a.retire(i)
		}
	}
	if n > 0 {
		a.parked = a.parked[:copy(a.parked, a.parked[n:])]
	}
}

// recordStream notes that another stream uses a living block.
func (a *Allocator) recordStream(i int32, stream uint8) {
	if b := &a.blocks[i]; b.stream != stream {
		b.uses |= 1 << stream
	}
}
