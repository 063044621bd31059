package allocator

import "slices"

// A space is the driver's: which addresses are taken, and how much memory
// stands behind them. A new range gets the lowest address where it fits.
type space struct {
	gaps    []span // free ranges below end, by address, never adjacent
	end     int64  // nothing is taken from here on
	charged int64  // bytes of memory, in whole granules
}

type span struct{ addr, size int64 }

func (s *space) reset() { s.gaps, s.end, s.charged = s.gaps[:0], 0, 0 }

func granules(n int64) int64 { return (n + granularity - 1) &^ (granularity - 1) }

// reserve takes n bytes of address space.
func (s *space) reserve(n int64) int64 {
	n = granules(n)
	for i := range s.gaps {
		g := &s.gaps[i]
		if g.size < n {
			continue
		}
		at := g.addr
		if g.addr, g.size = g.addr+n, g.size-n; g.size == 0 {
			s.gaps = slices.Delete(s.gaps, i, i+1)
		}
		return at
	}
	at := s.end
	s.end += n
	return at
}

// release gives back the n bytes of address space at addr.
func (s *space) release(addr, n int64) {
	n = granules(n)
	i, _ := slices.BinarySearchFunc(s.gaps, addr, func(g span, a int64) int { return int(min(max(g.addr-a, -1), 1)) })
	if i > 0 && s.gaps[i-1].addr+s.gaps[i-1].size == addr {
		i--
		s.gaps[i].size += n
	} else {
		s.gaps = slices.Insert(s.gaps, i, span{addr, n})
	}
	if i+1 < len(s.gaps) && s.gaps[i].addr+s.gaps[i].size == s.gaps[i+1].addr {
		s.gaps[i].size += s.gaps[i+1].size
		s.gaps = slices.Delete(s.gaps, i+1, i+2)
	}
	if last := len(s.gaps) - 1; s.gaps[last].addr+s.gaps[last].size == s.end {
		s.end, s.gaps = s.gaps[last].addr, s.gaps[:last]
	}
}
