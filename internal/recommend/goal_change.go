package recommend

import (
	"cmp"
	"slices"

	"memplan/internal/estimator"
)

// smallestChange tries every change alone, then every two together, and so on,
// until enough make the job fit. A smaller micro batch with as many more
// accumulated is one of the changes.
func (s *solver) smallestChange() ([]found, error) {
	sp := s.base
	own := sp.own()
	if f, err := s.fit(sp, own, estimator.Decide); err != nil || f.Fits {
		return []found{{sp: sp, candidate: own, step: s.speed}}, err
	}
	var taken []found
	level := []candidate{own}
	for n := 1; n <= maxChanges && len(taken) < enough; n++ {
		level = s.oneMore(sp, level, taken)
		options, err := s.pricedOnly(sp, level)
		if err != nil {
			return nil, err
		}
		s.doing("changes of "+plural(n), len(options))
		fits, err := s.fitting(sp, options, taken)
		if err != nil {
			return nil, err
		}
		taken = append(taken, fits...)
	}
	return taken, nil
}

func plural(n int) string {
	return [...]string{"", "one part", "two parts", "three parts", "four parts"}[n]
}

// oneMore is every candidate with one more change than those of a level, less
// those that contain an option already taken.
func (s *solver) oneMore(sp *space, level []candidate, taken []found) []candidate {
	seen := map[candidate]bool{}
	var next []candidate
	add := func(c candidate) {
		for _, t := range taken {
			if t.includedIn(c) && t.micro >= c.micro {
				return
			}
		}
		if !seen[c] {
			seen[c] = true
			next = append(next, c)
		}
	}
	own := sp.own()
	for _, c := range level {
		for i, a := range sp.axes {
			if c.picks[i] != 0 {
				continue
			}
			for pick, x := range a.choices {
				if a.class || x.saves == apart || x.saves > sp.keeps[i] {
					more := c
					more.picks[i] = int8(pick + 1)
					add(more)
				}
			}
		}
		if c.micro == own.micro && s.mayChange(microBatchPath) && s.mayChange(accumulationPath) {
			for m := own.micro - 1; m >= 1; m-- {
				if own.micro%m == 0 {
					more := c
					more.micro, more.accumulation = m, own.accumulation*own.micro/m
					add(more)
				}
			}
		}
	}
	return next
}

// pricedOnly prices candidates and sorts them by risk, then speed.
func (s *solver) pricedOnly(sp *space, all []candidate) ([]found, error) {
	options := make([]found, len(all))
	ok := make([]bool, len(all))
	if err := each(len(all), func(i int) error {
		step, err := s.price(sp, all[i])
		options[i], ok[i] = found{sp: sp, candidate: all[i], step: step}, err == nil
		return s.ctx.Err()
	}); err != nil {
		return nil, err
	}
	var kept []found
	for i, f := range options {
		if ok[i] {
			kept = append(kept, f)
		}
	}
	slices.SortStableFunc(kept, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.risk(), b.risk()), -cmp.Compare(percents(a.step.Rate()), percents(b.step.Rate())))
	})
	return kept, nil
}

// fitting asks about candidates in their order and returns those that fit. Of
// several that differ in the micro batch alone, only the first counts.
func (s *solver) fitting(sp *space, all, before []found) ([]found, error) {
	var taken []found
	repeats := func(f found) bool {
		return slices.ContainsFunc(taken, func(t found) bool { return t.picks == f.picks })
	}
	for at := 0; at < len(all) && len(taken)+len(before) < maxOptions; {
		var batch []found
		for ; at < len(all) && len(batch) < round; at++ {
			if repeats(all[at]) {
				continue
			}
			if s.hopeless(sp, all[at].candidate) {
				s.decided(1)
				continue
			}
			batch = append(batch, all[at])
		}
		fits := make([]bool, len(batch))
		if err := each(len(batch), func(i int) error {
			f, err := s.fit(sp, batch[i].candidate, estimator.Decide)
			fits[i] = f.Fits
			return err
		}); err != nil {
			return nil, err
		}
		for i, f := range batch {
			if !fits[i] || repeats(f) || len(taken)+len(before) == maxOptions {
				continue
			}
			if ok, err := s.holds(sp, f.candidate); err != nil {
				return nil, err
			} else if ok {
				taken = append(taken, f)
			}
		}
	}
	return taken, nil
}
