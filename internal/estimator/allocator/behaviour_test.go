package allocator

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"memplan/internal/units"
)

// script reads a program from words: "a=20M" allocates storage a, "-a" frees
// it, "a@1=2M" allocates it on stream 1, "a>1" uses it there, "a:3M" resizes
// it, "empty" empties the cache. k, M and G are binary; a is one letter.
func script(t testing.TB, text string) []Event {
	t.Helper()
	bytes := func(s string) int64 {
		n, err := units.ParseBytes(strings.NewReplacer("k", "KiB", "M", "MiB", "G", "GiB").Replace(s), 1)
		require.NoError(t, err)
		return int64(n)
	}
	var events []Event
	for _, w := range strings.Fields(text) {
		switch {
		case w == "empty":
			events = append(events, Event{Kind: EmptyCache})
		case w[0] == '-':
			events = append(events, Event{Kind: Free, Block: int32(w[1])})
		case w[1] == '>':
			events = append(events, Event{Kind: UseOn, Block: int32(w[0]), Stream: w[2] - '0'})
		case w[1] == ':':
			events = append(events, Event{Kind: Resize, Block: int32(w[0]), Bytes: bytes(w[2:])})
		default:
			name, size, _ := strings.Cut(w, "=")
			e := Event{Kind: Alloc, Block: int32(name[0]), Bytes: bytes(size)}
			if _, stream, ok := strings.Cut(name, "@"); ok {
				n, err := strconv.Atoi(stream)
				require.NoError(t, err)
				e.Stream = uint8(n)
			}
			events = append(events, e)
		}
	}
	return events
}

// traffic runs a script and returns what passed between allocator and driver,
// in MiB, and the statistics.
func traffic(t *testing.T, c Config, text string) (string, Stats, error) {
	t.Helper()
	a := New(c)
	var seen []string
	err := a.Run(Program{{Events: script(t, text)}}, &Watcher{Segment: func(op SegmentOp, _ int64, size units.Bytes, _ uint8) {
		seen = append(seen, fmt.Sprintf("%s%d", []string{"+", "-", "map ", "unmap "}[op], size/units.MiB))
	}})
	checkState(t, a)
	return strings.Join(seen, " "), a.Stats(), err
}

func TestTrafficWithTheDriver(t *testing.T) {
	split := Config{MaxSplitSize: 40 * units.MiB}
	for _, x := range []struct {
		name   string
		config Config
		script string
		want   string
	}{
		{"small blocks share a segment", Config{}, "a=1M b=1M", "+2"},
		{"a third one does not fit", Config{}, "a=1M b=1M c=1", "+2 +2"},
		{"large blocks share a segment", Config{}, "a=9M b=9M", "+20"},
		{"more than 1 MiB is left to others", Config{}, "a=30M -a b=28M c=1.5M", "+30"},
		{"1 MiB or less is not", Config{}, "a=30M -a b=29M c=1.5M", "+30 +20"},
		{"a hole is taken before a larger one", Config{}, "a=9M b=30M -a -b c=9M d=30M", "+20 +30"},
		{"neighbours merge", Config{}, "a=5M b=5M c=9M -a -b d=10M", "+20"},
		{"no merging across segments", Config{}, "a=10M b=10M -a -b c=20M", "+10 +10 +20"},
		{"streams do not share", Config{}, "a=9M -a b@1=9M", "+20 +20"},
		{"pools do not share", Config{}, "a=1M -a b=1.5M", "+2 +20"},
		{"empty_cache keeps what lives", Config{}, "a=1M b=30M c=40M -b -c empty", "+2 +30 +40 -30 -40"},
		{"a miss releases the cache", Config{Capacity: 50 << 20}, "a=30M -a b=40M", "+30 -30 +40"},
		{"of both pools", Config{Capacity: 50 << 20}, "a=30M b=1 -a -b c=50M", "+30 +2 -30 -2 +50"},
		{"no oversize block for a small request", split, "a=50M -a b=30M", "+50 +30"},
		{"an oversize block within the rounding", split, "a=60M -a b=41M", "+60"},
		{"but not beyond", split, "a=61M -a b=41M", "+62 +42"},
		{"oversize blocks are not split", split, "a=60M -a b=45M c=10M", "+60 +10"},
		{"an oversize block is released first", Config{Capacity: 100 << 20, MaxSplitSize: 40 << 20}, "a=50M b=20M -a -b c=34M", "+50 +20 -50 +34"},
		{"several, the largest first", Config{Capacity: 200 << 20, MaxSplitSize: 40 << 20}, "a=50M b=60M c=20M -a -b -c d=150M", "+50 +60 +20 -60 -50 -20 +150"},
		{"a resize frees", Config{}, "a=30M a:0 b=30M", "+30"},
		{"a resize allocates before it frees", Config{}, "a=30M a:30M b=30M", "+30 +30"},
		{"a resized storage keeps its name", Config{}, "a=30M a:0 a:30M -a b=30M", "+30"},
		{"zero bytes are nothing", Config{}, "a=0 a>1 -a", ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			got, _, err := traffic(t, x.config, x.script)
			require.NoError(t, err)
			require.Equal(t, x.want, got)
		})
	}
}

func TestExpandableSegments(t *testing.T) {
	capped := func(c units.Bytes) Config { return Config{ExpandableSegments: true, Capacity: c} }
	for _, x := range []struct {
		name   string
		config Config
		script string
		want   string
	}{
		{"pages of 2 MiB", capped(0), "a=1M b=1M c=1", "map 2 map 2"},
		{"pages of 20 MiB", capped(0), "a=5M b=15M c=2M d=50M", "map 20 map 20 map 40"},
		{"the segment grows by what is missing", capped(0), "a=30M b=30M", "map 40 map 20"},
		{"a free end grows", capped(0), "a=30M b=30M -b c=40M", "map 40 map 20 map 20"},
		{"a hole is reused", capped(0), "a=40M b=20M -a c=39M", "map 40 map 20"},
		{"whole pages are unmapped", capped(0), "a=30M b=50M -a empty", "map 40 map 40 unmap 20"},
		{"and a hole is filled again", capped(0), "a=40M b=20M -a empty c=30M", "map 40 map 20 unmap 40 map 40"},
		{"a miss unmaps", capped(80 << 20), "a=40M b=20M -a c=50M", "map 40 map 20 unmap 40 map 60"},
		{"a request beyond the range gets a wider one", Config{ExpandableSegments: true, DeviceTotal: 80 << 20}, "a=100M", "map 100"},
		{"a full range is followed by another", Config{ExpandableSegments: true, DeviceTotal: 80 << 20}, "a=60M b=60M", "map 60 map 60"},
		{"an empty segment is given up", capped(0), "a=40M -a empty b=1", "map 40 unmap 40 map 2"},
	} {
		t.Run(x.name, func(t *testing.T) {
			got, _, err := traffic(t, x.config, x.script)
			require.NoError(t, err)
			require.Equal(t, x.want, got)
		})
	}
}

// TestGarbageCollection follows ages: the searches of the large pool that a
// block was free for.
func TestGarbageCollection(t *testing.T) {
	c := Config{DeviceTotal: 1000 << 20, MemoryFractionSet: true, MemoryFraction: 0.2, GarbageCollectionThreshold: 0.5}
	for _, x := range []struct{ name, script, want string }{
		{"nothing below the threshold", "a=40M b=40M -a -b c=60M", "+40 +40 +60"},
		{"the old go, the young stay", "a=40M b=50M c=30M -a -c d=11M -d d=11M -d d=11M -d -b e=60M", "+40 +50 +30 -40 +60"},
		{"the fraction refuses", "a=100M -a b=120M", "+100 -100 +120"},
	} {
		t.Run(x.name, func(t *testing.T) {
			got, _, err := traffic(t, c, x.script)
			require.NoError(t, err)
			require.Equal(t, x.want, got)
		})
	}
}

func TestUsesOnOtherStreams(t *testing.T) {
	const before = "a=30M a>1 -a "
	for _, x := range []struct {
		name              string
		config            Config
		script            string
		want              string
		allocated, active units.Bytes // MiB
	}{
		{"parked", Config{}, before, "+30", 0, 30},
		{"its own stream does not park", Config{}, "a=30M a>0 -a", "+30", 0, 0},
		{"over at the next allocation", Config{}, before + "b=30M", "+30", 30, 30},
		{"not over yet", Config{EventLag: 2}, before + "b=30M", "+30 +30", 30, 60},
		{"over later", Config{EventLag: 2}, before + "b=30M c=30M d=30M", "+30 +30 +30", 90, 90},
		{"a retry waits for it", Config{EventLag: 100, Capacity: 30 << 20}, before + "b=30M", "+30 -30 +30", 30, 30},
		{"an emptied cache too", Config{EventLag: 100}, before + "empty", "+30 -30", 0, 0},
		{"two streams count once", Config{}, "a=30M a>1 a>2 -a b=30M", "+30", 30, 30},
		{"neighbours wait", Config{EventLag: 100}, "a=5M b=5M c=8M a>1 -a -b d=9M", "+20 +20", 17, 22},
	} {
		t.Run(x.name, func(t *testing.T) {
			got, s, err := traffic(t, x.config, x.script)
			require.NoError(t, err)
			require.Equal(t, x.want, got)
			require.Equal(t, x.allocated*units.MiB, s.Allocated.Current)
			require.Equal(t, x.active*units.MiB, s.Active.Current)
		})
	}
}

// TestTies frees two blocks of one size, the older of which lies higher.
func TestTies(t *testing.T) {
	for _, x := range []struct {
		name   string
		config Config
		want   units.Bytes
	}{
		{"the oldest segment", Config{}, 30 * units.MiB},
		{"the lowest address", Config{TiesByAddress: true}, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			a := New(x.config)
			require.NoError(t, a.Run(Program{{Events: script(t, "x=30M o=30M -x empty y=30M -o -y n=30M")}}, nil))
			addr, _, ok := a.Address('n')
			require.True(t, ok)
			require.Equal(t, x.want, units.Bytes(addr))
		})
	}
}

func TestOOM(t *testing.T) {
	a := New(Config{Capacity: 50 * units.MiB})
	p := Program{{Label: 3, Repeat: 2, Events: script(t, "a=30M b=20M -a c=31M")}}
	var oom *OOM
	require.ErrorAs(t, a.Run(p, nil), &oom)
	require.Equal(t, OOM{
		Place:     Place{Part: 3, Index: 3, Round: 0, Event: p[0].Events[3]},
		Requested: 31 * units.MiB, Segment: 32 * units.MiB,
		Allocated: 20 * units.MiB, Reserved: 20 * units.MiB, Capacity: 50 * units.MiB,
	}, *oom)
	require.Equal(t, "out of memory: tried to allocate 32.0 MiB with 20.0 MiB reserved of 50.0 MiB, 20.0 MiB of it allocated (part 3, event 3)", oom.Error())
	require.Equal(t, 1, a.Stats().Retries)
}

func TestProgramErrors(t *testing.T) {
	for _, x := range []struct {
		name   string
		events []Event
		want   string
	}{
		{"freed twice", []Event{{Block: 1, Bytes: 1}, {Kind: Free, Block: 1}, {Kind: Free, Block: 1}}, "free of storage 1: it is not alive (part 5, event 2)"},
		{"freed unseen", []Event{{Kind: Free, Block: 1 << 30}}, "not alive"},
		{"alive twice", []Event{{Block: 1, Bytes: 1}, {Block: 1, Bytes: 1}}, "alive already"},
		{"negative id", []Event{{Block: -1, Bytes: 1}}, "not negative"},
		{"negative size", []Event{{Block: 1, Bytes: -1}}, "size out of range"},
		{"absurd size", []Event{{Block: 1, Bytes: maxRequest + 1}}, "size out of range"},
		{"stream", []Event{{Block: 1, Bytes: 1, Stream: MaxStreams}}, "stream out of range"},
		{"use of nothing", []Event{{Kind: UseOn, Block: 1}}, "not alive"},
		{"use on no stream", []Event{{Block: 1, Bytes: 1}, {Kind: UseOn, Block: 1, Stream: 200}}, "stream out of range"},
		{"resize of nothing", []Event{{Kind: Resize, Block: 1, Bytes: 1}}, "not alive"},
		{"kind", []Event{{Kind: 99}}, "unknown kind"},
	} {
		t.Run(x.name, func(t *testing.T) {
			var defect *ProgramError
			err := New(Config{}).Run(Program{{Label: 5, Events: x.events}}, nil)
			require.ErrorAs(t, err, &defect)
			require.ErrorContains(t, err, x.want)
		})
	}
}

func TestCarryErrors(t *testing.T) {
	for _, x := range []struct {
		name  string
		carry []Carry
		want  string
	}{
		{"from nothing", []Carry{{From: 2, To: 3}}, "storage 2: carried, but not alive"},
		{"onto the living", []Carry{{From: 0, To: 1}}, "storage 1: carried to, but alive"},
	} {
		t.Run(x.name, func(t *testing.T) {
			events := []Event{{Block: 0, Bytes: 1}, {Block: 1, Bytes: 1}}
			require.ErrorContains(t, New(Config{}).Run(Program{{Events: events, Carry: x.carry}}, nil), x.want)
		})
	}
}

func TestCarrySwaps(t *testing.T) {
	a := New(Config{})
	require.NoError(t, a.Run(Program{{
		Events: []Event{{Block: 0, Bytes: 1}, {Block: 1, Bytes: 600}},
		Carry:  []Carry{{From: 0, To: 1}, {From: 1, To: 0}},
	}}, nil))
	_, size, ok := a.Address(0)
	require.True(t, ok)
	require.Equal(t, units.Bytes(1024), size)
}

func TestMarks(t *testing.T) {
	type mark struct {
		label, code   int32
		peak, current units.Bytes
	}
	var got []mark
	a := New(Config{})
	events := script(t, "a=30M b=30M -a")
	events = append(events, Event{Kind: Mark, Site: 8})
	events = append(events, script(t, "c=11M -c")...)
	events = append(events, Event{Kind: Mark, Site: 9})
	require.NoError(t, a.Run(Program{{Label: 4, Events: events}}, &Watcher{Mark: func(label, code int32, s Stats) {
		got = append(got, mark{label, code, s.Allocated.Peak / units.MiB, s.Allocated.Current / units.MiB})
	}}))
	require.Equal(t, []mark{{4, 8, 60, 30}, {4, 9, 41, 30}}, got)
	require.Equal(t, 60*units.MiB, a.Stats().Allocated.Peak)
	a.ResetPeaks()
	require.Equal(t, 30*units.MiB, a.Stats().Allocated.Peak)
}

func TestEventIsSmall(t *testing.T) {
	require.EqualValues(t, 24, unsafe.Sizeof(Event{}))
}

// TestNothingOverflows asks for more than integers hold.
func TestNothingOverflows(t *testing.T) {
	for _, c := range []Config{{}, {ExpandableSegments: true}, {RoundupPower2Divisions: UniformDivisions(2)}} {
		var events []Event
		for id := range int32(20) {
			events = append(events, Event{Block: id, Bytes: maxRequest - 1})
		}
		var oom *OOM
		a := New(c)
		require.ErrorAs(t, a.Run(Program{{Events: events}}, nil), &oom)
		require.Positive(t, a.Stats().Reserved.Peak)
	}
}
