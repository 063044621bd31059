package allocator

import "slices"

// cycle is how many states are remembered while a part repeats: periods up to
// one less are found.
const cycle = 4

// history holds the states at the start of the latest repetitions of a part.
type history struct {
	states  [cycle][]int64
	retries [cycle]int // so far, at the same moments
	done    bool
}

// match records the state before a round and returns how many rounds ago the
// same state stood there, or 0. From an equal state the same events lead
// through the same states, so the rounds repeat with that period from then on.
func (h *history) match(a *Allocator, round int) int {
	if h.done {
		return 0
	}
	at := round % cycle
	if h.states[at] == nil {
		h.states[at] = a.buffer()
	}
	h.states[at] = a.snapshot(h.states[at][:0])
	h.retries[at] = a.window.Retries
	for k := 1; k < cycle && k <= round; k++ {
		if slices.Equal(h.states[at], h.states[(round-k)%cycle]) {
			h.done = true
			return k
		}
	}
	return 0
}

// skip leaves out as many of the coming rounds as are whole periods, counts
// the retries they would have made, and returns how many are left to run.
func (h *history) skip(a *Allocator, round, left, period int) int {
	each := a.window.Retries - h.retries[(round-period)%cycle]
	a.window.Retries += left / period * each
	return left % period
}

// close returns the history's memory to the allocator.
func (h *history) close(a *Allocator) {
	for _, s := range h.states {
		if s != nil {
			a.buffers = append(a.buffers, s)
		}
	}
}

func (a *Allocator) buffer() []int64 {
	n := len(a.buffers)
	if n == 0 {
		return make([]int64, 0, 1024)
	}
	b := a.buffers[n-1]
	a.buffers = a.buffers[:n-1]
	return b
}

// snapshot appends everything that decides the allocator's future, in a form
// that does not depend on how it was reached: block indices are left out,
// addresses and storage ids stand in. Statistics have no influence.
func (a *Allocator) snapshot(to []int64) []int64 {
	to = append(to, a.limits.capacity, a.space.charged, a.space.end)
	for _, g := range a.space.gaps {
		to = append(to, g.addr, g.size)
	}
	for _, s := range a.segments {
		if s.base != gone {
			to = append(to, s.base)
		}
	}
	for id, i := range a.ids {
		switch {
		case i > 0:
			b := &a.blocks[i-1]
			to = append(to, int64(id), b.addr, b.extent(), b.requested, int64(b.uses))
		case i < 0:
			to = append(to, int64(id), held)
		}
	}
	for at, f := range a.pools() {
		if f != nil && (f.firstFrom(0).class >= 0 || len(f.unmapped) > 0) {
			to = a.snapshotList(append(to, int64(-2-at)), f)
		}
	}
	for _, u := range a.parked {
		b := &a.blocks[u.block]
		to = append(to, b.addr, b.extent(), b.requested, int64(b.events), max(u.due-a.mallocs, 0))
	}
	return to
}

func (a *Allocator) snapshotList(to []int64, f *freeList) []int64 {
	for p := f.firstFrom(0); p.class >= 0; p = f.next(p) {
		i := f.at(p).block
		to = append(to, a.blocks[i].addr, a.blocks[i].extent())
		if a.limits.collectAbove >= 0 {
			to = append(to, a.age(i))
		}
	}
	to = append(to, held)
	for _, i := range f.unmapped {
		to = append(to, a.blocks[i].addr, a.blocks[i].extent())
	}
	return to
}

// extent is a block's size with its place in the segment, first, last or
// both, in bits that sizes leave free.
func (b *block) extent() int64 {
	n := b.size
	if b.prev == none {
		n |= 1
	}
	if b.next == none {
		n |= 2
	}
	return n
}
