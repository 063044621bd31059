package snapshot

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/units"
)

// recording is a traced run of a Llama of two layers.
func recording(t testing.TB, runtime string) *estimator.Recording {
	t.Helper()
	var job spec.Job
	require.NoError(t, json.Unmarshal(fmt.Appendf(nil, `{"version":1,"model":{"config":{"model_type":"llama","hidden_size":256,"intermediate_size":512,"num_hidden_layers":2,
	"num_attention_heads":4,"num_key_value_heads":4,"vocab_size":1024,"tie_word_embeddings":false}},
	"training":{"precision":"bf16","weights_dtype":"bf16","micro_batch_size":1,"sequence_length":64,"optimizer":{"name":"adamw","implementation":"foreach","library":"torch"}},
	"runtime":{%s"trainer":"plain"}}`, runtime), &job))
	card := spec.Device{Key: "A100-SXM4-80GB", Vendor: "nvidia", ComputeCapability: spec.Version{8, 0}, Total: 85174583296}
	rec, err := estimator.Trace(job, card, spec.Coefficients{})
	require.NoError(t, err)
	return rec
}

func written(t *testing.T, r *estimator.Recording, f Format) []byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, Write(&out, r, f))
	return out.Bytes()
}

// python runs a script over a file of the given bytes, its first argument, and
// decodes the JSON it prints.
func python(t *testing.T, script string, file []byte, into any) {
	t.Helper()
	interpreter, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("MEMPLAN_REQUIRE_ALL") != "" {
			t.Fatal("python3 is missing")
		}
		t.Skip("no python3 here: apt-get install python3")
	}
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, file, 0o600))
	cmd := exec.CommandContext(t.Context(), interpreter, "-c", script, path)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	require.NoError(t, json.Unmarshal(out, into), string(out))
}

func TestPythonReadsWhatIsPickled(t *testing.T) {
	numbers := func(n int) []any {
		all := []any{}
		for i := range n {
			all = append(all, i)
		}
		return all
	}
	twice := shared{"key", func() any { return []any{"made once"} }}
	var many []any // more than 256 memo entries
	for i := range 300 {
		many = append(many, fmt.Sprint("text ", i))
	}
	tests := []struct {
		name  string
		value any
		want  any // nil: as json.Marshal has the value
	}{
		{name: "nothing, and yes and no", value: []any{nil, true, false}},
		{name: "integers at the limits of their opcodes", value: []any{0, 255, 256, 65535, 65536, 1<<31 - 1, 1 << 31, -1, -1 << 31, -1<<31 - 1, int64(0x7f0000000000)}},
		{name: "floats", value: []any{0.0, -1.5, 0.8, 1e300}},
		{name: "texts", value: []any{"", "ä", strings.Repeat("x", 255), strings.Repeat("y", 256)}},
		{name: "no items", value: []any{}},
		{name: "one batch less one", value: numbers(pickleBatch - 1)},
		{name: "one batch", value: numbers(pickleBatch)},
		{name: "several batches", value: numbers(2*pickleBatch + 1)},
		{name: "an empty dict", value: dict{}, want: map[string]any{}},
		{name: "a dict", value: dict{{"a", 1}, {"b", dict{{"a", twin{2, 3}}}}}, want: map[string]any{"a": 1, "b": map[string]any{"a": []any{2, 3}}}},
		{name: "what is known later", value: later(func() any { return 7 }), want: 7},
		{name: "shared values", value: []any{twice, "made once", twice}, want: []any{[]any{"made once"}, "made once", []any{"made once"}}},
		{name: "far references", value: slices.Concat(many, many)},
	}
	var file bytes.Buffer
	for _, test := range tests {
		require.NoError(t, pickle(bufio.NewWriter(&file), test.value))
	}
	var got []any
	python(t, `import json,pickle,sys; f=open(sys.argv[1],"rb"); print(json.dumps([pickle.load(f) for _ in range(`+fmt.Sprint(len(tests))+`)]))`, file.Bytes(), &got)
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.want == nil {
				test.want = test.value
			}
			wanted, err := json.Marshal(test.want)
			require.NoError(t, err)
			var want any
			require.NoError(t, json.Unmarshal(wanted, &want))
			require.Empty(t, cmp.Diff(want, got[i]))
		})
	}
}

// replayed plays a snapshot's trace in Python and compares what is left with
// its segments, as torch/cuda/_memory_viz.py and MemoryViz.js rely on it.
const replayed = `
import json, pickle, pickletools, sys
text = open(sys.argv[1], "rb").read()
readable = "PROTO STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE EMPTY_LIST APPENDS EMPTY_DICT SETITEMS TUPLE2 MEMOIZE BINGET LONG_BINGET"
assert {op.name for op, _, _ in pickletools.genops(text)} <= set(readable.split()), "MemoryViz.js reads no more"
s = pickle.loads(text)
live, held, peak, now = {}, [], 0, 0
[trace] = s["device_traces"]
for e in trace:
    a, n = e["addr"], e["size"]
    if e["action"] == "alloc":
        assert a not in live, e
        assert any(lo <= a and a + n <= hi for lo, hi in held), e
        live[a] = n; now += n; peak = max(peak, now)
    elif e["action"] == "free_requested": assert live[a] == n, e
    elif e["action"] == "free_completed": assert live.pop(a) == n, e; now -= n
    elif e["action"] in ("segment_alloc", "segment_map"):
        held.append((a, a + n)); held.sort()
        joined = held[:1]
        for lo, hi in held[1:]:
            if e["action"] == "segment_map" and joined[-1][1] == lo: joined[-1] = (joined[-1][0], hi)
            else: joined.append((lo, hi))
        held = joined
    elif e["action"] == "segment_free": held.remove((a, a + n))
    else: raise AssertionError(e)
assert held == [(g["address"], g["address"] + g["total_size"]) for g in s["segments"]], held
left = {}
for g in s["segments"]:
    at = g["address"]
    for b in g["blocks"]:
        assert b["address"] == at, b
        at += b["size"]
        if b["state"] == "active_allocated": left[b["address"]] = b["requested_size"]; assert b["frames"], b
    assert at == g["address"] + g["total_size"], g
    assert g["allocated_size"] == sum(b["size"] for b in g["blocks"] if b["state"] != "inactive"), g
    assert g["segment_pool_id"] == (0, 0) and g["device"] == 0 and g["segment_type"] in ("small", "large"), g
assert left == live
names = lambda e: [f["name"] for f in e["frames"] if isinstance(f["line"], int)]
print(json.dumps({
    "entries": len(trace), "peak": peak, "left": now, "reserved": sum(hi - lo for lo, hi in held),
    "expandable": s["allocator_settings"]["expandable_segments"] and all(g["is_expandable"] for g in s["segments"]),
    "categories": sorted({e["category"] for e in trace}),
    "stack": next(names(e) for e in trace if any(f["name"] == "model.layers.1.mlp.up_proj" for f in e["frames"]) and names(e)[-1] == "first_step"),
    "parts": [x["name"] for x in s["external_annotations"] if x["stage"] == "END"],
}))`

func TestPythonReplaysAMemorySnapshot(t *testing.T) {
	for _, test := range []struct {
		name, runtime string
		expandable    bool
	}{
		{name: "cudaMalloc segments"},
		{name: "expandable segments", runtime: `"allocator":{"expandable_segments":true},`, expandable: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			rec := recording(t, test.runtime)
			var got struct {
				Entries              int
				Peak, Left, Reserved units.Bytes
				Expandable           bool
				Categories           []string
				Stack, Parts         []string
			}
			python(t, replayed, written(t, rec, MemoryViz), &got)

			var peak, now, reserved units.Bytes
			entries := 0
			for e := range rec.Events() {
				switch e.Action {
				case "alloc":
					now += e.Bytes
					entries++
				case "free":
					now -= e.Bytes
					entries += 2
				case "segment_alloc", "segment_free", "segment_map", "segment_unmap":
					entries++
				}
				peak, reserved = max(peak, now), e.Reserved
			}
			require.Equal(t, entries, got.Entries)
			require.Equal(t, peak, got.Peak)
			require.Equal(t, now, got.Left)
			require.Equal(t, reserved, got.Reserved)
			require.Equal(t, test.expandable, got.Expandable)
			require.Contains(t, got.Categories, "unknown", "without it MemoryViz.js ends with an error")
			require.Contains(t, got.Categories, "parameters")
			require.Equal(t, []string{"model.layers.1.mlp.up_proj", "model.layers.1.mlp", "model.layers.1", "model.layers", "model", "forward", "first_step"}, got.Stack[len(got.Stack)-7:])
			require.Equal(t, []string{"load", "first_step/forward"}, got.Parts[:2])
			require.Equal(t, "steady_step/optimizer", got.Parts[len(got.Parts)-1])
		})
	}
}

func TestLayoutOfExpandableSegments(t *testing.T) {
	const page = 20 << 20
	var l layout
	for _, e := range []estimator.TraceEvent{
		{Action: "segment_map", Address: 0, Bytes: 2 * page},
		{Action: "segment_map", Address: 2 * page, Bytes: 2 * page}, // the same segment grows
		{Action: "segment_map", Address: 9 * page, Bytes: page, Stream: 1},
		{Action: "segment_map", Address: 10 * page, Bytes: page}, // a neighbour on another stream
		{Action: "segment_unmap", Address: page, Bytes: 2 * page},
	} {
		l.enter(&e)
	}
	var got [][2]int64
	for _, p := range l.joined() {
		got = append(got, [2]int64{p.from / page, p.to / page})
	}
	require.Equal(t, [][2]int64{{0, 1}, {3, 4}, {9, 10}, {10, 11}}, got)
}

func TestEventsAreAllThere(t *testing.T) {
	rec := recording(t, "")
	text := written(t, rec, Events)
	var got struct {
		Version int
		Engine  estimator.Engine
		Events  []estimator.TraceEvent
	}
	require.NoError(t, json.Unmarshal(text, &got))
	require.Equal(t, 1, got.Version)
	require.Equal(t, estimator.Version, got.Engine.Version)
	require.Empty(t, cmp.Diff(slices.Collect(rec.Events()), got.Events))
	require.Equal(t, len(got.Events)+2, bytes.Count(text, []byte("\n")), "an event a line")
}

func TestChromeTrace(t *testing.T) {
	rec := recording(t, "")
	var got struct {
		TraceEvents []struct {
			Name     string
			Ph       string
			TS, Dur  int
			PID, TID *int
			Args     map[string]any
		}
	}
	require.NoError(t, json.Unmarshal(written(t, rec, Chrome), &got))
	last, peak, living := 0, units.Bytes(0), units.Bytes(0)
	for e := range rec.Events() {
		last, peak = e.Event, max(peak, e.Allocated)
		switch e.Action {
		case "alloc":
			living += e.Bytes
		case "free":
			living -= e.Bytes
		}
	}
	counters := map[string]float64{}
	var phases []string
	until, highest := 0, 0.0
	for _, e := range got.TraceEvents {
		require.NotNil(t, e.PID)
		require.NotNil(t, e.TID)
		switch {
		case e.Ph == "C":
			for key, v := range e.Args {
				require.GreaterOrEqual(t, v, 0.0, "%+v", e)
				counters[e.Name+"/"+key] = v.(float64)
			}
			highest = max(highest, counters["memory/allocated_bytes"])
		case e.Ph == "X" && *e.TID == 0:
			require.Equal(t, until, e.TS, "phases leave no gap")
			until = e.TS + e.Dur
			phases = append(phases, e.Name)
		case e.Ph == "i":
			require.EqualValues(t, peak, e.Args["allocated_bytes"])
			require.Equal(t, "steady_step", e.Args["phase"])
		}
	}
	require.Equal(t, []string{"load", "first_step", "steady_step"}, phases)
	require.Equal(t, last+1, until)
	require.Equal(t, peak, units.Bytes(highest))
	sum := 0.0
	for name, v := range counters {
		if strings.HasPrefix(name, "bytes of ") {
			sum += v
		}
	}
	require.Equal(t, living, units.Bytes(sum), "the categories are all there is")
}

func TestFormats(t *testing.T) {
	require.Equal(t, []Format{Events, MemoryViz, Chrome}, Formats())
	for _, f := range Formats() {
		require.Contains(t, f.MediaType(), "application/")
		require.True(t, strings.HasPrefix(f.File("est_1"), "est_1."))
	}
	fields := fault.FieldsOf(Write(io.Discard, nil, "perfetto"))
	require.Len(t, fields, 1)
	require.Equal(t, "one of events, memory_viz, chrome", fields[0].Want)
}

// full is a disk without room.
type full struct{}

var errFull = errors.New("no room")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriterErrorsComeBack(t *testing.T) {
	rec := recording(t, "")
	for _, f := range Formats() {
		require.ErrorIs(t, Write(full{}, rec, f), errFull, f)
	}
}

func BenchmarkWrite(b *testing.B) {
	rec := recording(b, "")
	for _, f := range Formats() {
		b.Run(string(f), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, Write(io.Discard, rec, f))
			}
		})
	}
}
