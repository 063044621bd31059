package recommend

import (
	"context"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/recommend/throughput"
	"memplan/internal/units"
)

// margin is by how much a candidate must miss or fit for its answer to decide
// about others: memory is not quite monotone in what is saved.
const margin = 0.02

// round is how many candidates are asked about at a time. It is a number of the
// search's and not of the machine's, so that answers are the same everywhere.
const round = 8

// solver is one search.
type solver struct {
	Problem
	ctx   context.Context
	given spec.Job // the job as it was asked, on its own card
	base  *space   // that job's own
	speed throughput.Step
	brief bool // two micro batches stand for any number, until an option is taken

	mu       sync.Mutex
	fits     map[asked]estimator.Fitness
	refused  map[key]bool        // by what is changed, whatever the sizes
	verdicts map[place][]verdict // by space
	profiles map[profileKey]*profiled
	progress Progress

	lowest map[key]lowest // by choices that are not compared; of the search's own goroutine
}

// lowest is a corner, and whether the engine has rules for any.
type lowest struct {
	candidate
	runs bool
}

// place names a space.
type place struct{ card, count int }

// key names a candidate of a space.
type key struct {
	place
	candidate
}

// changed is the key without the sizes: whether the engine has rules for a
// combination does not depend on them.
func (k key) changed() key {
	k.micro, k.accumulation, k.length = 0, 0, 0
	return k
}

// asked is a candidate, and how far the engine was asked to look.
type asked struct {
	key
	look estimator.Look
}

// verdict is what the engine said of a candidate by a clear margin.
type verdict struct {
	candidate
	fits bool
}

func newSolver(ctx context.Context, p Problem) (*solver, error) {
	if p.Probability == 0 {
		p.Probability = Probability
	}
	s := &solver{
		Problem: p, ctx: ctx, given: p.Job, fits: map[asked]estimator.Fitness{}, refused: map[key]bool{},
		lowest: map[key]lowest{}, verdicts: map[place][]verdict{}, profiles: map[profileKey]*profiled{},
		brief: p.Goal != LargestMicroBatch && p.Goal != LongestSequence,
	}
	var err error
	if s.base, err = s.space(0, 0); err != nil {
		return nil, err
	}
	if err := s.Runs(s.base.job, 0); err != nil {
		return nil, err
	}
	step, err := s.price(s.base, s.base.own())
	if err != nil {
		return nil, err
	}
	s.speed = step
	return s, nil
}

// space is the space of the job on one of the cards, and on so many of them; 0
// is as many as the job has.
func (s *solver) space(card, count int) (*space, error) {
	job := s.Job
	if card > 0 {
		job.Target.GPU = s.Cards[card].Device.Key
		job.Target.MIGProfile, job.Target.MemoryGiB, job.Target.ComputeCapability, job.Target.Device = "", 0, "", ""
	}
	if count > 0 {
		job = onCards(job, count)
	}
	return newSpace(job, card, s.Cards[card].Device, s.Allow)
}

// onCards spreads a job over another number of cards: they are data parallel.
func onCards(job spec.Job, count int) spec.Job {
	p := &job.Parallelism
	rest := max(1, p.Tensor) * max(1, p.Pipeline) * max(1, p.Context)
	job.Target.Count, p.Data = count, max(1, count/rest)
	switch {
	case p.Data == 1:
		p.Sharding, p.FSDP, p.DDP, p.Zero, p.Replicate, p.Offload = "", nil, nil, nil, 0, nil
	case p.Sharding == "" || p.Sharding == "none":
		p.Sharding = "ddp"
	}
	return job
}

// fit asks the engine about a candidate, once. A combination that it refuses
// does not fit.
func (s *solver) fit(sp *space, c candidate, look estimator.Look) (estimator.Fitness, error) {
	if s.brief && look != estimator.Exact {
		c.accumulation = min(c.accumulation, 2)
	}
	k := key{place{sp.card, sp.count}, c}
	s.mu.Lock()
	f, ok := s.fits[asked{k, look}]
	if !ok && look == estimator.Decide {
		f, ok = s.fits[asked{k, estimator.Exact}]
	}
	refused := s.refused[k.changed()]
	s.mu.Unlock()
	if refused || ok {
		return f, nil
	}
	if err := s.ctx.Err(); err != nil {
		return f, err
	}
	f, err := s.Fit(sp.apply(c), sp.card, look)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil && fault.KindOf(err) == fault.Invalid:
		s.refused[k.changed()] = true
		s.progress.Refused++
		return estimator.Fitness{Usable: s.Cards[sp.card].Device.Usable()}, nil
	case err != nil:
		return f, err
	}
	s.progress.Simulated++
	s.fits[asked{k, look}] = f
	if look == estimator.Live { // says what is needed at least, not whether it fits
		return f, nil
	}
	room := float64(f.Usable-f.Required) / float64(max(f.Usable, 1))
	if f.Fits && room > margin || !f.Fits && room < -margin {
		s.verdicts[k.place] = append(s.verdicts[k.place], verdict{c, f.Fits})
	}
	s.report()
	return f, nil
}

// holds reports whether a candidate that fits with two micro batches does so with
// all of its own.
func (s *solver) holds(sp *space, c candidate) (bool, error) {
	if !s.brief || c.accumulation <= 2 {
		return true, nil
	}
	f, err := s.fit(sp, c, estimator.Exact)
	return f.Fits, err
}

// isRefused reports whether the engine refused a candidate it was asked about.
func (s *solver) isRefused(sp *space, c candidate) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused[key{place{sp.card, sp.count}, c}.changed()]
}

// hopeless reports whether an answer about another candidate says that this one
// does not fit, or that the engine has no rules for it.
func (s *solver) hopeless(sp *space, c candidate) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused[key{place{sp.card, sp.count}, c}.changed()] {
		return true
	}
	for _, v := range s.verdicts[place{sp.card, sp.count}] {
		if !v.fits && sp.needsMore(c, v.candidate) {
			return true
		}
	}
	return false
}

// report tells the progress. The mutex is held.
func (s *solver) report() {
	if s.Progress != nil {
		s.Progress(s.progress)
	}
}

// doing says what the search is at.
func (s *solver) doing(what string, candidates int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress.Doing = what
	s.progress.Candidates += candidates
	s.report()
}

// decided counts candidates that nobody has to be asked about.
func (s *solver) decided(n int) {
	s.mu.Lock()
	s.progress.Decided += n
	s.mu.Unlock()
}

// each calls f for 0 to n-1, as many at a time as there are processors.
func each(n int, f func(i int) error) error {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		g.Go(func() error { return f(i) })
	}
	return g.Wait()
}

// largest is the largest size at which a candidate fits, where set puts a size
// into it.
func (s *solver) largest(sp *space, c candidate, limit int, set func(c *candidate, size int)) (best, above Trial, err error) {
	return Largest(s.ctx, limit, func(size int) (Trial, error) {
		at := c
		set(&at, size)
		f, err := s.fit(sp, at, estimator.Decide)
		return Trial{Size: size, Fits: f.Fits, Needs: f.Required, Usable: f.Usable, Bound: f.Bound}, err
	})
}

// required is the bytes a candidate requires, exactly.
func (s *solver) required(sp *space, c candidate) (units.Bytes, error) {
	f, err := s.fit(sp, c, estimator.Exact)
	return f.Required, err
}

// profileKey names what decides a profile: the choices that change what is
// computed, and the length of a sample.
type profileKey struct {
	place
	computed [maxAxes]int8
	length   int
}

// profiled is a profile being made by the first who asks for it.
type profiled struct {
	once    sync.Once
	profile *throughput.Profile
	err     error
}

// computes lists the axes that change what a micro batch computes.
var computes = map[string]bool{"attention": true, "checkpointing": true, "loss": true, "kernels": true, "precision": true, "method": true}

// price predicts the step of a candidate.
func (s *solver) price(sp *space, c candidate) (throughput.Step, error) {
	job, err := sp.resolved(c)
	if err != nil {
		return throughput.Step{}, err
	}
	k := profileKey{place: place{sp.card, sp.count}, length: c.length}
	for i, a := range sp.axes {
		if computes[a.name] {
			k.computed[i] = c.picks[i]
		}
	}
	s.mu.Lock()
	p := s.profiles[k]
	if p == nil {
		p = &profiled{}
		s.profiles[k] = p
	}
	s.mu.Unlock()
	p.once.Do(func() {
		p.profile, p.err = throughput.NewProfile(throughput.Base(sp.apply(c)), func(base spec.Job) (*estimator.Work, error) {
			return s.Work(base, sp.card)
		})
	})
	if p.err != nil {
		return throughput.Step{}, p.err
	}
	return throughput.Predict(job, p.profile, s.Cards[sp.card].Rates), nil
}

// bars are choices that are not to be taken: picks by axis.
type bars map[[2]int]bool

// bar adds the pick a candidate has on an axis, and those of the axis that are
// as much of a risk, or of no risk and save as much.
func (b bars) bar(sp *space, c candidate, axis int) {
	taken := sp.choice(c, axis)
	for i := range sp.axes[axis].choices {
		x := &sp.axes[axis].choices[i]
		if x == taken || taken.risk > Same && x.risk >= taken.risk || taken.risk == Same && !sp.axes[axis].class && x.saves >= taken.saves {
			b[[2]int{axis, i + 1}] = true
		}
	}
}

// corners are the candidates that save the most, one for each combination of
// choices that are not compared by what they save and that the engine runs.
func (s *solver) corners(sp *space, from candidate, barred bars) ([]candidate, error) {
	starts := []candidate{from}
	for i, a := range sp.axes {
		if !a.class {
			continue
		}
		var more []candidate
		for _, c := range starts {
			for pick := range len(a.choices) + 1 {
				if barred[[2]int{i, pick}] {
					continue
				}
				c.picks[i] = int8(pick)
				more = append(more, c)
			}
		}
		starts = more
	}
	var found []candidate
	for _, start := range starts {
		c, ok, err := s.corner(sp, start, barred)
		if err != nil {
			return nil, err
		}
		if ok {
			found = append(found, c)
		}
	}
	return found, nil
}

// corner saves as much as it can on every axis, one after the other, of the
// choices that the engine runs beside those before.
func (s *solver) corner(sp *space, c candidate, barred bars) (candidate, bool, error) {
	if ok, err := s.runs(sp, c); err != nil || !ok {
		return c, false, err
	}
	for i, a := range sp.axes {
		if a.class {
			continue
		}
		for _, pick := range bySaving(a) {
			next := c
			next.picks[i] = int8(pick)
			if barred[[2]int{i, pick}] {
				continue
			}
			if a.choices[pick-1].saves != apart && a.choices[pick-1].saves < sp.keeps[i] {
				break // what the job has saves more
			}
			ok, err := s.runs(sp, next)
			if err != nil {
				return c, false, err
			}
			if ok {
				c = next
				break
			}
		}
	}
	return c, true, nil
}

// floor is the candidate that saves the most with the sizes, the recomputation
// and the choices that are not compared of another. There is none where the
// engine has no rules for those.
func (s *solver) floor(sp *space, c candidate) (candidate, bool, error) {
	start := sp.own()
	for i, a := range sp.axes {
		if a.class {
			start.picks[i] = c.picks[i]
		}
	}
	k := key{place{sp.card, sp.count}, start}
	low, ok := s.lowest[k]
	if !ok {
		corner, runs, err := s.corner(sp, start, nil)
		if err != nil {
			return c, false, err
		}
		low = lowest{corner, runs}
		s.lowest[k] = low
	}
	f := low.candidate
	f.micro, f.accumulation, f.length = c.micro, c.accumulation, c.length
	for i, a := range sp.axes {
		if a.name == "checkpointing" {
			f.picks[i] = c.picks[i]
		}
	}
	return f, low.runs, nil
}

// isKnown reports whether the engine was asked about a candidate.
func (s *solver) isKnown(sp *space, c candidate) bool {
	if s.brief {
		c.accumulation = min(c.accumulation, 2)
	}
	k := key{place{sp.card, sp.count}, c}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.fits[asked{k, estimator.Decide}]
	return ok || s.refused[k.changed()]
}

// bySaving is the picks of an axis, the ones that save most first; those that
// cannot be compared are left out.
func bySaving(a axis) []int {
	var picks []int
	for saves := len(a.choices) + 1; saves >= 0; saves-- {
		for i, c := range a.choices {
			if c.saves == saves {
				picks = append(picks, i+1)
			}
		}
	}
	return picks
}

// runs reports whether the engine has rules for a candidate.
func (s *solver) runs(sp *space, c candidate) (bool, error) {
	err := s.Runs(sp.apply(c), sp.card)
	if fault.KindOf(err) == fault.Invalid && err != nil {
		return false, nil
	}
	return err == nil, err
}
