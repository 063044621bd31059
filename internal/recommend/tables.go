package recommend

import (
	"cmp"
	"slices"

	"memplan/internal/estimator"
	"memplan/internal/units"
)

// maxPoints is how many points of the front are made exact.
const maxPoints = 12

// singles is what each change alone saves, the most first: of what is live at
// the peak, which is the least that is required.
func (s *solver) singles() ([]Single, error) {
	sp := s.base
	own := sp.own()
	needs, err := s.fit(sp, own, estimator.Live)
	if err != nil {
		return nil, err
	}
	type one struct {
		candidate
		axis, pick int
	}
	var all []one
	for i, a := range sp.axes {
		for pick := range a.choices {
			c := own
			c.picks[i] = int8(pick + 1)
			all = append(all, one{c, i, pick})
		}
	}
	if own.micro > 1 && own.micro%2 == 0 && s.mayChange(microBatchPath) {
		c := own
		c.micro, c.accumulation = own.micro/2, own.accumulation*2
		all = append(all, one{c, -1, 0})
	}
	saves := make([]units.Bytes, len(all))
	if err := each(len(all), func(i int) error {
		f, err := s.fit(sp, all[i].candidate, estimator.Live)
		if err == nil && !s.isRefused(sp, all[i].candidate) {
			saves[i] = needs.Required - f.Required
		}
		return err
	}); err != nil {
		return nil, err
	}
	out := []Single{}
	for i, x := range all {
		patch := sp.patch(x.candidate, &s.given, &sp.now)
		if saves[i] <= 0 || len(patch) == 0 {
			continue
		}
		one := Single{Path: patch[0].Path, To: patch[0].To, Saves: saves[i], Patch: patch, What: "Halve the micro batch and accumulate twice as many", Cost: "the same global batch, somewhat slower"}
		if x.axis >= 0 {
			c := sp.axes[x.axis].choices[x.pick]
			one.What, one.Cost = c.what, c.cost
		}
		out = append(out, one)
	}
	slices.SortStableFunc(out, func(a, b Single) int { return -cmp.Compare(a.Saves, b.Saves) })
	return out, nil
}

// table is the largest micro batch of the job as it is, on each card and at some
// lengths around its own.
func (s *solver) table() ([]LargestCell, error) {
	spaces, err := s.spaces()
	if err != nil {
		return nil, err
	}
	type cell struct {
		sp *space
		c  candidate
	}
	var cells []cell
	for _, sp := range spaces {
		for _, length := range lengths(sp) {
			c := sp.own()
			c.length = length
			cells = append(cells, cell{sp, c})
		}
	}
	out := make([]LargestCell, len(cells))
	err = each(len(cells), func(i int) error {
		top, above, err := s.largest(cells[i].sp, cells[i].c, maxMicroBatch, func(c *candidate, size int) { c.micro = size })
		out[i] = LargestCell{
			GPU: cmp.Or(s.Cards[cells[i].sp.card].Device.Key, s.Cards[cells[i].sp.card].Device.Name), Length: cells[i].c.length,
			MicroBatch: top.Size, AtLeast: top.Size > 0 && above.Size == 0,
		}
		return err
	})
	return out, err
}

// lengths are the job's own and its halves and doubles; only its own where a
// sample has no tokens, or positions are learnt and there are no more.
func lengths(sp *space) []int {
	own := sp.now.Training.SequenceLength
	if own < 2*lengthStep {
		return []int{own}
	}
	var all []int
	most := maxLength
	if n, ok := sp.now.Model.Config["n_positions"].(float64); ok {
		most = int(n)
	}
	for _, n := range []int{own / 4, own / 2, own, own * 2, own * 4} {
		if n >= lengthStep && n <= max(most, own) {
			all = append(all, n)
		}
	}
	return all
}

// sameBatch reports whether the goal leaves the samples of a step as they are.
func (s *solver) sameBatch() bool { return s.Goal != LargestMicroBatch && s.Goal != LongestSequence }

// pareto is the front of memory against speed over everything that was asked
// about and fits the job's own card, the leanest first.
func (s *solver) pareto(options []found) ([]Point, error) {
	type at struct {
		found
		needs units.Bytes
	}
	var all []at
	own := s.base.own()
	for k, f := range s.fits {
		if k.look == estimator.Live {
			continue
		}
		if k.place != (place{s.base.card, s.base.count}) || !f.Fits || k.length != own.length || s.sameBatch() && k.micro*k.accumulation != s.perRank(s.base) {
			continue
		}
		step, err := s.price(s.base, k.candidate)
		if err != nil {
			continue
		}
		all = append(all, at{found{sp: s.base, candidate: k.candidate, step: step}, f.Required})
	}
	front := func() {
		slices.SortFunc(all, func(a, b at) int {
			return cmp.Or(cmp.Compare(a.needs, b.needs), -cmp.Compare(a.speed(), b.speed()), cmp.Compare(a.changes(), b.changes()),
				slices.Compare(a.picks[:], b.picks[:]), cmp.Compare(a.micro, b.micro))
		})
		fastest := 0.0
		all = slices.DeleteFunc(all, func(x at) bool {
			if x.speed() <= fastest*1.005 {
				return true
			}
			fastest = x.speed()
			return false
		})
	}
	front()
	for len(all) > maxPoints {
		all = slices.Delete(all, len(all)/2, len(all)/2+1)
	}
	if err := each(len(all), func(i int) error {
		r, err := s.required(s.base, all[i].candidate)
		all[i].needs = r
		return err
	}); err != nil {
		return nil, err
	}
	front()
	points := []Point{}
	for _, x := range all {
		points = append(points, Point{
			Patch: s.base.patch(x.candidate, &s.given, &s.base.now), Required: x.needs,
			RelativeSpeed: x.speed() / (s.speed.Rate() * s.speed.Length),
		})
	}
	return points, nil
}
