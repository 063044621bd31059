package allocator

import (
	"memplan/internal/units"
)

// SegmentOp is what happens between the allocator and the driver.
type SegmentOp uint8

// The traffic with the driver, by the names torch's traces give it.
const (
	SegmentAlloc SegmentOp = iota
	SegmentFree
	SegmentMap
	SegmentUnmap
)

// Watcher is told what happens during a run. Each of its functions may be nil
// and costs nothing then. Repetitions that are skipped as copies of earlier
// ones are not told.
type Watcher struct {
	// Mark is called at each Mark event with the label of its part, its
	// Site, and the statistics with peaks since the previous mark.
	Mark func(label, code int32, s Stats)
	// Event is called after each event; index counts them over the run.
	Event func(index int, e Event, allocated, reserved, requested units.Bytes)
	// Carry is called after a repetition has renamed its storages.
	Carry func(c []Carry)
	// Segment is called as memory is taken from and given to the driver.
	Segment func(op SegmentOp, addr int64, size units.Bytes, stream uint8)
}

// Run executes a program from the present state on. It ends early with an
// *OOM when memory is exhausted and with a *ProgramError when an event is
// impossible; the state is then that before the event, less the cache an OOM
// released. A nil watcher watches nothing.
func (a *Allocator) Run(p Program, w *Watcher) error {
	a.watch = Watcher{}
	if w != nil {
		a.watch = *w
	}
	return a.runParts(p, false)
}

func (a *Allocator) runParts(ps []Part, inner bool) error {
	for i := range ps {
		if err := a.runPart(&ps[i], inner); err != nil {
			return err
		}
	}
	return nil
}

// unsettled is how many rounds of a part run before one may be found to have
// settled: blocks of the first ones often find their last places a round later.
const unsettled = 2

// runPart runs a part with its repetitions, as few as are needed. An inner part
// is one of another.
func (a *Allocator) runPart(p *Part, inner bool) error {
	n := max(p.Repeat, 1)
	var seen history
	defer seen.close(a)
	for round := 0; round < n; round++ {
		if n > 1 {
			if period := seen.match(a, round); period > 0 {
				n = round + seen.skip(a, round, n-round, period)
				if round == n {
					break
				}
			}
		}
		traffic, peak := a.traffic, a.highest()
		if err := a.runEvents(p, round); err != nil {
			return err
		}
		if err := a.runParts(p.Parts, true); err != nil {
			return err
		}
		if err := a.carry(p, round); err != nil {
			return err
		}
		if inner && a.settles && round >= unsettled && a.traffic == traffic && a.highest() == peak {
			break
		}
	}
	return nil
}

// highest is the peak of the allocated bytes since the beginning.
func (a *Allocator) highest() units.Bytes {
	return max(a.window.Allocated.Peak, a.overall.Allocated.Peak)
}

// runEvents runs a part's own events once.
func (a *Allocator) runEvents(p *Part, round int) error {
	for i := range p.Events {
		e := &p.Events[i]
		problem := ""
		switch e.Kind {
		case Alloc:
			problem = a.doAlloc(e)
		case Free:
			problem = a.doFree(e)
		case UseOn:
			problem = a.doUse(e)
		case Resize:
			problem = a.doResize(e)
		case EmptyCache:
			a.releaseCached()
		case Mark:
			a.doMark(p.Label, e.Site)
		case Recat:
		default:
			problem = "unknown kind"
		}
		if problem != "" {
			return a.fail(problem, Place{p.Label, i, round, *e})
		}
		if a.watch.Event != nil {
			a.watch.Event(a.serial, *e, a.window.Allocated.Current, a.window.Reserved.Current, a.window.Requested.Current)
		}
		a.serial++
	}
	return nil
}

// exhausted is what an event reports when there is no memory; any other text
// is a defect of the program.
const exhausted = "out of memory"

func (a *Allocator) fail(problem string, at Place) error {
	if problem != exhausted {
		return &ProgramError{at, problem}
	}
	return &OOM{
		Place:     at,
		Requested: units.Bytes(at.Event.Bytes),
		Segment:   units.Bytes(a.limits.segmentSize(a.limits.roundSize(at.Event.Bytes))),
		Allocated: a.window.Allocated.Current,
		Reserved:  a.window.Reserved.Current,
		Capacity:  units.Bytes(min(a.limits.capacity, a.limits.allowed)),
	}
}

// known returns what a.ids says of a storage; 0 if nothing.
func (a *Allocator) known(storage int32) int32 {
	if uint32(storage) < uint32(len(a.ids)) {
		return a.ids[storage]
	}
	return 0
}

func (a *Allocator) doAlloc(e *Event) string {
	switch {
	case uint32(e.Block) >= uint32(len(a.ids)):
		if e.Block < 0 {
			return "storage ids are not negative"
		}
		a.ids = append(a.ids, make([]int32, max(64, len(a.ids), int(e.Block)+1-len(a.ids)))...)
	case a.ids[e.Block] != 0:
		return "it is alive already"
	}
	return a.give(e)
}

// give backs the storage of an event with its bytes.
func (a *Allocator) give(e *Event) string {
	switch {
	case e.Stream >= MaxStreams:
		return "stream out of range"
	case e.Bytes < 0 || e.Bytes > maxRequest:
		return "size out of range"
	case e.Bytes == 0:
		a.ids[e.Block] = held // torch allocates nothing, and frees it as nothing
		return ""
	}
	i := a.malloc(e.Bytes, e.Stream)
	if i == none {
		return exhausted
	}
	a.ids[e.Block] = i + 1
	return ""
}

func (a *Allocator) doFree(e *Event) string {
	i := a.known(e.Block)
	switch {
	case i > 0:
		a.free(i - 1)
	case i == 0:
		return "it is not alive"
	}
	a.ids[e.Block] = 0
	return ""
}

func (a *Allocator) doUse(e *Event) string {
	i := a.known(e.Block)
	switch {
	case i == 0:
		return "it is not alive"
	case e.Stream >= MaxStreams:
		return "stream out of range"
	case i > 0:
		a.recordStream(i-1, e.Stream)
	}
	return ""
}

// doResize allocates the new bytes before it frees the old ones, as torch's
// resize_bytes_cuda does.
func (a *Allocator) doResize(e *Event) string {
	old := a.known(e.Block)
	if old == 0 {
		return "it is not alive"
	}
	if problem := a.give(e); problem != "" {
		return problem
	}
	if old > 0 {
		a.free(old - 1)
	}
	return ""
}

// doMark hands the window's statistics over and starts the next window.
func (a *Allocator) doMark(label, code int32) {
	if a.watch.Mark != nil {
		a.watch.Mark(label, code, a.window)
	}
	a.overall = a.overall.cover(a.window)
	a.window.restart()
}

// carry renames storages after a repetition, all of them at once.
func (a *Allocator) carry(p *Part, round int) error {
	if len(p.Carry) == 0 {
		return nil
	}
	moved := make([]int32, len(p.Carry))
	for i, c := range p.Carry {
		if moved[i] = a.known(c.From); moved[i] == 0 {
			return a.badCarry(p, round, c.From, "carried, but not alive")
		}
	}
	for _, c := range p.Carry {
		a.ids[c.From] = 0
	}
	for i, c := range p.Carry {
		if uint32(c.To) >= uint32(len(a.ids)) || a.ids[c.To] != 0 {
			return a.badCarry(p, round, c.To, "carried to, but alive or never used")
		}
		a.ids[c.To] = moved[i]
	}
	if a.watch.Carry != nil {
		a.watch.Carry(p.Carry)
	}
	return nil
}

func (a *Allocator) badCarry(p *Part, round int, storage int32, problem string) error {
	return a.fail(problem, Place{p.Label, len(p.Events), round, Event{Kind: Recat, Block: storage}})
}
