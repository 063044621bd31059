package estimator

import (
	"cmp"
	"slices"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
	"memplan/internal/units"
)

const (
	largestTensors = 50
	timelinePoints = 300
)

// explain walks a replay's log once more and says what the memory is: the
// tensor peaks of the phases, the breakdown and the largest tensors at the
// allocated peak, the timeline, and where the peak is.
func (e *Estimate) explain(plan *step.Plan, r *replay, co spec.Coefficients) {
	peakPhase := step.FirstStep
	for _, ph := range []step.Phase{step.SteadyStep, step.Load, step.Evaluation, step.Generation, step.CheckpointSave} {
		if r.phases[ph].allocated > r.phases[peakPhase].allocated {
			peakPhase = ph
		}
	}
	w := walk{
		e: e, plan: plan, r: r, peak: r.peakAt[peakPhase], co: co,
		tally: newTally(plan, plan.Machine.Blocks()), keep: sample(r.log, timelinePoints),
	}
	w.run()
}

// walk is a pass over a log.
type walk struct {
	*tally
	e      *Estimate
	plan   *step.Plan
	r      *replay
	co     spec.Coefficients
	peak   int
	keep   []int // log indices of the timeline, rising
	phase  step.Phase
	micro  int
	part   step.Part
	start  units.Bytes                  // tensor bytes when the phase began
	state  [graph.Other + 1]units.Bytes // the most each category ever held
	tensor [step.Phases]units.Bytes
}

func (w *walk) run() {
	parts := partsAhead(w.r.log)
	next, renamed := 0, w.r.renamed
	for i := range w.r.log {
		m := &w.r.log[i]
		for len(renamed) > 0 && renamed[0].before == i {
			w.rename(renamed[0].carry)
			renamed = renamed[1:]
		}
		w.apply(&m.Event)
		w.part, w.phase = parts[i].part, parts[i].phase
		w.micro = parts[i].micro
		w.tensor[w.phase] = max(w.tensor[w.phase], m.requested-w.workspaces())
		if m.Kind != allocator.Free && (w.phase != step.Load || w.plan.Network.Stage == nil) { // where weights are copied into their buffer
			for _, c := range []graph.Category{graph.Parameters, graph.Adapters, graph.Gradients, graph.OptimizerState, graph.MasterWeights} {
				w.state[c] = max(w.state[c], w.total[c])
			}
		}
		if i == w.peak {
			w.atPeak(m)
		}
		if next < len(w.keep) && w.keep[next] == i {
			w.e.Timeline = append(w.e.Timeline, w.point(i, m))
			next++
		}
	}
	for i, ph := range w.r.took() {
		w.e.Phases[i].PeakTensor = w.tensor[ph]
		w.e.Peak.Tensor = max(w.e.Peak.Tensor, w.tensor[ph])
	}
	w.perParameter()
}

// atPeak writes the breakdown and the largest tensors.
func (w *walk) atPeak(m *moment) {
	e := w.e
	e.Peak.At = w.where(m)
	shares := w.total
	shares[graph.Rounding] = e.Peak.Allocated - m.requested
	shares[graph.Fragmentation] = e.Peak.Reserved - e.Peak.Allocated
	shares[graph.Context] = w.co.Context.Mean
	shares[graph.Communication] = w.co.NCCL.Mean
	e.Breakdown = []Share{}
	sum := units.Bytes(0)
	for c, b := range shares {
		if b != 0 {
			e.Breakdown = append(e.Breakdown, Share{Category: graph.Category(c).String(), Bytes: b})
			sum += b
		}
	}
	if rest := e.Peak.Process - sum; rest != 0 {
		e.Breakdown = append(e.Breakdown, Share{Category: graph.Other.String(), Bytes: rest})
	}
	e.Peak.Activations = max(0, m.allocated-w.r.phases[w.phase].start)
	w.largest()
}

func (w *walk) where(m *moment) Where {
	o := w.plan.Machine.Origin(m.Block)
	at := Where{Phase: w.phase.String(), Part: w.part.String(), MicroBatch: w.micro, Module: w.plan.Machine.Path(o.Module)}
	if o.Rule != nil {
		at.Op = o.Rule.Name
	}
	return at
}

// largest lists the live tensors by size.
func (w *walk) largest() {
	var live []int32
	for b, n := range w.size {
		if n > 0 {
			live = append(live, int32(b))
		}
	}
	slices.SortStableFunc(live, func(a, b int32) int { return cmp.Compare(w.size[b], w.size[a]) })
	w.e.Tensors = []Tensor{}
	for _, b := range live[:min(len(live), largestTensors)] {
		o := w.plan.Machine.Origin(b)
		t := Tensor{
			Module: w.plan.Machine.Path(o.Module), Op: o.Rule.Name, Rule: o.Rule.Name, Source: o.Rule.Source,
			Bytes: units.Bytes(w.size[b]), Category: w.cat[b].String(), Shape: []int64{},
		}
		if o.Tensor != nil {
			t.Shape, t.DType = o.Tensor.Shape.Slice(), o.Tensor.DType.String()
		} else {
			t.DType = "uint8"
			t.Shape = append(t.Shape, w.size[b])
		}
		w.e.Tensors = append(w.e.Tensors, t)
	}
}

func (w *walk) point(i int, m *moment) Moment {
	by := make(ByCategory, 0, 8)
	for c, b := range w.total {
		if b != 0 {
			by = append(by, Share{graph.Category(c).String(), b})
		}
	}
	if r := m.allocated - m.requested; r != 0 {
		by = append(by, Share{graph.Rounding.String(), r})
	}
	at := w.where(m)
	return Moment{Event: i, Phase: at.Phase, Part: at.Part, Module: at.Module, Allocated: m.allocated, Reserved: m.reserved, ByCategory: by}
}

// perParameter divides the model state by the parameters it is of: weights by
// all, gradients and optimizer state by the trained ones.
func (w *walk) perParameter() {
	w.e.PerParameter = []PerParameter{}
	add := func(term string, b units.Bytes, n int64) {
		if b > 0 && n > 0 {
			w.e.PerParameter = append(w.e.PerParameter, PerParameter{Term: term, Bytes: float64(b) / float64(n)})
		}
	}
	all := w.plan.Total
	if w.plan.Network.Stage != nil { // of which the rank runs a part
		all = w.plan.PerRank
	}
	add("weights", w.state[graph.Parameters], all)
	add("gradients", w.state[graph.Gradients], w.plan.Trainable)
	add("master_weights", w.state[graph.MasterWeights], w.plan.Trainable)
	add("optimizer", w.state[graph.OptimizerState], w.plan.Trainable)
}

// position is what a mark further on says of an event.
type position struct {
	phase step.Phase
	part  step.Part
	micro int
}

// partsAhead finds the phase and part of every moment: marks end parts, so the
// log is read backwards.
func partsAhead(log []moment) []position {
	out := make([]position, len(log))
	p := position{phase: step.SteadyStep, part: step.OptimizerPart}
	for i := len(log) - 1; i >= 0; i-- {
		if log[i].Kind == allocator.Mark {
			p.phase, p.part = step.ReadMark(log[i].Site)
		}
		out[i] = p
	}
	micro := 1
	for i := range out {
		out[i].micro = micro
		if log[i].Kind == allocator.Mark {
			switch out[i].part {
			case step.BackwardPart:
				micro++
			case step.OptimizerPart:
				micro = 1
			}
		}
	}
	return out
}

// sample chooses up to n moments of the steps that keep the shape of the
// curve: the highest and the last of equal stretches, so that no peak is lost.
func sample(log []moment, n int) []int {
	first := 0
	for i := range log {
		if log[i].Kind == allocator.Mark {
			first = i
			break
		}
	}
	total := len(log) - first
	stretches := n / 2
	var keep []int
	for s := range stretches {
		from, to := first+s*total/stretches, first+(s+1)*total/stretches
		high := -1
		last := -1
		for i := from; i < to; i++ {
			if log[i].Kind == allocator.Mark || log[i].Kind == allocator.Recat {
				continue
			}
			if high < 0 || log[i].allocated > log[high].allocated {
				high = i
			}
			last = i
		}
		if high >= 0 {
			keep = append(keep, high)
		}
		if last > high {
			keep = append(keep, last)
		}
	}
	return keep
}

// count fills the parameter counts and the one rank that stands for all: where
// shards are uneven it is the fullest.
func (e *Estimate) count(plan *step.Plan, stage int) {
	e.Parameters = Parameters{Total: plan.Total, Trainable: plan.Trainable, Active: plan.Total, PerRank: plan.PerRank}
	if m := plan.Network.Mixture; m != nil {
		e.Parameters.Active -= m.Idle
	}
	name := "every rank"
	if plan.Uneven {
		name = "every rank, at most"
	}
	if n := step.Stages(&e.Job); n > 1 {
		e.Ranks = []Rank{stageRank(plan, stage, e.Job.Parallelism.Ranks()/n, e.Peak)}
		return
	}
	e.Ranks = []Rank{{Name: name, Count: e.Job.Parallelism.Ranks(), Peak: e.Peak}}
}
