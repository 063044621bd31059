package allocator

import (
	"slices"

	"memplan/internal/units"
)

// fresh serves a miss: it asks the driver, and on refusal releases what it
// may, in torch's order, before it gives up.
func (a *Allocator) fresh(f *freeList, size int64, stream uint8, small bool) int32 {
	if a.limits.collectAbove >= 0 {
		a.collect()
	}
	i := a.extend(f, size, stream, small)
	if i == none && a.limits.maxSplit != unlimited && a.releaseOversize(f, size) {
		i = a.extend(f, size, stream, small)
	}
	if i == none {
		a.releaseCached()
		a.window.Retries++
		i = a.extend(f, size, stream, small)
	}
	return i
}

// extend takes memory from the driver for a block of at least size.
func (a *Allocator) extend(f *freeList, size int64, stream uint8, small bool) int32 {
	segment := a.limits.segmentSize(size)
	if int64(a.window.Reserved.Current)+segment > a.limits.allowed {
		return none
	}
	if a.limits.expandable {
		return a.expand(f, size, stream, small)
	}
	if !a.charge(segment) {
		return none
	}
	i := a.newBlock()
	b := &a.blocks[i]
	b.addr, b.size, b.stream, b.small = a.space.reserve(segment), segment, stream, small
	b.age = a.newSegment(b.addr)
	a.window.Segments++
	a.window.SegmentsPeak = max(a.window.SegmentsPeak, a.window.Segments)
	a.window.Reserved.add(segment)
	a.observe(SegmentAlloc, b.addr, segment, stream)
	return i
}

// newSegment enters a segment and returns its place in the order of ties.
func (a *Allocator) newSegment(base int64) int32 {
	if a.limits.addressTies {
		return 0
	}
	a.created++
	a.segments = append(a.segments, segment{a.created, base})
	return a.created
}

// dropSegment forgets a segment. The dead are swept out when they are half of
// all, so that releasing a large cache takes time in its size.
func (a *Allocator) dropSegment(age int32) {
	if a.limits.addressTies {
		return
	}
	i, _ := slices.BinarySearchFunc(a.segments, age, func(s segment, age int32) int { return int(s.age - age) })
	a.segments[i].base = gone
	if a.dead++; a.dead*2 > len(a.segments) {
		a.segments = slices.DeleteFunc(a.segments, func(s segment) bool { return s.base == gone })
		a.dead = 0
	}
}

// charge takes n bytes of the device's memory, if it has them.
func (a *Allocator) charge(n int64) bool {
	n = granules(n)
	if a.space.charged+n > a.limits.capacity || a.space.charged+n < 0 {
		return false
	}
	a.space.charged += n
	return true
}

// releaseSegment gives a free block that is a whole segment back.
func (a *Allocator) releaseSegment(i int32) {
	b := &a.blocks[i]
	a.list(b).remove(b.entry(i))
	a.dropSegment(b.age)
	a.space.release(b.addr, b.size)
	a.space.charged -= granules(b.size)
	a.window.Segments--
	a.window.Reserved.sub(b.size)
	a.observe(SegmentFree, b.addr, b.size, b.stream)
	a.discard(i)
}

// whole says that a free block is all of a cudaMalloc segment.
func (a *Allocator) whole(i int32) bool {
	return a.blocks[i].prev == none && a.blocks[i].next == none && !a.limits.expandable
}

// releaseCached ends all uses and gives every wholly free segment, or page of
// an expandable one, back to the driver.
func (a *Allocator) releaseCached() {
	a.reap(unlimited)
	for pool := range 2 { // large pools first
		for at := pool; at < len(a.pools()); at += 2 {
			if f := a.lists[at]; f != nil {
				a.releaseList(f)
			}
		}
	}
}

func (a *Allocator) releaseList(f *freeList) {
	var going []int32
	for p := f.firstFrom(0); p.class >= 0; p = f.next(p) {
		if i := f.at(p).block; a.limits.expandable || a.whole(i) {
			going = append(going, i)
		}
	}
	for _, i := range going {
		if a.limits.expandable {
			a.unmap(i)
		} else {
			a.releaseSegment(i)
		}
	}
}

// releaseOversize gives back a cached block that max_split_size keeps from
// being used, large enough for the request, or else several of them from the
// largest down. It reports whether they add up to it.
func (a *Allocator) releaseOversize(f *freeList, size int64) bool {
	want := max(size, a.limits.maxSplit)
	if a.limits.expandable {
		return false
	}
	if p := f.lowerBound(want); p.class >= 0 {
		a.releaseSegment(f.at(p).block)
		return true
	}
	released := int64(0)
	for released < want {
		p := f.largest()
		if p.class < 0 || f.at(p).size < a.limits.maxSplit {
			break
		}
		released += f.at(p).size
		a.releaseSegment(f.at(p).block)
	}
	return released >= want
}

// collect frees old cached segments of the large pools while more is reserved
// than the garbage collection threshold allows.
func (a *Allocator) collect() {
	goal := int64(a.window.Reserved.Current) - a.limits.collectAbove
	if goal <= 0 || a.limits.expandable {
		return
	}
	free := a.collectable()
	age, reclaimed := int64(0), int64(0)
	for _, i := range free {
		age += a.age(i)
	}
	for freed := true; reclaimed < goal && freed && len(free) > 0; {
		threshold := float64(age) / float64(len(free))
		freed = false
		kept := free[:0]
		for _, i := range free {
			if float64(a.age(i)) < threshold {
				kept = append(kept, i)
				continue
			}
			freed = true
			reclaimed += a.blocks[i].size
			age -= a.age(i)
			a.releaseSegment(i)
		}
		free = kept
	}
}

// collectable returns the wholly free segments of the large pools.
func (a *Allocator) collectable() []int32 {
	var free []int32
	for at := 0; at < len(a.pools()); at += 2 {
		f := a.lists[at]
		if f == nil {
			continue
		}
		for p := f.firstFrom(0); p.class >= 0; p = f.next(p) {
			if i := f.at(p).block; a.whole(i) {
				free = append(free, i)
			}
		}
	}
	return free
}

// age is how many searches of its pool a free block has outlived.
func (a *Allocator) age(i int32) int64 {
	return a.searches[poolIndex(a.blocks[i].small)] - a.blocks[i].born
}

func (a *Allocator) observe(op SegmentOp, addr, size int64, stream uint8) {
	a.traffic++
	if a.watch.Segment != nil {
		a.watch.Segment(op, addr, units.Bytes(size), stream)
	}
}
