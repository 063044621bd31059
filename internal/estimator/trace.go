package estimator

import (
	"errors"
	"iter"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
	"memplan/internal/units"
)

// TraceEvent is one event of a run: what the framework asked of its allocator,
// or what the allocator asked of the driver. Its JSON is a line of the public
// trace.
type TraceEvent struct {
	Event        int         `json:"event" doc:"Its index, the one that the estimate's timeline counts in. Traffic with the driver has the index of the event it served."`
	Action       string      `json:"action" enum:"alloc,free,segment_alloc,segment_free,segment_map,segment_unmap,record_stream,empty_cache,change_category,mark" doc:"What happened, in the words of torch's memory history where it has one. mark ends a part of a phase."`
	Address      int64       `json:"address,omitempty" doc:"Where the block or the segment begins. The simulated driver gives addresses from 0x7f0000000000 on."`
	Bytes        units.Bytes `json:"bytes,omitempty" doc:"As requested: of the tensor or the workspace; of a segment, its size."`
	Block        units.Bytes `json:"block_bytes,omitempty" doc:"Of the block that serves the request, as the allocator counts it."`
	Stream       uint8       `json:"stream" doc:"The CUDA stream; 0 is the one the step runs on."`
	Module       string      `json:"module,omitempty" doc:"The module that made the storage."`
	Op           string      `json:"op,omitempty" doc:"The operation that made it, by ATen's name."`
	Source       string      `json:"source,omitempty" doc:"Where the operation's behaviour was read in the framework."`
	Category     string      `json:"category,omitempty" doc:"What the bytes are for, as in the breakdown."`
	FromCategory string      `json:"from_category,omitempty" doc:"What they were for before; with change_category."`
	Phase        string      `json:"phase" doc:"load, first_step, steady_step, or a phase that was asked for."`
	Part         string      `json:"part,omitempty" doc:"forward, loss, backward or optimizer; none in load and where a phase has none."`
	MicroBatch   int         `json:"micro_batch,omitempty" doc:"Counts from 1 in the parts that run once a micro batch."`
	Allocated    units.Bytes `json:"allocated_bytes" doc:"Living blocks after the event."`
	Reserved     units.Bytes `json:"reserved_bytes" doc:"Held from the driver after the event."`
}

// deviceMemory is where the traced addresses begin. The allocator's driver
// counts from 0, which torch never sees and its tools take for no address.
const deviceMemory = 0x7f0000000000

// Recording is a run of a job with all its events, up to the end of the first
// steady step. Middle micro batches that leave the allocator as they found it
// run once and are not told again.
type Recording struct {
	Engine    Engine
	Job       spec.Job         // resolved
	Allocator allocator.Config // as the answer's replay had it
	plan      *step.Plan
	tape      *tape
}

// Trace runs a job as Run does and records every event of the replay that Run's
// answer reports. Its errors are Run's.
func Trace(job spec.Job, device spec.Device, co spec.Coefficients) (*Recording, error) {
	job, _, err := Resolve(job)
	if err != nil {
		return nil, err
	}
	stage, err := worstStage(job, device, co)
	if err != nil {
		return nil, err
	}
	plan, err := step.CompileStage(nil, job, cardFor(device, co), stage, nil)
	if err != nil {
		return nil, err
	}
	r := &Recording{Engine: Engine{Version: Version}, Job: job, Allocator: settings(job.Runtime, device.Total), plan: plan}
	if r.tape, err = record(plan, r.Allocator); err != nil {
		return nil, err
	}
	capacity := device.Usable() - co.Outside()
	if capacity <= 0 || r.tape.stats.Reserved.Peak <= capacity {
		return r, nil
	}
	limited := r.Allocator
	limited.Capacity = capacity
	t, err := record(plan, limited)
	switch {
	case err != nil:
		return nil, err
	case t.oom == nil:
		r.Allocator, r.tape = limited, t
	}
	return r, nil
}

// tape is a replay with the addresses it gave and its traffic with the driver.
type tape struct {
	replay
	allocator *allocator.Allocator
	places    []place // of the log's Alloc and Resize events, in order
	traffic   []traffic
}

// place is where a storage lies; size 0 is nowhere.
type place struct {
	address int64
	size    units.Bytes
}

// traffic is memory taken from or given to the driver.
type traffic struct {
	served int // index in the log of the event it was for
	op     allocator.SegmentOp
	place
	stream uint8
}

// record replays a plan and keeps everything. The tape has an OOM when the run
// did not complete.
func record(plan *step.Plan, cfg allocator.Config) (*tape, error) {
	cfg.Settles = true // as the answer's replay
	t := &tape{allocator: allocator.New(cfg)}
	t.log = make([]moment, 0, countEvents(plan.Program))
	err := t.program(t.allocator, plan.Program, &allocator.Watcher{Event: t.event, Mark: t.mark, Carry: t.carry, Segment: t.segment}, nil)
	t.stats = t.allocator.Stats()
	if errors.As(err, &t.oom) {
		err = nil
	}
	return t, err
}

func (t *tape) event(i int, e allocator.Event, allocated, reserved, requested units.Bytes) {
	if !t.whole && (e.Kind == allocator.Alloc || e.Kind == allocator.Resize) {
		var p place
		p.address, p.size, _ = t.allocator.Address(e.Block)
		t.places = append(t.places, p)
	}
	t.replay.event(i, e, allocated, reserved, requested)
}

func (t *tape) segment(op allocator.SegmentOp, address int64, size units.Bytes, stream uint8) {
	if !t.whole {
		t.traffic = append(t.traffic, traffic{len(t.log), op, place{address, size}, stream})
	}
}

// Events yields the events in order. Storages of no bytes, for which torch
// calls no allocator, have none.
func (r *Recording) Events() iter.Seq[TraceEvent] {
	return func(yield func(TraceEvent) bool) {
		blocks := r.plan.Machine.Blocks()
		p := player{
			tape: r.tape, tally: newTally(r.plan, blocks), held: make([]held, blocks),
			positions: partsAhead(r.tape.log), yield: yield,
		}
		p.play()
	}
}

// held is a living storage as the allocator has it.
type held struct {
	place
	stream uint8
}

// player walks along a tape and tells what it passes.
type player struct {
	*tape
	*tally
	held      []held // by block
	positions []position
	yield     func(TraceEvent) bool

	at                  int // in the log; positions, places, traffic and renamings keep pace
	placed, moved, past int
	allocated, reserved units.Bytes
}

func (p *player) play() {
	for p.at = range p.log {
		p.renameStorages()
		if !p.driver() || !p.moment(&p.log[p.at]) {
			return
		}
		p.allocated, p.reserved = p.log[p.at].allocated, p.log[p.at].reserved
	}
}

// renameStorages applies what was carried before the present moment.
func (p *player) renameStorages() {
	for ; p.past < len(p.renamed) && p.renamed[p.past].before == p.at; p.past++ {
		carry := p.renamed[p.past].carry
		p.rename(carry)
		moved := make([]held, len(carry))
		for i, c := range carry {
			moved[i] = p.held[c.From]
		}
		for i, c := range carry {
			p.held[c.To] = moved[i]
		}
	}
}

var segmentActions = [...]string{
	allocator.SegmentAlloc: "segment_alloc", allocator.SegmentFree: "segment_free",
	allocator.SegmentMap: "segment_map", allocator.SegmentUnmap: "segment_unmap",
}

// driver tells the traffic that the present event caused.
func (p *player) driver() bool {
	for ; p.moved < len(p.traffic) && p.traffic[p.moved].served == p.at; p.moved++ {
		s := &p.traffic[p.moved]
		if s.op == allocator.SegmentAlloc || s.op == allocator.SegmentMap {
			p.reserved += s.size
		} else {
			p.reserved -= s.size
		}
		e := p.here(segmentActions[s.op])
		e.Address, e.Bytes, e.Stream = deviceMemory+s.address, s.size, s.stream
		if m := &p.log[p.at]; m.Kind == allocator.Alloc {
			p.explain(&e, m.Block)
		}
		if !p.yield(e) {
			return false
		}
	}
	return true
}

// moment tells the present event of the program.
func (p *player) moment(m *moment) bool {
	var e TraceEvent
	tell := true
	switch m.Kind {
	case allocator.Alloc:
		p.apply(&m.Event)
		e, tell = p.comes(m)
	case allocator.Free:
		e, tell = p.goes(m.Block)
		p.apply(&m.Event)
	case allocator.Resize:
		return p.resize(m)
	case allocator.Recat:
		e = p.of("change_category", m.Block)
		e.FromCategory = e.Category
		p.apply(&m.Event)
		e.Category = p.cat[m.Block].String()
	case allocator.UseOn:
		e = p.of("record_stream", m.Block)
		e.Stream = m.Stream
	case allocator.EmptyCache:
		e = p.here("empty_cache")
	case allocator.Mark:
		e = p.here("mark")
	}
	e.Allocated, e.Reserved = m.allocated, m.reserved
	return !tell || p.yield(e)
}

// comes is the event of a storage that comes to life.
func (p *player) comes(m *moment) (TraceEvent, bool) {
	p.held[m.Block] = held{p.places[p.placed], m.Stream}
	p.placed++
	return p.of("alloc", m.Block), p.held[m.Block].size > 0
}

// goes is the event of a storage that dies.
func (p *player) goes(block int32) (TraceEvent, bool) {
	return p.of("free", block), p.held[block].size > 0
}

// resize tells an allocation and the free of what was there before, in the
// order in which torch's resize_bytes_cuda makes them.
func (p *player) resize(m *moment) bool {
	gone, wasThere := p.goes(m.Block)
	p.apply(&m.Event)
	came, isThere := p.comes(m)
	came.Allocated, came.Reserved = p.allocated+came.Block, m.reserved
	gone.Allocated, gone.Reserved = m.allocated, m.reserved
	return (!isThere || p.yield(came)) && (!wasThere || p.yield(gone))
}

// here is an event at the present position.
func (p *player) here(action string) TraceEvent {
	at := p.positions[p.at]
	e := TraceEvent{Event: p.at, Action: action, Phase: at.phase.String(), Part: at.part.String(), Allocated: p.allocated, Reserved: p.reserved}
	if at.part != step.Whole && at.part != step.OptimizerPart {
		e.MicroBatch = at.micro
	}
	return e
}

// of is an event of a storage.
func (p *player) of(action string, block int32) TraceEvent {
	e := p.here(action)
	h := &p.held[block]
	e.Bytes, e.Block, e.Stream = units.Bytes(p.size[block]), h.size, h.stream
	e.Category = p.cat[block].String()
	if h.size > 0 {
		e.Address = deviceMemory + h.address
	}
	p.explain(&e, block)
	return e
}

// explain says what made a storage.
func (p *player) explain(e *TraceEvent, block int32) {
	o := p.plan.Machine.Origin(block)
	e.Module = p.plan.Machine.Path(o.Module)
	if o.Rule != nil {
		e.Op, e.Source = o.Rule.Name, o.Rule.Source
	}
}
