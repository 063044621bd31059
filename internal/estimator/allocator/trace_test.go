package allocator

import (
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/units"
)

func readTrace(t testing.TB, path string) *Trace {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	trace, err := ReadTrace(z)
	require.NoError(t, err)
	return trace
}

// TestAgainstTorch replays what real PyTorch did and requires the same bytes
// at every mark, the same traffic with the driver, and every block at the
// same address. testdata/README.md says what the traces are of.
func TestAgainstTorch(t *testing.T) {
	const context = 500 * units.MiB
	for _, x := range []struct {
		name   string
		config Config
	}{
		{"gpt2", Config{}},
		{"gpt2_round", Config{RoundupPower2Divisions: UniformDivisions(8)}},
		{"gpt2_retry", Config{Capacity: 860067201 - context}},
		{"llama_hf", Config{}},
		{"llama_exp", Config{ExpandableSegments: true, DeviceTotal: 85174583296}},
		{"llama_exp_retry", Config{ExpandableSegments: true, DeviceTotal: 1492501135, Capacity: 1492501135 - context}},
		{"llama_split", Config{MaxSplitSize: 32 * units.MiB}},
		{"llama_split_retry", Config{MaxSplitSize: 32 * units.MiB, Capacity: 2362232012 - context}},
		{"llama_fsdp", Config{}},
	} {
		t.Run(x.name, func(t *testing.T) {
			replay(t, readTrace(t, filepath.Join("testdata", x.name+".json.gz")), x.config)
		})
	}
}

// TestUnderStress does the same with random allocations on several streams,
// under pressure and under every option.
func TestUnderStress(t *testing.T) {
	for _, x := range []struct {
		name    string
		options string // as PYTORCH_ALLOC_CONF has roundup_power2_divisions
		config  Config
	}{
		{"default", "", Config{Capacity: 500 * units.MiB}},
		{"split", "", Config{Capacity: 700 * units.MiB, MaxSplitSize: 25 * units.MiB}},
		{"roundup", "[1:4,4:2,16:8,>:16]", Config{Capacity: 500 * units.MiB}},
		{"expandable", "", Config{Capacity: 500 * units.MiB, ExpandableSegments: true, DeviceTotal: 500*units.MiB + 1}},
		{"collect", "", Config{DeviceTotal: 2 * units.GiB, MemoryFractionSet: true, MemoryFraction: 0.3, GarbageCollectionThreshold: 0.6}},
		{"rounding", "", Config{Capacity: units.GiB, MaxSplitSize: 48 * units.MiB, MaxNonSplitRounding: 44 * units.MiB, LargeSegmentSize: 40 * units.MiB}},
		{"collect_split", "", Config{DeviceTotal: units.GiB + 1, MemoryFractionSet: true, MemoryFraction: 0.6, GarbageCollectionThreshold: 0.7, MaxSplitSize: 40 * units.MiB}},
		{"expandable_split", "4", Config{Capacity: 700 * units.MiB, ExpandableSegments: true, DeviceTotal: 700*units.MiB + 1, MaxSplitSize: 30 * units.MiB}},
		{"torch26", "", Config{Capacity: 500 * units.MiB, TiesByAddress: true}},
		{"torch26_expandable", "", Config{Capacity: 500 * units.MiB, ExpandableSegments: true, DeviceTotal: 500*units.MiB + 1, TiesByAddress: true}},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.options != "" {
				divisions, err := ParseDivisions(x.options)
				require.NoError(t, err)
				x.config.RoundupPower2Divisions = divisions
			}
			replay(t, readTrace(t, filepath.Join("testdata", "stress_"+x.name+".json.gz")), x.config)
		})
	}
}

// replay runs a trace and compares.
func replay(t *testing.T, trace *Trace, c Config) {
	t.Helper()
	a := New(c)
	events := trace.Program[len(trace.Program)-1].Events
	offset := int64(-1) // between torch's addresses and the model's
	serial, segments := 0, []TracedSegment{}
	err := a.Run(trace.Program, &Watcher{
		Mark: func(_, code int32, s Stats) {
			m := trace.Marks[code]
			require.Equal(t, m.Allocated, s.Allocated.Current, "allocated at mark %d, %s of step %d", code, m.Part, m.Step)
			if m.Part == "now" { // of a stress trace
				require.Equal(t, m.Reserved, s.Reserved.Current, "reserved at mark %d", code)
				return
			}
			require.Equal(t, m.Reserved, s.Reserved.Peak, "reserved at mark %d, %s of step %d", code, m.Part, m.Step)
		},
		Event: func(i int, e Event, _, _, _ units.Bytes) {
			serial = i + 1
			if e.Kind != Alloc || e.Bytes == 0 {
				return
			}
			addr, _, _ := a.Address(e.Block)
			if offset < 0 {
				offset = trace.Addresses[i] - addr
			}
			require.Equal(t, trace.Addresses[i], addr+offset, "address of event %d, %d bytes", i, e.Bytes)
		},
		Segment: func(op SegmentOp, addr int64, size units.Bytes, _ uint8) {
			segments = append(segments, TracedSegment{op, addr, size, serial})
		},
	})
	require.NoError(t, err)
	require.Equal(t, len(events), serial)
	require.Len(t, segments, len(trace.Segments))
	for i := range segments {
		segments[i].Address += offset
		require.Equal(t, trace.Segments[i], segments[i], "segment event %d", i)
	}
}

// TestOOMAgainstTorch runs a program on a card too small for it. PyTorch said
// of the same one: "Tried to allocate 32.00 MiB. GPU 0 has a total capacity of
// 793.60 MiB of which 5.60 MiB is free. Of the allocated memory 245.00 MiB is
// allocated by PyTorch, and 43.00 MiB is reserved by PyTorch but unallocated."
func TestOOMAgainstTorch(t *testing.T) {
	const total, context = 832149913, 500 << 20
	trace := readTrace(t, "testdata/gpt2.json.gz")
	a := New(Config{Capacity: total - context})
	var oom *OOM
	require.ErrorAs(t, a.Run(trace.Program, nil), &oom)
	require.Equal(t, 32*units.MiB, oom.Segment)
	require.Equal(t, "245.00", fmt.Sprintf("%.2f", float64(oom.Allocated)/float64(units.MiB)))
	require.Equal(t, "43.00", fmt.Sprintf("%.2f", float64(oom.Reserved-oom.Allocated)/float64(units.MiB)))
	require.Equal(t, "5.60", fmt.Sprintf("%.2f", float64(oom.Capacity-oom.Reserved)/float64(units.MiB)))
	require.Equal(t, 1, a.Stats().Retries)
}

func TestReadTrace(t *testing.T) {
	trace, err := ReadTrace(strings.NewReader(`{"events": [
		{"event": "free_requested", "address": 512, "bytes": 100, "stream": 0},
		{"event": "free_completed", "address": 512, "bytes": 100, "stream": 0},
		{"event": "segment_alloc", "address": 4096, "bytes": 2097152, "stream": 7},
		{"event": "alloc", "address": 4096, "bytes": 10, "stream": 7, "at": "a.py:1 f"},
		{"event": "free_requested", "address": 4096, "bytes": 10, "stream": 7},
		{"event": "segment_free", "address": 8192, "bytes": 2097152, "stream": 0},
		{"event": "mark", "part": "forward", "step": 2, "allocated_bytes": 3, "reserved_bytes": 4}]}`))
	require.NoError(t, err)
	require.Equal(t, Program{
		{Events: []Event{{Kind: Alloc, Block: 0, Bytes: 100}}},
		{Events: []Event{
			{Kind: Free, Block: 0},
			{Kind: Alloc, Stream: 1, Block: 0, Bytes: 10},
			{Kind: UseOn, Stream: foreign, Block: 0},
			{Kind: Free, Stream: 1, Block: 0},
			{Kind: EmptyCache},
			{Kind: Mark},
		}},
	}, trace.Program)
	require.Equal(t, []string{"a.py:1 f"}, trace.Sites)
	require.Equal(t, []TracedMark{{"forward", 2, 3, 4}}, trace.Marks)
}

func TestReadTraceRefuses(t *testing.T) {
	for _, x := range []struct{ name, text, want string }{
		{"not JSON", "x", "invalid character"},
		{"unknown event", `{"events":[{"event":"swap"}]}`, `event 0: unknown event "swap"`},
		{"allocated twice", `{"events":[{"event":"alloc","address":1,"bytes":1},{"event":"alloc","address":1,"bytes":1}]}`, "twice"},
	} {
		t.Run(x.name, func(t *testing.T) {
			_, err := ReadTrace(strings.NewReader(x.text))
			require.ErrorContains(t, err, x.want)
		})
	}
}
