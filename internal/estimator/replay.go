package estimator

import (
	"errors"
	"slices"
	"strconv"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
	"memplan/internal/units"
)

// moment is one executed event and the counters after it.
type moment struct {
	allocator.Event
	allocated, reserved, requested units.Bytes
}

// renaming is a carry that took place before a moment of the log.
type renaming struct {
	before int
	carry  []allocator.Carry
}

// replay is one run of a program through the allocator, written down up to the
// end of the first steady step, and again in the phases that come after the
// steps; the peaks of steps in between come with their marks.
type replay struct {
	log     []moment
	renamed []renaming
	whole   bool // the log is complete
	phases  [step.Phases]phaseStats
	stats   allocator.Stats
	// peakAt is the index in log of the highest allocated bytes of each phase.
	peakAt [step.Phases]int
	phase  step.Phase
	oom    *allocator.OOM
	// allocated is the allocated bytes at the last mark.
	allocated units.Bytes
}

// phaseStats are the peaks of a phase and of its parts, over its repetitions.
type phaseStats struct {
	took                           bool // place
	start, end                     units.Bytes
	requested, allocated, reserved units.Bytes
	parts                          [5]struct{ peak, end units.Bytes }
}

// Workspace is memory that answers are worked out in, kept from one to the
// next; it is for one goroutine at a time. The zero Workspace is ready.
type Workspace struct {
	memory    graph.Memory
	allocator *allocator.Allocator
	log       []moment
	points    [3]allocator.Checkpoint // the first of the latest replay
	saved     int                     // of them
}

// run replays a plan. The returned replay has an OOM when it did not complete;
// it is good until the next run.
func (w *Workspace) run(plan *step.Plan, cfg allocator.Config) (*replay, error) {
	r := &replay{log: slices.Grow(w.log[:0], countEvents(plan.Program))}
	err := w.replay(r, plan.Program, cfg, &allocator.Watcher{Event: r.event, Mark: r.mark, Carry: r.carry})
	w.log = r.log
	return r, err
}

// peaks replays a plan for its peaks alone, with no log. It says whether the
// program ran out of the capacity that the configuration gives it.
func (w *Workspace) peaks(program allocator.Program, cfg allocator.Config) (stats allocator.Stats, ranOut bool, err error) {
	var r replay
	err = w.replay(&r, program, cfg, &allocator.Watcher{Mark: r.mark})
	return r.stats, r.oom != nil, err
}

// replay runs a program in the workspace's allocator, watched.
func (w *Workspace) replay(r *replay, program allocator.Program, cfg allocator.Config, watch *allocator.Watcher) error {
	cfg.Settles = true
	if w.allocator == nil {
		w.allocator = allocator.New(cfg)
	} else {
		w.allocator.Reset(cfg)
	}
	w.saved = 0
	save := w.save
	if cfg.Capacity > 0 {
		save = nil // what is required is looked for after a run without limit
	}
	err := r.program(w.allocator, program, watch, save)
	r.stats = w.allocator.Stats()
	if errors.As(err, &r.oom) {
		return nil
	}
	return err
}

// save keeps the state before a part of the program, if it is one of the first:
// after loading, before the optimizer of the first step, and after that.
func (w *Workspace) save(next allocator.Next) {
	if next.Part > 0 && w.saved < len(w.points) {
		w.allocator.Save(next, &w.points[w.saved])
		w.saved++
	}
}

// program runs the parts in order, and before each, and before the last inner
// one of each, a function that may be nil. Where nothing follows the steps the
// log ends with the first steady one; else with the first repetition of the
// last, from which what follows goes on.
func (r *replay) program(a *allocator.Allocator, p allocator.Program, watch *allocator.Watcher, before func(allocator.Next)) error {
	last := slices.IndexFunc(p, func(part allocator.Part) bool { return part.Label == int32(step.SteadyStep) })
	if n := len(p); n > 0 && p[n-1].Label > int32(step.SteadyStep) {
		for i, part := range p {
			if part.Label == int32(step.SteadyStep) {
				last = i
			}
		}
	}
	for i, part := range p {
		ph := step.Phase(part.Label)
		if !r.phases[ph].took {
			r.phases[ph].took, r.phases[ph].start = true, r.allocated
		}
		r.phase = ph
		if ph > step.SteadyStep {
			r.whole = false
		}
		if before != nil {
			before(allocator.Next{Part: i})
			if inner := len(part.Parts) - 1; inner > 0 && part.Repeat <= 1 && len(part.Carry) == 0 {
				head := allocator.Part{Label: part.Label, Events: part.Events, Parts: part.Parts[:inner]}
				if err := a.Run(allocator.Program{head}, watch); err != nil {
					return err
				}
				before(allocator.Next{Part: i, Inner: inner})
				part = allocator.Part{Label: part.Label, Parts: part.Parts[inner:]}
			}
		}
		if err := r.rounds(a, part, watch, i == last); err != nil {
			return err
		}
	}
	return nil
}

// rounds runs a part as often as it repeats. That a repetition raises no peak
// does not end it, for the next may: free blocks come to lie otherwise from one
// step to the next. Where they lie as before, the allocator leaves out the rest.
func (r *replay) rounds(a *allocator.Allocator, part allocator.Part, watch *allocator.Watcher, last bool) error {
	again := part.Repeat - 1
	part.Repeat = 1
	if err := a.Run(allocator.Program{part}, watch); err != nil {
		return err
	}
	r.whole = r.whole || last
	if again < 1 {
		return nil
	}
	part.Repeat = again
	return a.Run(allocator.Program{part}, watch)
}

// countEvents is how many events one run of each part has.
func countEvents(parts []allocator.Part) int {
	n := 0
	for i := range parts {
		n += len(parts[i].Events)*min(max(parts[i].Repeat, 1), 3) + countEvents(parts[i].Parts)
	}
	return n
}

func (r *replay) event(_ int, e allocator.Event, allocated, reserved, requested units.Bytes) {
	if r.whole {
		return
	}
	if p := &r.peakAt[r.phase]; *p == 0 || allocated > r.log[*p].allocated {
		*p = len(r.log)
	}
	r.log = append(r.log, moment{e, allocated, reserved, requested})
}

func (r *replay) carry(c []allocator.Carry) {
	if !r.whole {
		r.renamed = append(r.renamed, renaming{len(r.log), c})
	}
}

func (r *replay) mark(_, code int32, s allocator.Stats) {
	ph, pt := step.ReadMark(code)
	p := &r.phases[ph]
	p.requested = max(p.requested, s.Requested.Peak)
	p.allocated = max(p.allocated, s.Allocated.Peak)
	p.reserved = max(p.reserved, s.Reserved.Peak)
	p.end, r.allocated = s.Allocated.Current, s.Allocated.Current
	p.parts[pt].peak = max(p.parts[pt].peak, s.Allocated.Peak)
	p.parts[pt].end = s.Allocated.Current
}

// oldestSegmentSince is the first torch released after May 2026, when it began
// to prefer, among free blocks of one size, the one in the oldest segment
// (pytorch PR 183591; seen in 2.15, not in 2.6).
var oldestSegmentSince = spec.Version{2, 13}

// required is what a program requires whose latest replay in this workspace was
// without limit.
func (w *Workspace) required(program allocator.Program, cfg allocator.Config, unlimitedRun allocator.Stats) (units.Bytes, error) {
	var points []*allocator.Checkpoint
	for i := range w.points[:w.saved] {
		points = append(points, &w.points[i])
	}
	return w.allocator.RequiredAfter(cfg, program, unlimitedRun, requiredWithin, points...)
}

// settings translates the job's allocator settings.
func settings(r spec.Runtime, deviceTotal units.Bytes) allocator.Config {
	s := r.Allocator
	c := allocator.Config{
		ExpandableSegments: s.ExpandableSegments,
		DeviceTotal:        deviceTotal,
		TiesByAddress:      spec.ParseVersion(r.FrameworkVersion).Before(oldestSegmentSince),
	}
	if s.MaxSplitSizeMB != nil {
		c.MaxSplitSize = units.Bytes(*s.MaxSplitSizeMB * float64(units.MiB))
	}
	if s.GarbageCollectionThreshold != nil {
		c.GarbageCollectionThreshold = *s.GarbageCollectionThreshold
	}
	c.RoundupPower2Divisions = divisions(s.RoundupPower2Divisions)
	return c
}

// divisions reads roundup_power2_divisions, a number or the list form. A text
// that torch would refuse is no setting: the wire has refused it already.
func divisions(v any) allocator.Divisions {
	var text string
	switch x := v.(type) {
	case nil:
		return allocator.Divisions{}
	case float64:
		text = strconv.Itoa(int(x))
	case int:
		text = strconv.Itoa(x)
	case string:
		text = x
	}
	d, err := allocator.ParseDivisions(text)
	if err != nil {
		return allocator.Divisions{}
	}
	return d
}

// tally follows the live bytes by category through a replay's log.
type tally struct {
	plan  *step.Plan
	size  []int64
	cat   []graph.Category
	total [graph.Other + 1]units.Bytes
}

func newTally(plan *step.Plan, blocks int) *tally {
	return &tally{plan: plan, size: make([]int64, blocks), cat: make([]graph.Category, blocks)}
}

// apply brings the tally past one event.
func (t *tally) apply(m *allocator.Event) {
	b := m.Block
	switch m.Kind {
	case allocator.Alloc:
		t.size[b], t.cat[b] = m.Bytes, graph.Category(m.Category)
		t.total[t.cat[b]] += units.Bytes(m.Bytes)
	case allocator.Free:
		t.total[t.cat[b]] -= units.Bytes(t.size[b])
		t.size[b] = 0
	case allocator.Recat:
		t.total[t.cat[b]] -= units.Bytes(t.size[b])
		t.cat[b] = graph.Category(m.Category)
		t.total[t.cat[b]] += units.Bytes(t.size[b])
	case allocator.Resize:
		t.total[t.cat[b]] += units.Bytes(m.Bytes - t.size[b])
		t.size[b] = m.Bytes
	}
}

func (t *tally) rename(carry []allocator.Carry) {
	type held struct {
		size int64
		cat  graph.Category
	}
	moved := make([]held, len(carry))
	for i, c := range carry {
		moved[i] = held{t.size[c.From], t.cat[c.From]}
		t.size[c.From] = 0
	}
	for i, c := range carry {
		t.size[c.To], t.cat[c.To] = moved[i].size, moved[i].cat
	}
}

// workspaces is what torch's requested_bytes counts and tensors are not.
func (t *tally) workspaces() units.Bytes {
	return t.total[graph.CuBLASWorkspace] + t.total[graph.ConvWorkspace]
}

// took lists the phases that took place, in order.
func (r *replay) took() []step.Phase {
	var all []step.Phase
	for ph := range step.Phases {
		if r.phases[ph].took {
			all = append(all, ph)
		}
	}
	return all
}
