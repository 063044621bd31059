package allocator

import "slices"

// A block is a range of addresses inside a segment: living, parked, free, or,
// in an expandable segment, without memory behind it. Its neighbours in the
// segment are linked by index; none is none.
type block struct {
	addr, size int64
	requested  int64
	uses       uint64 // streams that record_stream named, one bit each
	born       int64  // searches of its pool when it became free: its age for garbage collection
	prev, next int32
	events     int32 // uses that are not over, of a parked block
	arena      int32 // expandable segment
	age        int32 // ordinal of the segment, see Allocator.segments
	stream     uint8
	small      bool
	live       bool
	unmapped   bool
}

const none = -1

// entry is the place of block i in its free list.
func (b *block) entry(i int32) entry { return entry{b.size, b.addr, b.age, i} }

// idle says that a block belongs to nobody and waits for nobody.
func (b *block) idle() bool { return !b.live && b.events == 0 }

// newBlock returns the index of a zeroed block without neighbours.
func (a *Allocator) newBlock() int32 {
	if n := len(a.spare); n > 0 {
		i := a.spare[n-1]
		a.spare = a.spare[:n-1]
		a.blocks[i] = block{prev: none, next: none}
		return i
	}
	a.blocks = append(a.blocks, block{prev: none, next: none})
	return int32(len(a.blocks) - 1)
}

func (a *Allocator) discard(i int32) { a.spare = append(a.spare, i) }

// link puts block i between its new neighbours.
func (a *Allocator) link(i, before, after int32) {
	b := &a.blocks[i]
	b.prev, b.next = before, after
	if before != none {
		a.blocks[before].next = i
	}
	if after != none {
		a.blocks[after].prev = i
	}
}

// cut takes the bytes of block i from offset on for a new block behind it,
// and returns that one. It enters no free list.
func (a *Allocator) cut(i int32, offset int64) int32 {
	r := a.newBlock()
	b, rest := &a.blocks[i], &a.blocks[r]
	rest.addr, rest.size = b.addr+offset, b.size-offset
	rest.stream, rest.small, rest.unmapped = b.stream, b.small, b.unmapped
	rest.arena, rest.age = b.arena, b.age
	b.size = offset
	a.link(r, i, b.next)
	return r
}

// list returns the free list a block belongs to.
func (a *Allocator) list(b *block) *freeList { return a.pool(b.stream, b.small) }

func (a *Allocator) pool(stream uint8, small bool) *freeList {
	at := int(stream%MaxStreams)*2 + poolIndex(small)
	if f := a.lists[at]; f != nil {
		return f
	}
	a.lists[at] = new(freeList)
	a.streams = max(a.streams, int(stream)+1)
	return a.lists[at]
}

// shelve enters a free block into its list.
func (a *Allocator) shelve(i int32) {
	b := &a.blocks[i]
	b.born = a.searches[poolIndex(b.small)]
	a.list(b).insert(b.entry(i))
}

// shelveUnmapped enters a block without memory into its list.
func (a *Allocator) shelveUnmapped(i int32) {
	f := a.list(&a.blocks[i])
	f.unmapped = slices.Insert(f.unmapped, a.findUnmapped(f, a.blocks[i].addr), i)
}

func (a *Allocator) findUnmapped(f *freeList, addr int64) int {
	at, _ := slices.BinarySearchFunc(f.unmapped, addr, func(i int32, addr int64) int {
		return int(min(max(a.blocks[i].addr-addr, -1), 1))
	})
	return at
}

func (a *Allocator) unshelve(i int32) {
	b := &a.blocks[i]
	f := a.list(b)
	if b.unmapped {
		at := a.findUnmapped(f, b.addr)
		f.unmapped = slices.Delete(f.unmapped, at, at+1)
		return
	}
	f.remove(b.entry(i))
}

// absorb merges the idle neighbours of block i into it, where they are mapped
// as it is. Block i itself must be in no list.
func (a *Allocator) absorb(i int32) {
	b := &a.blocks[i]
	if p := b.prev; p != none && a.mergeable(p, b) {
		a.unshelve(p)
		n := &a.blocks[p]
		b.addr = n.addr
		b.size += n.size
		a.link(i, n.prev, b.next)
		a.discard(p)
	}
	if p := b.next; p != none && a.mergeable(p, b) {
		a.unshelve(p)
		n := &a.blocks[p]
		b.size += n.size
		a.link(i, b.prev, n.next)
		a.discard(p)
	}
}

func (a *Allocator) mergeable(i int32, with *block) bool {
	n := &a.blocks[i]
	return n.idle() && n.unmapped == with.unmapped
}

func poolIndex(small bool) int {
	if small {
		return 1
	}
	return 0
}
