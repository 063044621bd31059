package recommend

import (
	"slices"

	"memplan/internal/estimator"
)

// fewestGPUs tries numbers of cards from one up, at one global batch, until a
// few are found on which the job fits.
func (s *solver) fewestGPUs() ([]found, error) {
	rest := s.base.count / max(1, s.base.now.Parallelism.Data)
	most := max(maxCards, 4*s.base.count)
	var all []found
	for card := range s.Cards {
		of := 0
		for count := max(1, rest); count <= most && of < enough; count *= 2 {
			sp, err := s.space(card, count)
			if err != nil {
				return nil, err
			}
			f, ok, err := s.onFewer(sp)
			if err != nil {
				return nil, err
			}
			if ok {
				of++
				all = append(all, f)
			}
		}
	}
	best(all)
	return all, nil
}

// onFewer is the lightest way to fit a number of cards, with the largest micro
// batch that divides what a rank takes.
func (s *solver) onFewer(sp *space) (found, bool, error) {
	micros, each1 := s.micros(sp), s.perRank(sp)
	at := func(c candidate, micro int) candidate {
		c.micro, c.accumulation = micro, max(1, each1/micro)
		return c
	}
	corners, err := s.corners(sp, at(sp.own(), micros[0]), nil)
	if err != nil {
		return found{}, false, err
	}
	s.doing("fewer cards", len(corners))
	fits := make([]bool, len(corners))
	if err := each(len(corners), func(i int) error {
		f, err := s.fit(sp, corners[i], estimator.Decide)
		fits[i] = f.Fits
		return err
	}); err != nil {
		return found{}, false, err
	}
	top := slices.Index(fits, true)
	if top < 0 {
		return found{}, false, nil
	}
	suffices := func(c candidate) (bool, error) {
		f, err := s.fit(sp, c, estimator.Decide)
		return f.Fits, err
	}
	c, err := s.lightened(sp, corners[top], suffices)
	if err != nil {
		return found{}, false, err
	}
	for _, m := range slices.Backward(micros) {
		if next := at(c, m); !s.hopeless(sp, next) {
			ok, err := suffices(next)
			if err == nil && ok {
				ok, err = s.holds(sp, next)
			}
			if err != nil {
				return found{}, false, err
			}
			if ok {
				c = next
				break
			}
		}
	}
	if ok, err := s.holds(sp, c); err != nil || !ok {
		return found{}, false, err
	}
	step, err := s.price(sp, c)
	return found{sp, c, step, -sp.count}, true, err
}
