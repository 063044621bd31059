package recommend

import (
	"reflect"
	"slices"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
)

// maxAxes bounds the axes of a space.
const maxAxes = 12

// candidate is a point of the search: a choice on every axis (0: what the job
// has), and sizes.
type candidate struct {
	picks               [maxAxes]int8
	micro, accumulation int
	length              int
}

// space is what may be changed of the job on one card and one number of them.
type space struct {
	card  int
	count int
	job   spec.Job // as asked, on that many cards of that kind
	now   spec.Job // with its defaults filled in
	axes  []axis   // those with choices that apply and change something
	keeps []int    // by axis, the place of what the job has
}

// newSpace resolves the job on a card and drops choices that do not apply, are
// not allowed or change nothing.
func newSpace(job spec.Job, card int, device spec.Device, allow []string) (*space, error) {
	now, _, err := estimator.Resolve(job)
	if err != nil {
		return nil, err
	}
	sp := &space{card: card, count: now.Target.Count, job: job, now: now}
	at := &situation{now: now, card: device}
	for _, a := range axes() {
		if a.asked && len(allow) == 0 {
			continue
		}
		keep := 0
		kept := axis{name: a.name, class: a.class}
		for _, c := range a.choices {
			switch {
			case c.needs != nil && !c.needs(at):
			case sp.has(c):
				keep = c.saves
			case len(allow) > 0 && slices.ContainsFunc(c.patch, func(s setting) bool { return !allows(allow, s.path) && !sp.same(s) }):
			default:
				kept.choices = append(kept.choices, c)
			}
		}
		if len(kept.choices) > 0 {
			sp.axes, sp.keeps = append(sp.axes, kept), append(sp.keeps, keep)
		}
	}
	return sp, nil
}

// same reports whether the job has a setting already.
func (sp *space) same(s setting) bool {
	k := knobOf(s.path)
	return reflect.DeepEqual(k.get(&sp.now), s.value) || s.value == nil && k.get(&sp.job) == nil
}

// has reports whether the job is as a choice would make it.
func (sp *space) has(c choice) bool {
	return !slices.ContainsFunc(c.patch, func(s setting) bool { return !sp.same(s) })
}

func knobOf(path string) knob {
	for _, k := range knobTable {
		if k.path == path {
			return k
		}
	}
	panic("recommend: no knob for " + path)
}

// knobTable is the list of knobs, made once: it never changes.
var knobTable = knobs()

// own is the candidate that changes nothing.
func (sp *space) own() candidate {
	t := &sp.now.Training
	return candidate{micro: t.MicroBatchSize, accumulation: max(1, t.GradAccumSteps), length: t.SequenceLength}
}

// choice is what a candidate has on an axis, nil for what the job has.
func (sp *space) choice(c candidate, axis int) *choice {
	if i := c.picks[axis]; i > 0 {
		return &sp.axes[axis].choices[i-1]
	}
	return nil
}

// place is the place of a candidate on an axis.
func (sp *space) place(c candidate, axis int) int {
	if x := sp.choice(c, axis); x != nil {
		return x.saves
	}
	return sp.keeps[axis]
}

// changes is how many axes a candidate changes.
func (c *candidate) changes() int {
	n := 0
	for _, i := range c.picks {
		if i > 0 {
			n++
		}
	}
	return n
}

// risk is that of a candidate's riskiest choice.
func (sp *space) risk(c candidate) Risk {
	r := Same
	for i := range sp.axes {
		if x := sp.choice(c, i); x != nil {
			r = max(r, x.risk)
		}
	}
	return r
}

// needsMore reports whether a candidate is known to need at least as much memory
// as another: it saves no more on any axis, and its sizes are no smaller.
func (sp *space) needsMore(a, b candidate) bool {
	if a.micro < b.micro || a.length < b.length || a.accumulation == 1 && b.accumulation > 1 {
		return false
	}
	for i := range sp.axes {
		if a.picks[i] == b.picks[i] {
			continue
		}
		x, y := sp.place(a, i), sp.place(b, i)
		if sp.axes[i].class || x == apart || y == apart || x >= y {
			return false
		}
	}
	return true
}

// apply is the job that a candidate stands for.
func (sp *space) apply(c candidate) spec.Job {
	j := sp.job
	for i := range sp.axes {
		if x := sp.choice(c, i); x != nil {
			for _, s := range x.patch {
				knobOf(s.path).set(&j, s.value)
			}
		}
	}
	if t := &j.Training; c.micro != sp.now.Training.MicroBatchSize || t.MicroBatchSize != 0 {
		t.MicroBatchSize = c.micro
	}
	if c.accumulation != max(1, sp.now.Training.GradAccumSteps) {
		j.Training.GradAccumSteps = c.accumulation
	}
	if c.length != sp.now.Training.SequenceLength {
		j.Training.SequenceLength = c.length
	}
	return j
}

// patch is what a candidate changes of the job as it was asked: base is that
// job with its defaults filled in.
func (sp *space) patch(c candidate, asked, base *spec.Job) []Change {
	touched := map[string]bool{microBatchPath: true, accumulationPath: true, sequencePath: true, countPath: true, dataPath: true, gpuPath: true, shardingPath: true}
	for i := range sp.axes {
		if x := sp.choice(c, i); x != nil {
			for _, s := range x.patch {
				touched[s.path] = true
			}
		}
	}
	job := sp.apply(c)
	changes := []Change{}
	for _, k := range knobTable {
		if !touched[k.path] {
			continue
		}
		from, to := k.get(base), k.get(&job)
		switch {
		case reflect.DeepEqual(k.get(asked), to): // as it was asked
		case reflect.DeepEqual(from, to):
		default:
			changes = append(changes, Change{k.path, from, to})
		}
	}
	return changes
}

// resolved is the job of a candidate with its defaults filled in.
func (sp *space) resolved(c candidate) (spec.Job, error) {
	j, _, err := estimator.Resolve(sp.apply(c))
	return j, err
}
