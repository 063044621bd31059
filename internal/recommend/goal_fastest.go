package recommend

import (
	"cmp"
	"slices"

	"memplan/internal/estimator"
)

// fastestStep is the fastest step at one global batch: every candidate is
// priced, which is cheap, and the fastest are asked about until they fit.
func (s *solver) fastestStep() ([]found, error) {
	spaces, err := s.spaces()
	if err != nil {
		return nil, err
	}
	var all []found
	for _, sp := range spaces {
		of, err := s.priced(sp)
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	slices.SortStableFunc(all, func(a, b found) int {
		return cmp.Or(-cmp.Compare(percents(a.step.Rate()), percents(b.step.Rate())), cmp.Compare(a.changes(), b.changes()), cmp.Compare(a.risk(), b.risk()))
	})
	return s.staircase(all)
}

func (f *found) risk() Risk { return f.sp.risk(f.candidate) }

// perRank is the samples of an optimizer step on each data-parallel rank.
func (s *solver) perRank(sp *space) int {
	own := s.base.own()
	global := s.GlobalBatch
	if global == 0 {
		global = own.micro * own.accumulation * max(1, s.base.now.Parallelism.Data)
	}
	return max(1, global/max(1, sp.now.Parallelism.Data))
}

// micros are the micro batches that divide what a rank takes in a step.
func (s *solver) micros(sp *space) []int {
	n := s.perRank(sp)
	if !s.mayChange(microBatchPath) {
		return []int{sp.now.Training.MicroBatchSize}
	}
	var all []int
	for m := 1; m <= min(n, maxMicroBatch); m++ {
		if n%m == 0 {
			all = append(all, m)
		}
	}
	return all
}

// priced is every candidate of a space with its predicted step. Those that
// cannot be priced are not candidates.
func (s *solver) priced(sp *space) ([]found, error) {
	own := sp.own()
	all := []candidate{own}
	for i, a := range sp.axes {
		n := len(all)
		for pick := range a.choices {
			for _, c := range all[:n] {
				c.picks[i] = int8(pick + 1)
				all = append(all, c)
			}
		}
	}
	micros, each1 := s.micros(sp), s.perRank(sp)
	for len(all)*len(micros) > maxCandidates && len(micros) > 1 {
		micros = slices.DeleteFunc(slices.Clone(micros), func(m int) bool { return m == micros[len(micros)/2] })
	}
	options := make([]found, 0, len(all)*len(micros))
	for _, c := range all {
		for _, m := range micros {
			c.micro, c.accumulation = m, max(1, each1/m)
			options = append(options, found{sp: sp, candidate: c})
		}
	}
	s.doing("speeds", len(options))
	ok := make([]bool, len(options))
	const chunk = 256
	err := each((len(options)+chunk-1)/chunk, func(i int) error {
		for j := i * chunk; j < min((i+1)*chunk, len(options)); j++ {
			if err := s.ctx.Err(); err != nil {
				return err
			}
			step, err := s.price(sp, options[j].candidate)
			options[j].step, ok[j] = step, err == nil
		}
		return nil
	})
	var kept []found
	for i, f := range options {
		if ok[i] {
			kept = append(kept, f)
		}
	}
	return kept, err
}

// staircase goes down a list of candidates, the fastest first, and takes those
// that fit, each slower than the one before and, for that, a lesser change: of
// less risk, or of fewer parts.
func (s *solver) staircase(all []found) ([]found, error) {
	s.doing("the fastest", 0)
	var taken []found
	asked := 0
	for at := 0; at < len(all) && len(taken) < maxOptions && asked < simulations; {
		batch, next, decided := s.batch(all[at:], taken)
		unknown, err := s.floors(batch)
		if err != nil {
			return nil, err
		}
		if len(unknown) > 0 {
			asked += len(unknown)
			if err := each(len(unknown), func(i int) error {
				_, err := s.fit(unknown[i].sp, unknown[i].candidate, estimator.Decide)
				return err
			}); err != nil {
				return nil, err
			}
			continue // with what is left of the batch
		}
		at += next
		s.decided(decided)
		asked += len(batch)
		fits := make([]bool, len(batch))
		if err := each(len(batch), func(i int) error {
			f, err := s.fit(batch[i].sp, batch[i].candidate, estimator.Decide)
			fits[i] = f.Fits
			return err
		}); err != nil {
			return nil, err
		}
		for i, f := range batch {
			if !fits[i] || !lesser(f, taken) || len(taken) == maxOptions {
				continue
			}
			if ok, err := s.holds(f.sp, f.candidate); err != nil {
				return nil, err
			} else if ok {
				taken = append(taken, f)
			}
		}
	}
	return taken, nil
}

// batch is the next candidates to ask about, how far down the list they reach,
// and how many up to there need not be asked about.
func (s *solver) batch(all, taken []found) (batch []found, reach, decided int) {
	for ; reach < len(all) && len(batch) < round; reach++ {
		f := all[reach]
		switch {
		case !lesser(f, taken):
		case s.hopeless(f.sp, f.candidate):
			decided++
		default:
			batch = append(batch, f)
		}
	}
	return batch, reach, decided
}

// floors is the candidates that save the most with the sizes and the
// recomputation of those in a batch, as far as nobody asked about them yet.
// Where one does not fit, none of its kind does.
func (s *solver) floors(batch []found) ([]found, error) {
	var unknown []found
	for _, f := range batch {
		c, ok, err := s.floor(f.sp, f.candidate)
		if err != nil {
			return nil, err
		}
		if !ok || c == f.candidate || s.isKnown(f.sp, c) || slices.ContainsFunc(unknown, func(u found) bool { return u.candidate == c && u.sp == f.sp }) {
			continue
		}
		unknown = append(unknown, found{sp: f.sp, candidate: c})
	}
	return unknown, nil
}

// lesser reports whether a candidate is a lesser change than every option taken.
func lesser(f found, taken []found) bool {
	for _, t := range taken {
		if f.risk() >= t.risk() && f.changes() >= t.changes() {
			return false
		}
	}
	return true
}
