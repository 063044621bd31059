package recommend

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"memplan/internal/recommend/throughput"
)

// Limits of the answer and of the search.
const (
	maxOptions    = 5
	maxMicroBatch = 4096
	lengthStep    = 128     // tokens between the lengths that are tried
	maxLength     = 1 << 20 // tokens
	maxCards      = 256     // of one job, or four times as many as it has
	maxChanges    = 4       // of the smallest change
	enough        = 3       // options of the smallest change, and of the fewest cards
	maxCandidates = 20000   // priced for the fastest step
	simulations   = 400     // asked about for one goal on one card, at most
)

// found is an option before it is written down.
type found struct {
	sp *space
	candidate
	step throughput.Step
	size int // what the goal maximises
}

// solve answers the goal and fills in the tables beside it.
func (s *solver) solve() (*Recommendation, error) {
	goals := map[Goal]func() ([]found, error){
		LargestMicroBatch: s.largestMicroBatch, FastestStep: s.fastestStep, LongestSequence: s.longestSequence,
		FewestGPUs: s.fewestGPUs, SmallestChange: s.smallestChange,
	}
	a := &Recommendation{Goal: s.Goal, Probability: s.Probability, Options: []Option{}, Pareto: []Point{}, Largest: []LargestCell{}, Singles: []Single{}}
	options, err := goals[s.Goal]()
	if err != nil {
		return nil, err
	}
	for i, f := range options[:min(len(options), maxOptions)] {
		a.Options = append(a.Options, s.option(i+1, f))
	}
	s.doing("tables", 0)
	s.progress.Found = len(a.Options)
	if a.Singles, err = s.singles(); err != nil {
		return nil, err
	}
	if a.Largest, err = s.table(); err != nil {
		return nil, err
	}
	if a.Pareto, err = s.pareto(options); err != nil {
		return nil, err
	}
	s.progress.Doing = "done"
	a.Considered = s.progress
	if len(a.Options) == 0 {
		a.Note = s.nothing()
	}
	return a, nil
}

// nothing says why there is no option.
func (s *solver) nothing() string {
	t := fmt.Sprintf("Nothing that may change makes the job fit with probability %.0f %%.", 100*s.Probability)
	if len(s.Allow) > 0 {
		return t + " Allow more paths to change."
	}
	if s.base.now.Training.Method == "full" {
		return t + " Allow training.method and training.quantization to change, more cards (fewest_gpus), or a larger card."
	}
	return t + " Allow more cards (fewest_gpus), or a larger card."
}

// option writes an option down.
func (s *solver) option(rank int, f found) Option {
	o := Option{
		Rank: rank, Patch: f.sp.patch(f.candidate, &s.given, &s.base.now), Costs: []string{}, Snippets: []Snippet{},
		RelativeSpeed: f.step.RelativeTo(&s.speed), TokensPerSecond: f.step.TokensPerSecond(), MFU: math.Round(f.step.MFU()*1e3) / 1e3,
		Job: f.sp.apply(f.candidate), Card: f.sp.card, Risk: f.sp.risk(f.candidate),
	}
	var what []string
	if f.sp.card > 0 || f.sp.count != s.base.count {
		what = append(what, fmt.Sprintf("Run on %d × %s", f.sp.count, s.Cards[f.sp.card].Device.Name))
	}
	for i := range f.sp.axes {
		if x := f.sp.choice(f.candidate, i); x != nil {
			what = append(what, x.what)
			if !slices.Contains(o.Costs, x.cost) {
				o.Costs = append(o.Costs, x.cost)
			}
		}
	}
	own := s.base.own()
	switch {
	case f.micro != own.micro && f.accumulation != own.accumulation:
		what = append(what, fmt.Sprintf("Take micro batches of %d and accumulate %d", f.micro, f.accumulation))
	case f.micro != own.micro:
		what = append(what, fmt.Sprintf("Take micro batches of %d", f.micro))
	case f.accumulation != own.accumulation:
		what = append(what, fmt.Sprintf("Accumulate %d", f.accumulation))
	}
	if f.length != own.length {
		what = append(what, fmt.Sprintf("Take samples of %d tokens", f.length))
		if most, ok := positions(f.sp); ok && f.length > most {
			o.Costs = append(o.Costs, fmt.Sprintf("the model's configuration names %d positions", most))
		}
	}
	for i := 1; i < len(what); i++ {
		what[i] = lower(what[i])
	}
	o.Why = "Nothing needs to change"
	if len(what) > 0 {
		o.Why = strings.Join(what, ", ")
	}
	o.Why += fmt.Sprintf(": about %.2f times the speed.", f.step.Rate()*f.step.Length/(s.speed.Rate()*s.speed.Length))
	return o
}

// positions is how many positions the model's configuration names.
func positions(sp *space) (int, bool) {
	for _, k := range []string{"max_position_embeddings", "n_positions"} {
		if n, ok := sp.now.Model.Config[k].(float64); ok {
			return int(n), true
		}
	}
	return 0, false
}

// mayChange reports whether a path may change.
func (s *solver) mayChange(path string) bool {
	if len(s.Allow) == 0 {
		return path != sequencePath
	}
	return allows(s.Allow, path)
}

// spaces are those of every card.
func (s *solver) spaces() ([]*space, error) {
	all := []*space{s.base}
	for card := 1; card < len(s.Cards); card++ {
		sp, err := s.space(card, 0)
		if err != nil {
			return nil, err
		}
		all = append(all, sp)
	}
	return all, nil
}

// best sorts options: the largest size first, then the fastest, to a percent,
// then those that change least.
func best(all []found) {
	slices.SortStableFunc(all, func(a, b found) int {
		return cmp.Or(-cmp.Compare(a.size, b.size), -cmp.Compare(percents(a.speed()), percents(b.speed())), cmp.Compare(a.changes(), b.changes()))
	})
}

func (f *found) speed() float64 { return f.step.Rate() * f.step.Length }

// percents is a speed on a scale whose units are a percent.
func percents(x float64) int { return int(math.Round(100 * math.Log(x))) }

// cheapestFirst is the axes a candidate changes, those first that it costs most
// to change: the riskiest, then the slowest.
func (s *solver) cheapestFirst(sp *space, c candidate) []int {
	type cost struct {
		axis int
		risk Risk
		rate float64 // samples a second without the change
	}
	var all []cost
	for i := range sp.axes {
		x := sp.choice(c, i)
		if x == nil {
			continue
		}
		without := c
		without.picks[i] = 0
		step, err := s.price(sp, without)
		rate := 0.0
		if err == nil {
			rate = step.Rate()
		}
		all = append(all, cost{i, x.risk, rate})
	}
	slices.SortStableFunc(all, func(a, b cost) int {
		return cmp.Or(cmp.Compare(b.risk, a.risk), cmp.Compare(percents(b.rate), percents(a.rate)))
	})
	var order []int
	for _, x := range all {
		order = append(order, x.axis)
	}
	return order
}

// lightened drops changes from a candidate that it does not need, those first
// that cost most; suffices says whether what is left still does.
func (s *solver) lightened(sp *space, c candidate, suffices func(c candidate) (bool, error)) (candidate, error) {
	for _, i := range s.cheapestFirst(sp, c) {
		for _, pick := range lighter(sp.axes[i], c.picks[i]) {
			next := c
			next.picks[i] = pick
			if s.hopeless(sp, next) {
				s.decided(1)
				continue
			}
			ok, err := suffices(next)
			if err != nil {
				return c, err
			}
			if ok {
				c = next
				break
			}
		}
	}
	return c, nil
}

// lighter is the picks of an axis that cost less than one: none at all, and
// those that save less and are less of a risk.
func lighter(a axis, pick int8) []int8 {
	picks := []int8{0}
	have := a.choices[pick-1]
	for i, c := range a.choices {
		if c.saves < have.saves && c.saves > 0 && c.risk < have.risk {
			picks = append(picks, int8(i+1))
		}
	}
	return picks
}
