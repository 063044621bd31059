package allocator

// arena is one expandable segment: a range of addresses of which pages are
// mapped as they are needed.
type arena struct{ base, size int64 }

// leastExpandable moves from the best fit on to blocks that are larger but
// could grow less: a block before unmapped addresses counts with them, so
// that the growing end of a segment is used last.
func (a *Allocator) leastExpandable(f *freeList, p cursor) cursor {
	for q := f.next(p); q.class >= 0; q = f.next(q) {
		if a.expandableSize(f.at(q).block) >= a.expandableSize(f.at(p).block) {
			break
		}
		p = q
	}
	return p
}

func (a *Allocator) expandableSize(i int32) int64 {
	b := &a.blocks[i]
	if b.next != none && a.blocks[b.next].unmapped {
		return b.size + a.blocks[b.next].size
	}
	return b.size
}

// expand maps pages for a block of at least size at the lowest address where
// free and unmapped ranges make room, and returns that block, in no list. On
// refusal it returns none; pages mapped until then stay.
func (a *Allocator) expand(f *freeList, size int64, stream uint8, small bool) int32 {
	i := a.room(f, size, stream, small)
	if a.blocks[i].unmapped && !a.mapBlock(i, min(a.blocks[i].size, size)) {
		return none
	}
	for a.blocks[i].size < size {
		n := a.blocks[i].next // unmapped, as room saw
		if n == none || !a.mapBlock(n, min(size-a.blocks[i].size, a.blocks[n].size)) {
			return none
		}
		i = n // it absorbed the block before it
	}
	b := &a.blocks[i]
	f.remove(b.entry(i))
	return i
}

// room returns the first block of a run of free and unmapped blocks that
// together hold size; at worst that of a new segment.
func (a *Allocator) room(f *freeList, size int64, stream uint8, small bool) int32 {
	for _, i := range f.unmapped {
		if p := a.blocks[i].prev; p != none && a.blocks[p].idle() {
			i = p
		}
		if a.hasRoom(i, size) {
			return i
		}
	}
	page := a.limits.page(small)
	virtual := (max(a.limits.virtual, size) + page - 1) / page * page
	i := a.newBlock()
	b := &a.blocks[i]
	b.addr, b.size, b.stream, b.small, b.unmapped = a.space.reserve(virtual), virtual, stream, small, true
	b.arena, b.age = a.newArena(b.addr, virtual), a.newSegment(b.addr)
	a.shelveUnmapped(i)
	return i
}

func (a *Allocator) newArena(base, size int64) int32 {
	for i := range a.arenas {
		if a.arenas[i].size == 0 {
			a.arenas[i] = arena{base, size}
			return int32(i)
		}
	}
	a.arenas = append(a.arenas, arena{base, size})
	return int32(len(a.arenas) - 1)
}

func (a *Allocator) hasRoom(i int32, size int64) bool {
	for size > 0 && i != none && a.blocks[i].idle() {
		size -= a.blocks[i].size
		i = a.blocks[i].next
	}
	return size <= 0
}

// mapBlock puts memory behind the first size bytes of an unmapped block, in
// whole pages, merges it with its free neighbours and shelves the result.
func (a *Allocator) mapBlock(i int32, size int64) bool {
	b := &a.blocks[i]
	page := a.limits.page(b.small)
	size = (size + page - 1) / page * page
	if !a.charge(size) {
		return false
	}
	a.unshelve(i)
	addr, stream := b.addr, b.stream
	if size < b.size {
		a.shelveUnmapped(a.cut(i, size))
		b = &a.blocks[i]
	}
	b.unmapped = false
	a.absorb(i)
	a.shelve(i)
	a.window.Reserved.add(size)
	a.observe(SegmentMap, addr, size, stream)
	return true
}

// unmap takes the memory from the whole pages inside a free block, and gives
// up the segment when nothing of it is left.
func (a *Allocator) unmap(i int32) {
	b := &a.blocks[i]
	base, page := a.arenas[b.arena].base, a.limits.page(b.small)
	from := base + (b.addr-base+page-1)/page*page
	to := base + (b.addr-base+b.size)/page*page
	if from >= to {
		return
	}
	a.unshelve(i)
	if lead := from - b.addr; lead > 0 {
		front := i
		i = a.cut(front, lead)
		a.shelve(front)
	}
	if a.blocks[i].addr+a.blocks[i].size > to {
		a.shelve(a.cut(i, to-from))
	}
	b = &a.blocks[i]
	b.unmapped = true
	a.absorb(i)
	a.shelveUnmapped(i)
	a.space.charged -= granules(to - from)
	a.window.Reserved.sub(to - from)
	a.observe(SegmentUnmap, from, to-from, b.stream)
	if b.prev == none && b.next == none {
		a.unshelve(i)
		a.space.release(b.addr, b.size)
		a.dropSegment(b.age)
		a.arenas[b.arena] = arena{}
		a.discard(i)
	}
}
