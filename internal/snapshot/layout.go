package snapshot

import (
	"cmp"
	"maps"
	"slices"

	"memplan/internal/estimator"
	"memplan/internal/units"
)

// smallSegment is the size of every segment of the small pool, and of every
// page of an expandable one; the large pool's are larger
// (c10/cuda/CUDACachingAllocator.cpp: kSmallBuffer).
const smallSegment = 2 << 20

// layout is what lies where.
type layout struct {
	pieces []piece                        // by address
	blocks map[int64]estimator.TraceEvent // living, by address
}

// piece is memory the driver gave: a segment, or pages of an expandable one.
type piece struct {
	from, to   int64
	stream     int
	small      bool
	expandable bool
	made       shared // the stack
}

func byAddress(p piece, address int64) int { return cmp.Compare(p.from, address) }

// enter brings the layout past an event.
func (l *layout) enter(e *estimator.TraceEvent) {
	switch e.Action {
	case "alloc":
		if l.blocks == nil {
			l.blocks = map[int64]estimator.TraceEvent{}
		}
		l.blocks[e.Address] = *e
	case "free":
		delete(l.blocks, e.Address)
	case "segment_alloc", "segment_map":
		at, _ := slices.BinarySearchFunc(l.pieces, e.Address, byAddress)
		l.pieces = slices.Insert(l.pieces, at, piece{
			from: e.Address, to: e.Address + int64(e.Bytes), stream: int(e.Stream),
			small: e.Bytes == smallSegment, expandable: e.Action == "segment_map", made: frames(e),
		})
	case "segment_free", "segment_unmap":
		l.remove(e.Address, e.Address+int64(e.Bytes))
	}
}

// remove gives a range back, which may be parts of several pieces.
func (l *layout) remove(from, to int64) {
	var left []piece
	for _, p := range l.pieces {
		if p.to <= from || to <= p.from {
			left = append(left, p)
			continue
		}
		for _, rest := range [][2]int64{{p.from, from}, {to, p.to}} {
			if rest[0] < rest[1] {
				q := p
				q.from, q.to = rest[0], rest[1]
				left = append(left, q)
			}
		}
	}
	l.pieces = left
}

// joined are the pieces with the pages of an expandable segment that lie side by
// side in one, as torch reports them.
func (l *layout) joined() []piece {
	var out []piece
	for _, p := range l.pieces {
		if n := len(out) - 1; n >= 0 && p.expandable && out[n].expandable && out[n].to == p.from && out[n].stream == p.stream && out[n].small == p.small {
			out[n].to = p.to
			continue
		}
		out = append(out, p)
	}
	return out
}

// segments is the snapshot's list of segments, by address.
func (l *layout) segments() any {
	living := slices.Sorted(maps.Keys(l.blocks))
	out := []any{}
	for _, p := range l.joined() {
		n, _ := slices.BinarySearch(living, p.to)
		out = append(out, l.segment(p, living[:n]))
		living = living[n:]
	}
	return out
}

// segment is a segment with its blocks: the living ones, and what is free
// between them, which the allocator always holds in one.
func (l *layout) segment(p piece, living []int64) dict {
	blocks := []any{}
	var allocated, requested units.Bytes
	at := p.from
	gap := func(to int64) {
		if at < to {
			blocks = append(blocks, dict{{"address", at}, {"size", to - at}, {"requested_size", 0}, {"state", "inactive"}, {"frames", []any{}}})
		}
	}
	for _, address := range living {
		b := l.blocks[address]
		gap(address)
		blocks = append(blocks, dict{
			{"address", address},
			{"size", int64(b.Block)},
			{"requested_size", int64(b.Bytes)},
			{"state", "active_allocated"},
			{"frames", frames(&b)},
		})
		at = address + int64(b.Block)
		allocated += b.Block
		requested += b.Bytes
	}
	gap(p.to)
	pool := "large"
	if p.small {
		pool = "small"
	}
	return dict{
		{"device", 0},
		{"address", p.from},
		{"total_size", p.to - p.from},
		{"allocated_size", int64(allocated)},
		{"active_size", int64(allocated)},
		{"requested_size", int64(requested)},
		{"stream", p.stream},
		{"segment_type", pool},
		{"segment_pool_id", twin{0, 0}},
		{"is_expandable", p.expandable},
		{"frames", p.made},
		{"blocks", blocks},
	}
}
