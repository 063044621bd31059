package allocator

import "memplan/internal/units"

// Stat is a quantity now and at its highest since the peaks were last reset.
type Stat struct{ Current, Peak units.Bytes }

func (s *Stat) add(n int64) {
	s.Current += units.Bytes(n)
	s.Peak = max(s.Peak, s.Current)
}

func (s *Stat) sub(n int64) { s.Current -= units.Bytes(n) }

// Stats are the counters of torch.cuda.memory_stats that memplan speaks of.
type Stats struct {
	Requested Stat // requested_bytes: what was asked for, parked blocks included
	Allocated Stat // allocated_bytes: whole blocks, slack included
	Active    Stat // active_bytes: allocated, and parked until other streams are done
	Reserved  Stat // reserved_bytes: taken from the driver

	Segments     int // living cudaMalloc segments; 0 with expandable segments
	SegmentsPeak int
	Retries      int // num_alloc_retries: misses that had to release the cache, since the beginning
}

// restart begins a new window of peaks.
func (s *Stats) restart() {
	for _, x := range [...]*Stat{&s.Requested, &s.Allocated, &s.Active, &s.Reserved} {
		x.Peak = x.Current
	}
	s.SegmentsPeak = s.Segments
}

// cover returns s with peaks at least those of t.
func (s Stats) cover(t Stats) Stats {
	s.Requested.Peak = max(s.Requested.Peak, t.Requested.Peak)
	s.Allocated.Peak = max(s.Allocated.Peak, t.Allocated.Peak)
	s.Active.Peak = max(s.Active.Peak, t.Active.Peak)
	s.Reserved.Peak = max(s.Reserved.Peak, t.Reserved.Peak)
	s.SegmentsPeak = max(s.SegmentsPeak, t.SegmentsPeak)
	return s
}
