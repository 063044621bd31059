package planner

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/units"
)

// MaxNeighbours is the most jobs asked about for one card.
const MaxNeighbours = 32

// Colocation says which of several jobs fit on one card at the same time, each
// a process of its own.
type Colocation struct {
	GPU      string      `json:"gpu" doc:"The card all jobs name."`
	Usable   units.Bytes `json:"usable_bytes" doc:"What the jobs can get together: the card's total less other processes and headroom, the most of what the jobs say."`
	Summary  string      `json:"summary"`
	Jobs     []Neighbour `json:"jobs" doc:"In the order asked; the numbers below are places in this list, from 0."`
	Together Company     `json:"together" doc:"All of them on the one card."`
	Pairs    []Company   `json:"pairs" doc:"Every two of them."`
	Cards    [][]int     `json:"cards" doc:"The jobs spread over cards like this one so that each card's fit, the largest placed first. A job that does not fit alone has a card of its own."`
}

// Neighbour is one of the jobs: what it needs by itself.
type Neighbour struct {
	Name     string             `json:"name"`
	Required units.Bytes        `json:"required_bytes"`
	Interval estimator.Interval `json:"interval"`
	Verdict  estimator.Verdict  `json:"verdict" doc:"Alone on the card."`
	Summary  string             `json:"summary"`
}

// Company is some of the jobs on one card. Their estimates are taken to err
// together, as they share card, libraries and engine: the ends of the interval
// are sums of the jobs' ends.
type Company struct {
	Jobs        []int             `json:"jobs"`
	Required    units.Bytes       `json:"required_bytes"`
	Low         units.Bytes       `json:"low_bytes"`
	High        units.Bytes       `json:"high_bytes"`
	Verdict     estimator.Verdict `json:"verdict"`
	Probability float64           `json:"probability_fits"`
}

// Colocate answers whether jobs fit on one card together, and which pairs do.
// Each job is estimated as if alone; what they need adds up, for a process keeps
// what its cache has reserved and pays for a CUDA context of its own, also under
// time slicing and MPS. Errors are fault.Fields with the job's place before each
// path, and where the jobs name different cards.
func (p *Planner) Colocate(ctx context.Context, jobs []spec.Job) (*Colocation, error) {
	if n := len(jobs); n < 2 || n > MaxNeighbours {
		return nil, fault.New(fault.Invalid, "%d jobs: from 2 to %d can be asked about together", n, MaxNeighbours)
	}
	ests := make([]*estimator.Estimate, len(jobs))
	errs := make([]error, len(jobs))
	each(len(jobs), func(i int) { ests[i], errs[i] = p.Estimate(ctx, jobs[i]) })
	var wrong fault.Fields
	for i, err := range errs {
		fields := fault.FieldsOf(err)
		if err != nil && len(fields) == 0 {
			return nil, err
		}
		for _, f := range fields {
			f.Path = fmt.Sprintf("[%d].%s", i, f.Path)
			wrong = append(wrong, f)
		}
	}
	for i, e := range ests {
		if e != nil && ests[0] != nil && e.Target.GPU != ests[0].Target.GPU {
			wrong.Add(fmt.Sprintf("[%d].target.gpu", i), e.Target.GPU, ests[0].Target.GPU+", the card of the first job", ests[0].Target.GPU)
		}
	}
	if len(wrong) > 0 {
		return nil, wrong
	}
	return colocation(ests), nil
}

// colocation puts estimates together.
func colocation(ests []*estimator.Estimate) *Colocation {
	c := &Colocation{GPU: ests[0].Target.GPU, Usable: ests[0].Target.Usable, Pairs: []Company{}, Cards: [][]int{}}
	all := make([]int, len(ests))
	for i, e := range ests {
		all[i] = i
		c.Usable = min(c.Usable, e.Target.Usable)
		c.Jobs = append(c.Jobs, Neighbour{
			Name: cmp.Or(e.Job.Name, e.Job.Model.ID, fmt.Sprintf("job %d", i+1)), Required: e.Peak.Required, Interval: e.Peak.Interval,
			Verdict: e.Target.Verdict, Summary: e.Summary,
		})
	}
	c.Together = c.company(all...)
	for i := range all {
		for k := i + 1; k < len(all); k++ {
			c.Pairs = append(c.Pairs, c.company(i, k))
		}
	}
	c.Cards = c.spread(all)
	c.Summary = c.sentence()
	return c
}

// standardEnds is how many standard deviations lie between the ends of a 90 %
// interval.
const standardEnds = 2 * 1.6449

// company puts some of the jobs on one card.
func (c *Colocation) company(places ...int) Company {
	t := Company{Jobs: places, Verdict: estimator.Exceeds}
	for _, i := range places {
		j := c.Jobs[i]
		t.Required, t.Low, t.High = t.Required+j.Required, t.Low+j.Interval.Low, t.High+j.Interval.High
	}
	switch {
	case t.High <= c.Usable:
		t.Verdict = estimator.Fits
	case t.Required <= c.Usable:
		t.Verdict = estimator.Tight
	}
	// Each side of the median has a spread of its own: where modules are all
	// loaded at once the interval reaches further up.
	side := 2 * float64(t.High-t.Required) / standardEnds
	if c.Usable < t.Required {
		side = 2 * float64(t.Required-t.Low) / standardEnds
	}
	if side <= 0 {
		side = 1
	}
	t.Probability = math.Round(1e4*0.5*math.Erfc(-float64(c.Usable-t.Required)/side/math.Sqrt2)) / 1e4
	return t
}

// spread places the jobs on as few cards as first fit decreasing finds, so that
// each card's jobs fit.
func (c *Colocation) spread(places []int) [][]int {
	order := slices.Clone(places)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(c.Jobs[b].Required, c.Jobs[a].Required) })
	var cards [][]int
next:
	for _, i := range order {
		for n, card := range cards {
			if c.company(append(slices.Clone(card), i)...).Verdict == estimator.Fits {
				cards[n] = append(card, i)
				continue next
			}
		}
		cards = append(cards, []int{i})
	}
	for _, card := range cards {
		slices.Sort(card)
	}
	return cards
}

// sentence is the answer in words.
func (c *Colocation) sentence() string {
	t := c.Together
	needs := fmt.Sprintf("%d jobs together need %.1f GiB (%.1f to %.1f), %s gives %.1f", len(c.Jobs), t.Required.GiB(), t.Low.GiB(), t.High.GiB(), c.GPU, c.Usable.GiB())
	fitting := 0
	for _, pair := range c.Pairs {
		if pair.Verdict == estimator.Fits {
			fitting++
		}
	}
	switch t.Verdict {
	case estimator.Fits:
		return "Fit: " + needs + "."
	case estimator.Tight:
		return fmt.Sprintf("Tight: %s; they fit with probability %.0f %%.", needs, 100*t.Probability)
	}
	return fmt.Sprintf("Do not fit: %s; of %d pairs %d fit, and %d such cards would do.", needs, len(c.Pairs), fitting, len(c.Cards))
}
