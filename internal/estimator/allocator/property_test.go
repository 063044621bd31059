package allocator

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/units"
)

// sizes draws requests around everything that is decided by size.
func sizes() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Range(0, 4<<10),
		rapid.Int64Range(1, 1<<20),
		rapid.Int64Range(1<<20, 12<<20),
		rapid.Int64Range(8<<20, 64<<20),
		rapid.SampledFrom([]int64{512, 513, 1 << 20, 1<<20 + 1, 8519680, 10 << 20, 10<<20 + 1, 11 << 20, 20 << 20}),
	)
}

func configs() *rapid.Generator[Config] {
	return rapid.Custom(func(t *rapid.T) Config {
		c := Config{
			ExpandableSegments: rapid.Bool().Draw(t, "expandable"),
			TiesByAddress:      rapid.Bool().Draw(t, "ties by address"),
			EventLag:           rapid.SampledFrom([]int{0, 0, 3, 1000}).Draw(t, "lag"),
			MaxSplitSize:       rapid.SampledFrom([]units.Bytes{0, 0, 20 << 20, 40 << 20}).Draw(t, "max split"),
			DeviceTotal:        8 << 30,
		}
		if rapid.Bool().Draw(t, "roundup") {
			c.RoundupPower2Divisions = UniformDivisions(4)
		}
		if rapid.Bool().Draw(t, "collect") {
			c.MemoryFractionSet, c.MemoryFraction, c.GarbageCollectionThreshold = true, 0.02, 0.5
		}
		if rapid.Bool().Draw(t, "capped") {
			c.Capacity = units.Bytes(rapid.Int64Range(2, 200).Draw(t, "capacity")) << 20
		}
		return c
	})
}

// steps draws a program of one part in which every event is possible.
func steps(t *rapid.T, most int) []Event {
	var events []Event
	var alive []int32
	next := int32(0)
	for range rapid.IntRange(1, most).Draw(t, "events") {
		e := Event{Kind: rapid.SampledFrom([]Kind{Alloc, Alloc, Alloc, Free, Free, Recat, UseOn, Resize, EmptyCache, Mark}).Draw(t, "kind")}
		e.Stream = uint8(rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "stream"))
		switch {
		case e.Kind == EmptyCache || e.Kind == Mark:
		case e.Kind == Alloc || len(alive) == 0:
			e.Kind, e.Block, e.Bytes = Alloc, next, sizes().Draw(t, "bytes")
			alive = append(alive, next)
			next++
		default:
			i := rapid.IntRange(0, len(alive)-1).Draw(t, "which")
			e.Block = alive[i]
			switch e.Kind {
			case Free:
				alive = slices.Delete(alive, i, i+1)
			case Resize:
				e.Bytes = sizes().Draw(t, "bytes")
			}
		}
		events = append(events, e)
	}
	return events
}

// everyBlock returns all blocks in use, by address, and fails where a list
// and a block disagree.
func everyBlock(t require.TestingT, a *Allocator) []block {
	var all []block
	for _, i := range a.ids {
		if i > 0 {
			require.True(t, a.blocks[i-1].live)
			all = append(all, a.blocks[i-1])
		}
	}
	seen := map[int32]bool{}
	for _, u := range a.parked {
		if b := a.blocks[u.block]; !seen[u.block] {
			require.False(t, b.idle())
			all = append(all, b)
			seen[u.block] = true
		}
	}
	for _, f := range a.pools() {
		if f == nil {
			continue
		}
		for p := f.firstFrom(0); p.class >= 0; p = f.next(p) {
			b := a.blocks[f.at(p).block]
			require.Equal(t, *f.at(p), b.entry(f.at(p).block))
			require.True(t, b.idle() && !b.unmapped)
			all = append(all, b)
		}
		for _, i := range f.unmapped {
			require.True(t, a.blocks[i].idle() && a.blocks[i].unmapped)
			all = append(all, a.blocks[i])
		}
	}
	slices.SortFunc(all, func(x, y block) int { return cmp.Compare(x.addr, y.addr) })
	return all
}

// checkState requires what holds in every state: blocks tile their segments,
// free neighbours are merged, and the counters are sums over the blocks.
func checkState(t require.TestingT, a *Allocator) {
	var allocated, active, reserved, requested int64
	all := everyBlock(t, a)
	require.Len(t, all, len(a.blocks)-len(a.spare), "a block is lost")
	for i, b := range all {
		require.Positive(t, b.size)
		if i > 0 {
			before := all[i-1]
			require.LessOrEqual(t, before.addr+before.size, b.addr, "blocks overlap")
			require.Equal(t, before.next == none, b.prev == none)
			if b.prev != none {
				require.Equal(t, b.addr, before.addr+before.size, "a gap in a segment")
				require.False(t, b.idle() && before.idle() && b.unmapped == before.unmapped, "free neighbours are not merged")
			}
		}
		if !b.unmapped {
			reserved += b.size
		}
		if !b.idle() {
			active += b.size
			requested += b.requested
		}
		if b.live {
			allocated += b.size
		}
	}
	s := a.Stats()
	require.EqualValues(t, []int64{requested, allocated, active, reserved},
		[]int64{int64(s.Requested.Current), int64(s.Allocated.Current), int64(s.Active.Current), int64(s.Reserved.Current)})
	require.LessOrEqual(t, allocated, active)
	require.LessOrEqual(t, active, reserved)
	require.LessOrEqual(t, requested, active)
	require.EqualValues(t, reserved, a.space.charged)
	if capacity := a.Capacity(); capacity > 0 {
		require.LessOrEqual(t, s.Reserved.Peak, capacity)
	}
}

func TestEveryStateIsSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New(configs().Draw(t, "config"))
		var oom *OOM
		for _, e := range steps(t, 80) {
			if err := a.Run(Program{{Events: []Event{e}}}, nil); err != nil {
				require.ErrorAs(t, err, &oom)
				checkState(t, a)
				return
			}
			checkState(t, a)
		}
	})
}

func TestNothingStays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := configs().Draw(t, "config")
		c.Capacity, c.MemoryFractionSet = 0, false
		a := New(c)
		require.NoError(t, a.Run(Program{{Events: steps(t, 80)}}, nil))
		for id := range a.ids {
			if a.ids[id] != 0 {
				require.NoError(t, a.Run(Program{{Events: []Event{{Kind: Free, Block: int32(id)}}}}, nil))
			}
		}
		require.NoError(t, a.Run(Program{{Events: []Event{{Kind: EmptyCache}}}}, nil))
		s := a.Stats()
		require.Equal(t, [5]units.Bytes{}, [5]units.Bytes{
			s.Requested.Current, s.Allocated.Current, s.Active.Current, s.Reserved.Current, units.Bytes(s.Segments),
		})
		require.Equal(t, len(a.blocks), len(a.spare))
		require.Empty(t, a.segments)
		require.Equal(t, space{gaps: []span{}}, space{gaps: append([]span{}, a.space.gaps...), end: a.space.end, charged: a.space.charged})
	})
}

// TestResetIsNew runs a program on a used allocator and on a new one.
func TestResetIsNew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first, c := configs().Draw(t, "first config"), configs().Draw(t, "config")
		p, q := Program{{Events: steps(t, 40)}}, Program{{Events: steps(t, 40)}}
		used, fresh := New(first), New(c)
		_ = used.Run(p, nil)
		used.Reset(c)
		require.Equal(t, fresh.Run(q, nil), used.Run(q, nil))
		require.Equal(t, fresh.snapshot(nil), used.snapshot(nil))
		require.Equal(t, fresh.Stats(), used.Stats())
	})
}

// repeatable draws a part that can follow itself: what it leaves alive it
// carries to the names under which it frees it.
func repeatable(t *rapid.T, most int) Part {
	body := steps(t, most)
	alive := map[int32]bool{}
	next := int32(0)
	for _, e := range body {
		switch e.Kind {
		case Alloc:
			alive[e.Block] = true
			next = max(next, e.Block+1)
		case Free:
			delete(alive, e.Block)
		}
	}
	p := Part{Label: 7, Events: body}
	var carried []Event
	for id := range next {
		if !alive[id] {
			continue
		}
		if rapid.Bool().Draw(t, "carried") {
			to := next + int32(len(p.Carry))
			p.Carry = append(p.Carry, Carry{From: id, To: to})
			carried = append(carried, Event{Kind: Free, Block: to})
			continue
		}
		p.Events = append(p.Events, Event{Kind: Free, Block: id})
	}
	at := rapid.IntRange(0, len(p.Events)).Draw(t, "where the carried die")
	p.Events = slices.Insert(p.Events, at, carried...)
	return p
}

// before returns a part that makes the storages a repeatable part expects.
func before(p Part) Part {
	var made Part
	for i, c := range p.Carry {
		made.Events = append(made.Events, Event{Kind: Alloc, Block: c.To, Bytes: int64(i) * 1000})
	}
	return made
}

func TestRepetitionIsExpansion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := configs().Draw(t, "config")
		body := repeatable(t, 30)
		n := rapid.IntRange(1, 40).Draw(t, "rounds")
		short := body
		short.Repeat = n
		long := Program{before(body)}
		for range n {
			long = append(long, body)
		}
		a, b := New(c), New(c)
		x, y := a.Run(Program{before(body), short}, nil), b.Run(long, nil)
		var oom *OOM
		if y != nil {
			require.ErrorAs(t, y, &oom)
			require.ErrorAs(t, x, &oom)
			return
		}
		require.NoError(t, x)
		require.Equal(t, b.snapshot(nil), a.snapshot(nil))
		require.Equal(t, b.Stats(), a.Stats())
	})
}

func TestRepetitionStopsEarly(t *testing.T) {
	rounds := 0
	p := Program{{Repeat: 1000, Events: []Event{
		{Kind: Alloc, Block: 0, Bytes: 5 << 20}, {Kind: Mark}, {Kind: Free, Block: 0},
	}}}
	require.NoError(t, New(Config{}).Run(p, &Watcher{Mark: func(int32, int32, Stats) { rounds++ }}))
	require.Equal(t, 2, rounds, "the first from an empty card, the second proves the rest")
}

func TestNestedRepetition(t *testing.T) {
	inner := Part{
		Repeat: 64, Events: []Event{{Kind: Alloc, Block: 1, Bytes: 3 << 20}, {Kind: Alloc, Block: 2, Bytes: 100}, {Kind: Free, Block: 1}},
		Carry: []Carry{{From: 2, To: 0}},
	}
	inner.Events = append(inner.Events[:2:2], Event{Kind: Free, Block: 0}, inner.Events[2])
	p := Program{
		{Events: []Event{{Kind: Alloc, Block: 0, Bytes: 100}}},
		{Repeat: 500, Events: []Event{{Kind: Alloc, Block: 9, Bytes: 1 << 20}, {Kind: Free, Block: 9}}, Parts: []Part{inner, inner}},
	}
	a := New(Config{})
	require.NoError(t, a.Run(p, nil))
	require.Less(t, a.serial, 100)
	require.Equal(t, 22*units.MiB, a.Stats().Reserved.Peak)
}

// TestFreeListIsOrdered compares the classes with a sorted slice.
func TestFreeListIsOrdered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f freeList
		var sorted []entry
		order := func(x, y entry) int {
			return cmp.Or(cmp.Compare(x.size, y.size), cmp.Compare(x.age, y.age), cmp.Compare(x.addr, y.addr))
		}
		for i := range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(sorted) > 0 && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				at := rapid.IntRange(0, len(sorted)-1).Draw(t, "which")
				f.remove(sorted[at])
				sorted = slices.Delete(sorted, at, at+1)
			} else {
				size := rapid.SampledFrom([]int64{1, 2, 31, 32, 33, 2047, 2048, 2049, 40960, 1 << 34, 1 << 40}).Draw(t, "size") * minBlock
				e := entry{size, int64(i) * minBlock, int32(rapid.IntRange(1, 3).Draw(t, "age")), int32(i)}
				f.insert(e)
				at, _ := slices.BinarySearchFunc(sorted, e, order)
				sorted = slices.Insert(sorted, at, e)
			}
			var got []entry
			for p := f.firstFrom(0); p.class >= 0; p = f.next(p) {
				got = append(got, *f.at(p))
			}
			require.Equal(t, append([]entry(nil), sorted...), got)
			want := rapid.Int64Range(1, 1<<12).Draw(t, "want") * minBlock
			at, _ := slices.BinarySearchFunc(sorted, entry{size: want}, order)
			p := f.lowerBound(want)
			require.Equal(t, at < len(sorted), p.class >= 0)
			if p.class >= 0 {
				require.Equal(t, sorted[at], *f.at(p))
			}
			if len(sorted) > 0 {
				require.Equal(t, sorted[len(sorted)-1], *f.at(f.largest()))
			}
		}
	})
}

func FuzzRun(f *testing.F) {
	f.Add([]byte{0, 0, 1, 1, 0, 0, 1, 1}, uint16(0))
	f.Add([]byte{0, 40, 0, 40, 1, 0, 5, 0, 0, 41}, uint16(64|1))
	f.Fuzz(func(t *testing.T, script []byte, setting uint16) {
		a := New(Config{
			Capacity:           units.Bytes(setting>>6) << 20,
			ExpandableSegments: setting&1 != 0,
			MaxSplitSize:       units.Bytes(setting>>1&1) * (20 << 20),
			TiesByAddress:      setting>>2&1 != 0,
			EventLag:           int(setting >> 3 & 7),
		})
		for i := 0; i+1 < len(script); i += 2 {
			e := Event{
				Kind: Kind(script[i] % 9), Stream: script[i] / 9 % 3, Block: int32(script[i] / 27),
				Bytes: int64(script[i+1]%16+1) << (script[i+1] / 16 * 2 % 24),
			}
			_ = a.Run(Program{{Events: []Event{e}, Repeat: int(script[i] % 2)}}, nil)
			checkState(t, a)
		}
	})
}
