package snapshot

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/fault"
	"memplan/internal/units"
)

func testdata(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	if strings.HasSuffix(name, ".gz") {
		z, err := gzip.NewReader(bytes.NewReader(data))
		require.NoError(t, err)
		data, err = io.ReadAll(z)
		require.NoError(t, err)
	}
	return data
}

func equals(metric string, bytes, rounding units.Bytes, method string) Figure {
	return Figure{Metric: metric, Bytes: bytes, Relation: "equals", Rounding: rounding, Method: method}
}

func TestRead(t *testing.T) {
	const newOOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.33 GiB of which 1.50 GiB is free. " +
		"Of the allocated memory 70.00 GiB is allocated by PyTorch, and 5.00 GiB is reserved by PyTorch but unallocated."
	const oldOOM = "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 15.75 GiB total capacity; 14.00 GiB already allocated; 20.00 MiB free; 14.40 GiB reserved in total by PyTorch)"
	for _, test := range []struct {
		name, file string
		data       []byte
		want       []Figure
	}{
		{"memory_stats as Python prints it", "stats.txt", testdata(t, "memory_stats.txt"), []Figure{
			equals("allocated", 10905088, 0, "torch.cuda.memory_stats"), equals("requested", 10902184, 0, "torch.cuda.memory_stats"),
			equals("reserved", 25165824, 0, "torch.cuda.memory_stats"),
		}},
		{"memory_stats as JSON", "stats.json", []byte(`{"allocated_bytes.all.current": 1, "allocated_bytes.all.peak": 2048, "reserved_bytes.all.peak": 4096}`), []Figure{
			equals("allocated", 2048, 0, "torch.cuda.memory_stats"), equals("reserved", 4096, 0, "torch.cuda.memory_stats"),
		}},
		{"memory_summary", "", testdata(t, "memory_summary.txt"), []Figure{
			equals("allocated", 10649*1024+512, 1024, "torch.cuda.memory_summary"), equals("requested", 10646*1024+512, 1024, "torch.cuda.memory_summary"),
			equals("reserved", 24576*1024+512, 1024, "torch.cuda.memory_summary"),
		}},
		{"out of memory", "log", []byte(newOOM), []Figure{
			{Metric: "allocated", Bytes: 72 * units.GiB, Relation: "more_than", Method: "out of memory"},
			{Metric: "process", Bytes: 79*units.GiB + 354334801, Relation: "more_than", Method: "out of memory"},
		}},
		{"out of memory, as torch said it before 2.1", "log", []byte(oldOOM), []Figure{
			{Metric: "allocated", Bytes: 14*units.GiB + 512*units.MiB, Relation: "more_than", Method: "out of memory"},
			{Metric: "process", Bytes: 15*units.GiB + 768*units.MiB, Relation: "more_than", Method: "out of memory"},
		}},
		{"TensorFlow", "", []byte("{'current': 1024, 'peak': 4096}\n"), []Figure{equals("allocated", 4096, 0, "tf.config.experimental.get_memory_info")}},
		{"profiler", "trace.json", []byte(`{"traceEvents": [
			{"name": "[memory]", "args": {"Total Allocated": 100, "Total Reserved": 300, "Device Type": 1}},
			{"name": "[memory]", "args": {"Total Allocated": 900, "Total Reserved": 0, "Device Type": 0}},
			{"name": "[memory]", "args": {"Total Allocated": 200, "Total Reserved": 200, "Device Type": 1}}, {"name": "aten::add"}]}`), []Figure{
			equals("allocated", 200, 0, "torch.profiler"), equals("reserved", 300, 0, "torch.profiler"),
		}},
		{"profiler's timeline", "timeline.json", []byte(`[[1, 2, 3], [[0, 10, 5], [0, 30, 5], [0, 1, 1]]]`), []Figure{equals("tensor", 35, 0, "torch.profiler, memory timeline")}},
		{"nvidia-smi, processes", "smi.csv", []byte("pid, used_gpu_memory [MiB]\n7, 100 MiB\n7, 900 MiB\n7, [N/A]\n"), []Figure{
			equals("process", 900*units.MiB, units.MiB, "nvidia-smi, samples of the process"),
		}},
		{"nvidia-smi, device", "smi.csv", []byte("timestamp, index, memory.used [MiB]\n2026/01/01 00:00:00.000, 0, 1500 MiB\n"), []Figure{
			equals("process", 1500*units.MiB, units.MiB, "nvidia-smi, samples of the device"),
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := Read(test.file, test.data)
			require.NoError(t, err)
			require.Equal(t, test.want, m.Figures)
			require.NotEmpty(t, m.Kind)
		})
	}
}

func TestReadRefusesByName(t *testing.T) {
	for _, test := range []struct {
		name, file string
		data       string
		want       string
	}{
		{"Nsight Systems", "run.nsys-rep", "x", "torch.cuda.memory._dump_snapshot"},
		{"its export", "run.sqlite", "SQLite format 3\x00", "nvidia-smi --query-compute-apps"},
		{"anything else", "notes.txt", "it was about 12 GB", "known are"},
		{"nothing of a GPU", "trace.json", `{"traceEvents": []}`, "says nothing of the GPU's memory"},
		{"a pickle that imports", "s.pickle", "\x80\x04\x8c\x02os\x8c\x06system\x93.", "it imports a name"},
		{"a pickle that calls", "s.pickle", "\x80\x02cos\nsystem\n(tR.", "it imports a name"},
		{"a pickle of something else", "s.pickle", "\x80\x04]\x94.", "no segments"},
		{"half a pickle", "s.pickle", "\x80\x04]\x94", "broken at byte"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Read(test.file, []byte(test.data))
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			require.ErrorContains(t, err, test.want)
		})
	}
}

// The snapshot is of three steps of a small perceptron under AdamW, recorded by
// torch 2.15 from the start; memory_stats.txt is what the same process counted.
func TestReadTorchSnapshot(t *testing.T) {
	m, err := Read("snapshot.pickle", testdata(t, "torch.pickle.gz"))
	require.NoError(t, err)
	require.Equal(t, []Figure{
		equals("requested", 10902184, 0, "memory snapshot"), equals("reserved", 25165824, 0, "memory snapshot"),
		equals("allocated", 10905088, 0, "memory snapshot, replayed"),
	}, m.Figures)
	require.Equal(t, Replayed{10905088, 25165824}, m.Replayed, "our allocator does the same")
	by := map[string]units.Bytes{}
	sum := units.Bytes(0)
	for _, s := range m.ByCategory {
		by[s.Category] = s.Bytes
		sum += s.Bytes
	}
	require.Equal(t, units.Bytes(10902184), sum)
	parameters := units.Bytes(4 * (256*512 + 512 + 512*10 + 10))
	require.Equal(t, parameters, by["parameters"])
	require.GreaterOrEqual(t, by["optimizer"], 2*parameters)
}

func TestReadOwnSnapshot(t *testing.T) {
	r := recording(t, "")
	m, err := Read("x.pickle", written(t, r, MemoryViz))
	require.NoError(t, err)
	var reserved, allocated units.Bytes
	for e := range r.Events() {
		reserved, allocated = max(reserved, e.Reserved), max(allocated, e.Allocated)
	}
	require.Equal(t, Replayed{allocated, reserved}, m.Replayed)
}

// A history that begins late: what it did not see come was there before.
func TestSnapshotOfALateHistory(t *testing.T) {
	v, err := unpickle(testdata(t, "torch.pickle.gz"))
	require.NoError(t, err)
	root := v.(map[string]any)
	all := items(root["device_traces"])[0].([]any)
	whole := newHistory(root)
	root["device_traces"] = []any{all[len(all)/2:]}
	late := newHistory(root)
	require.Equal(t, whole.peakRequested, late.peakRequested, "the steps are alike")
	require.Equal(t, whole.peakReserved, late.peakReserved)
	root["device_traces"] = []any{}
	none := newHistory(root)
	require.Less(t, none.peakRequested, whole.peakRequested, "only what is alive at the end")
	require.Positive(t, none.peakRequested)
}

func TestUnpickleIsBounded(t *testing.T) {
	deep := append([]byte{0x80, 4}, bytes.Repeat([]byte{']'}, 5000)...)
	deep = append(append(deep, bytes.Repeat([]byte{'a'}, 4999)...), '.')
	_, err := unpickle(deep)
	require.Error(t, err)
	twice := []byte{0x80, 4, 'N', 0x85} // a tuple of two of the one before, fifty times over
	for range 50 {
		twice = append(twice, 'q', 0, 'h', 0, 0x86)
	}
	_, err = unpickle(append(twice, '.'))
	require.Error(t, err)
}

func FuzzUnpickle(f *testing.F) {
	f.Add(testdata(f, "torch.pickle.gz"))
	f.Add([]byte("\x80\x02}q\x00(U\x01aK\x01U\x01b]q\x01(K\x02K\x03eu."))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = Read("x", data) })
}
