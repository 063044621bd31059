package allocator

import (
	"slices"

	"memplan/internal/units"
)

// A Checkpoint is a copy of an allocator's state between two parts of a program
// that ran without limit. Under a capacity the same program leads to the same
// state, so long as no more was ever reserved: a replay can begin there.
type Checkpoint struct {
	next     Next
	free     []freed
	unmapped []int32
	lists    []extents // of the pools in use
	state    Allocator // its lists and what it only works with left out
}

// freed is a block in a free list.
type freed struct {
	entry
	class int32
}

// extents are the numbers of free and of unmapped blocks of a pool.
type extents struct {
	used           bool
	free, unmapped int
}

// Next says what comes next in a program: which of its parts, and which of that
// one's own. An inner one other than the first is of a part that runs once and
// renames nothing.
type Next struct{ Part, Inner int }

// after reports whether n comes later than o.
func (n Next) after(o Next) bool {
	return n.Part > o.Part || n.Part == o.Part && n.Inner > o.Inner
}

// rest returns what is left of a program.
func (n Next) rest(p Program) Program {
	if n.Inner == 0 {
		return p[n.Part:]
	}
	part := p[n.Part]
	rest := Program{{Label: part.Label, Parts: part.Parts[n.Inner:]}}
	return append(rest, p[n.Part+1:]...)
}

// Save copies the state to c, whose memory is used again.
func (a *Allocator) Save(next Next, c *Checkpoint) {
	s := &c.state
	c.next, c.free, c.unmapped, c.lists = next, c.free[:0], c.unmapped[:0], c.lists[:0]
	s.copyState(a)
	for _, f := range a.pools() {
		if f == nil {
			c.lists = append(c.lists, extents{})
			continue
		}
		free := len(c.free)
		for p := f.firstFrom(0); p.class >= 0; p = f.firstFrom(p.class + 1) {
			for _, e := range f.class[p.class] {
				c.free = append(c.free, freed{e, int32(p.class)})
			}
		}
		c.unmapped = append(c.unmapped, f.unmapped...)
		c.lists = append(c.lists, extents{true, len(c.free) - free, len(f.unmapped)})
	}
}

// restore brings the allocator to the state of c, under another configuration.
func (a *Allocator) restore(c *Checkpoint, under Config) {
	a.Reset(under)
	a.copyState(&c.state)
	free, unmapped := c.free, c.unmapped
	for at, n := range c.lists {
		if !n.used {
			continue
		}
		f := a.pool(uint8(at/2), at%2 == poolIndex(true))
		for _, e := range free[:n.free] {
			f.class[e.class] = append(f.class[e.class], e.entry)
			f.filled[e.class/64] |= 1 << (e.class % 64)
		}
		f.unmapped = append(f.unmapped, unmapped[:n.unmapped]...)
		free, unmapped = free[n.free:], unmapped[n.unmapped:]
	}
}

// copyState copies what runs change, the free lists apart.
func (a *Allocator) copyState(from *Allocator) {
	a.space.gaps = append(a.space.gaps[:0], from.space.gaps...)
	a.space.end, a.space.charged = from.space.end, from.space.charged
	a.blocks = append(a.blocks[:0], from.blocks...)
	a.spare = append(a.spare[:0], from.spare...)
	a.arenas = append(a.arenas[:0], from.arenas...)
	a.segments = append(a.segments[:0], from.segments...)
	a.dead, a.created, a.searches = from.dead, from.created, from.searches
	if n := len(from.ids); n > len(a.ids) {
		a.ids = slices.Grow(a.ids[:0], n)[:n]
	}
	clear(a.ids[copy(a.ids, from.ids):])
	a.parked = append(a.parked[:0], from.parked...)
	a.mallocs, a.serial, a.traffic = from.mallocs, from.serial, from.traffic
	a.window, a.overall = from.window, from.overall
}

// latestOf returns the latest of the checkpoints at which no more than the
// configuration's capacity had been reserved, or nil. Where the capacity decides
// more than when memory is exhausted, there is none.
func latestOf(points []*Checkpoint, under Config) (latest *Checkpoint) {
	if under.ExpandableSegments && under.DeviceTotal == 0 {
		return nil
	}
	for _, c := range points {
		enough := units.Bytes(granules(int64(c.state.Stats().Reserved.Peak))) <= under.Capacity
		if enough && (latest == nil || c.next.after(latest.next)) {
			latest = c
		}
	}
	return latest
}
