package allocator

import "math/bits"

// A freeList is the ordered set of the free blocks of one pool on one stream:
// by size, then by the age of their segments, then by address. torch keeps a
// balanced tree; here sizes fall into classes, 32 to every power of two, with
// a bit for each that is not empty, and each class is a short sorted slice with
// the first at its end, where it is cheapest to take. The order is the same.
type freeList struct {
	filled   [classes / 64]uint64
	class    [classes][]entry
	unmapped []int32 // expandable segments: blocks without pages, by address
}

const (
	classBits = 5
	perOctave = 1 << classBits
	classes   = 1024 // up to 32 TiB; everything larger shares the last one
)

type entry struct {
	size, addr int64
	age        int32 // ordinal of the segment; 0 where ties go by address
	block      int32
}

func (e *entry) before(o *entry) bool {
	if e.size != o.size {
		return e.size < o.size
	}
	if e.age != o.age {
		return e.age < o.age
	}
	return e.addr < o.addr
}

// cursor is the position of an entry; class is negative at the end.
type cursor struct{ class, index int }

func classOf(size int64) int {
	u := uint64(size) / minBlock
	if u < perOctave {
		return int(u)
	}
	octave := bits.Len64(u) - classBits
	return min(octave*perOctave+int(u>>(octave-1))&(perOctave-1), classes-1)
}

// few is up to how many entries walking a class beats searching it.
const few = 12

// search returns how many entries of a class are not before e: the last of them
// is the first in the set's order.
func search(s []entry, e *entry) int {
	if len(s) <= few {
		n := len(s)
		for n > 0 && s[n-1].before(e) {
			n--
		}
		return n
	}
	low := 0
	for high := len(s); low < high; {
		mid := int(uint(low+high) / 2)
		if s[mid].before(e) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

func (f *freeList) insert(e entry) {
	c := classOf(e.size)
	s := append(f.class[c], e)
	f.class[c] = s
	f.filled[c/64] |= 1 << (c % 64)
	i := len(s) - 1
	if i > few {
		at := search(s[:i], &e)
		copy(s[at+1:], s[at:i])
		i = at
	} else {
		for ; i > 0 && s[i-1].before(&e); i-- {
			s[i] = s[i-1]
		}
	}
	s[i] = e
}

func (f *freeList) remove(e entry) {
	c := classOf(e.size)
	f.removeAt(cursor{c, search(f.class[c], &e) - 1})
}

func (f *freeList) removeAt(p cursor) {
	s := f.class[p.class]
	last := len(s) - 1
	if last-p.index > few {
		copy(s[p.index:], s[p.index+1:])
	} else {
		for i := p.index; i < last; i++ {
			s[i] = s[i+1]
		}
	}
	f.class[p.class] = s[:last]
	if last == 0 {
		f.filled[p.class/64] &^= 1 << (p.class % 64)
	}
}

func (f *freeList) at(p cursor) *entry { return &f.class[p.class][p.index] }

// lowerBound returns the first block of at least size.
func (f *freeList) lowerBound(size int64) cursor {
	c := classOf(size)
	if f.filled[c/64]>>(c%64)&1 != 0 {
		if n := search(f.class[c], &entry{size: size}); n > 0 {
			return cursor{c, n - 1}
		}
	}
	return f.firstFrom(c + 1)
}

// firstFrom returns the first entry of class c or a later one.
func (f *freeList) firstFrom(c int) cursor {
	if c >= classes {
		return cursor{class: -1}
	}
	w := c / 64
	if m := f.filled[w] >> (c % 64); m != 0 {
		return f.first(c + bits.TrailingZeros64(m))
	}
	for w++; w < len(f.filled); w++ {
		if m := f.filled[w]; m != 0 {
			return f.first(w*64 + bits.TrailingZeros64(m))
		}
	}
	return cursor{class: -1}
}

// first returns the first entry of a class that is not empty.
func (f *freeList) first(class int) cursor { return cursor{class, len(f.class[class]) - 1} }

// next returns the position after p in the set's order.
func (f *freeList) next(p cursor) cursor {
	if p.index > 0 {
		return cursor{p.class, p.index - 1}
	}
	return f.firstFrom(p.class + 1)
}

// largest returns the last entry of the set.
func (f *freeList) largest() cursor {
	for w := len(f.filled) - 1; w >= 0; w-- {
		if m := f.filled[w]; m != 0 {
			return cursor{class: w*64 + 63 - bits.LeadingZeros64(m)}
		}
	}
	return cursor{class: -1}
}

// reset empties the set and keeps its memory.
func (f *freeList) reset() {
	for p := f.firstFrom(0); p.class >= 0; p = f.firstFrom(p.class + 1) {
		f.class[p.class] = f.class[p.class][:0]
	}
	f.filled = [classes / 64]uint64{}
	f.unmapped = f.unmapped[:0]
}
