package snapshot

import (
	"bytes"
	"encoding/json"
	"path"
	"strings"

	"memplan/internal/fault"
	"memplan/internal/units"
)

// Measured is what a file of another tool says of a run's memory.
type Measured struct {
	Kind       string   // what the file is
	Figures    []Figure // never none
	ByCategory []Share  // of a memory snapshot, at its peak of requested bytes; largest first
	Replayed   Replayed // of a memory snapshot
}

// Figure is one measured size, with the words of a run.
type Figure struct {
	Metric   string // allocated, reserved, requested, process
	Phase    string
	Bytes    units.Bytes
	Relation string // equals, more_than
	Rounding units.Bytes
	Method   string
}

// Share is what one category held.
type Share struct {
	Category string
	Bytes    units.Bytes
}

// Replayed is what the simulated allocator does with the traffic of a memory
// snapshot: its peaks, to lay beside torch's own.
type Replayed struct {
	Allocated units.Bytes
	Reserved  units.Bytes
}

// reader reads one kind of file.
type reader struct {
	kind  string
	knows func(name string, data []byte) bool
	read  func(data []byte) (*Measured, error)
}

// readers are tried in order.
func readers() []reader {
	return []reader{
		{"an Nsight Systems report", isNsight, refuseNsight},
		{"a memory snapshot of torch.cuda.memory._dump_snapshot", isPickle, readSnapshot},
		{"torch.cuda.memory_stats", has("allocated_bytes.all.peak"), readStats},
		{"torch.cuda.memory_summary", has("PyTorch CUDA memory summary"), readSummary},
		{"an out-of-memory message of torch", has("out of memory. Tried to allocate"), readOOM},
		{"a trace of the PyTorch profiler", has(`"traceEvents"`), readChromeProfile},
		{"a memory timeline of the PyTorch profiler", isTimeline, readTimeline},
		{"tf.config.experimental.get_memory_info", isMemoryInfo, readMemoryInfo},
		{"samples of nvidia-smi", isSMI, readSMI},
	}
}

// Kinds names what Read reads, for help texts.
func Kinds() []string {
	var all []string
	for _, r := range readers()[1:] {
		all = append(all, r.kind)
	}
	return all
}

// Read finds out what a file is, by its contents and the end of its name, and
// reads it. Its errors are fault.Invalid.
func Read(name string, data []byte) (*Measured, error) {
	for _, r := range readers() {
		if !r.knows(strings.ToLower(path.Base(name)), data) {
			continue
		}
		m, err := r.read(data)
		if err != nil {
			return nil, err
		}
		m.Kind = r.kind
		if len(m.Figures) == 0 {
			return nil, fault.New(fault.Invalid, "%s says nothing of the GPU's memory", r.kind)
		}
		return m, nil
	}
	return nil, fault.New(fault.Invalid, "nothing that is known measures memory like this; known are %s", strings.Join(Kinds(), ", "))
}

// has knows a file by a text in it.
func has(text string) func(string, []byte) bool {
	return func(_ string, data []byte) bool { return bytes.Contains(data, []byte(text)) }
}

// isNsight knows a report by its name, or an export of it by SQLite's magic.
func isNsight(name string, data []byte) bool {
	return strings.HasSuffix(name, ".nsys-rep") || strings.HasSuffix(name, ".qdrep") || bytes.HasPrefix(data, []byte("SQLite format 3"))
}

func refuseNsight([]byte) (*Measured, error) {
	return nil, fault.New(fault.Invalid, "an Nsight Systems report is not read: it does not say what the caching allocator held. "+
		"Export instead torch.cuda.memory._dump_snapshot, or print torch.cuda.memory_stats(), at the end of the run; for the process, "+
		"nvidia-smi --query-compute-apps=pid,used_gpu_memory --format=csv -l 1 while it runs")
}

// asJSON decodes a whole file of JSON.
func asJSON(data []byte, into any) bool { return json.Unmarshal(data, into) == nil }
