package recommend

import "memplan/internal/estimator"

// largestMicroBatch is the goal of that name.
func (s *solver) largestMicroBatch() ([]found, error) {
	return s.sized(func(sp *space) (int, func(c *candidate, size int)) {
		if s.GlobalBatch == 0 {
			return maxMicroBatch, func(c *candidate, size int) { c.micro = size }
		}
		each := max(1, s.GlobalBatch/max(1, sp.now.Parallelism.Data))
		return min(maxMicroBatch, each), func(c *candidate, size int) { c.micro, c.accumulation = size, (each+size-1)/size }
	})
}

// longestSequence is the goal of that name. A model that has learnt its
// positions takes no more than those.
func (s *solver) longestSequence() ([]found, error) {
	return s.sized(func(sp *space) (int, func(c *candidate, size int)) {
		most := maxLength
		if n, ok := sp.now.Model.Config["n_positions"].(float64); ok {
			most = int(n)
		}
		return max(1, most/lengthStep), func(c *candidate, size int) { c.length = size * lengthStep }
	})
}

// sized finds what reaches the largest size, with no more changes than that
// takes; then, with the change that costs most barred, what reaches the largest
// size without it, and so on down to the job as it is.
func (s *solver) sized(goal func(sp *space) (limit int, set func(c *candidate, size int))) ([]found, error) {
	spaces, err := s.spaces()
	if err != nil {
		return nil, err
	}
	var all []found
	for _, sp := range spaces {
		limit, set := goal(sp)
		barred := bars{}
		for range maxOptions {
			f, ok, err := s.largestWith(sp, limit, set, barred)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			all = append(all, f)
			order := s.cheapestFirst(sp, f.candidate)
			if len(order) == 0 {
				break
			}
			barred.bar(sp, f.candidate, order[0])
		}
	}
	best(all)
	return distinct(all), nil
}

// distinct leaves out options that another is no smaller than with no more
// changes of the same job.
func distinct(all []found) []found {
	var kept []found
next:
	for _, f := range all {
		for _, k := range kept {
			if k.sp == f.sp && k.size >= f.size && k.includedIn(f.candidate) {
				continue next
			}
		}
		kept = append(kept, f)
	}
	return kept
}

// includedIn reports whether a candidate makes no change that another does not.
func (c *candidate) includedIn(o candidate) bool {
	for i := range c.picks {
		if c.picks[i] != 0 && c.picks[i] != o.picks[i] {
			return false
		}
	}
	return true
}

// largestWith is the largest size any corner reaches, and the lightest way
// there.
func (s *solver) largestWith(sp *space, limit int, set func(c *candidate, size int), barred bars) (found, bool, error) {
	corners, err := s.corners(sp, sp.own(), barred)
	if err != nil {
		return found{}, false, err
	}
	s.doing("the largest size", len(corners))
	sizes := make([]int, len(corners))
	if err := each(len(corners), func(i int) error {
		top, _, err := s.largest(sp, corners[i], limit, set)
		sizes[i] = top.Size
		return err
	}); err != nil {
		return found{}, false, err
	}
	top := -1
	for i, size := range sizes {
		if size > 0 && (top < 0 || size > sizes[top] || size == sizes[top] && corners[i].changes() < corners[top].changes()) {
			top = i
		}
	}
	if top < 0 {
		return found{}, false, nil
	}
	c, size := corners[top], sizes[top]
	set(&c, size)
	c, err = s.lightened(sp, c, func(next candidate) (bool, error) {
		f, err := s.fit(sp, next, estimator.Decide)
		return f.Fits, err
	})
	if err != nil {
		return found{}, false, err
	}
	// What is left may hold one more: sizes are not quite monotone in changes.
	for size < limit {
		above := c
		set(&above, size+1)
		f, err := s.fit(sp, above, estimator.Decide)
		if err != nil {
			return found{}, false, err
		}
		if !f.Fits {
			break
		}
		c, size = above, size+1
	}
	step, err := s.price(sp, c)
	return found{sp, c, step, size}, true, err
}
