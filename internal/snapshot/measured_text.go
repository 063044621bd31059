package snapshot

import (
	"bufio"
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"

	"memplan/internal/fault"
	"memplan/internal/units"
)

// statPeak is a counter of memory_stats, as JSON or as Python prints a
// dictionary, ordered or not.
var statPeak = regexp.MustCompile(`['"](allocated|reserved|requested)_bytes\.all\.peak['"]\s*[:,]\s*(\d+)`)

// readStats reads what torch.cuda.memory_stats() returns.
func readStats(data []byte) (*Measured, error) {
	m := &Measured{}
	for _, found := range statPeak.FindAllSubmatch(data, -1) {
		m.add(string(found[1]), whole(found[2]), 0, "torch.cuda.memory_stats")
	}
	return m, nil
}

// summaryRow is a row of memory_summary: metric, current and peak.
var summaryRow = regexp.MustCompile(`(Allocated|Requested|GPU reserved) memory\s*\|[^|]*\|\s*(\d+)\s*([KMGT]?i?B)`)

// readSummary reads the table of torch.cuda.memory_summary(), printed in whole
// units, rounded down.
func readSummary(data []byte) (*Measured, error) {
	metrics := map[string]string{"Allocated": "allocated", "Requested": "requested", "GPU reserved": "reserved"}
	m := &Measured{}
	for _, found := range summaryRow.FindAllSubmatch(data, -1) {
		unit := unitOf(string(found[3]))
		rounding := unit
		if unit == 1 {
			rounding = 0
		}
		m.add(metrics[string(found[1])], whole(found[2])*unit+rounding/2, rounding, "torch.cuda.memory_summary")
	}
	return m, nil
}

func unitOf(s string) units.Bytes {
	switch strings.TrimSuffix(strings.TrimSuffix(s, "B"), "i") {
	case "K":
		return units.KiB
	case "M":
		return units.MiB
	case "G":
		return units.GiB
	case "T":
		return 1024 * units.GiB
	}
	return 1
}

// Sizes in the message of an out-of-memory error. Before 2.1 torch wrote
// "(GPU 0; 15.78 GiB total capacity; 14.0 GiB already allocated; …".
var (
	oomAsked     = regexp.MustCompile(`Tried to allocate ([\d.]+) ([KMG]?i?B)`)
	oomTotal     = regexp.MustCompile(`(?:total capacity of ([\d.]+) ([KMG]?i?B)|([\d.]+) ([KMG]?i?B) total capacity)`)
	oomAllocated = regexp.MustCompile(`([\d.]+) ([KMG]?i?B) (?:is allocated by PyTorch|already allocated)`)
)

// readOOM reads the message: the job needs more than it had and asked for. What
// is inside the allocator at that moment is known; the process would have needed
// more than the card.
func readOOM(data []byte) (*Measured, error) {
	m := &Measured{}
	asked, ok := sizeIn(oomAsked, data)
	allocated, ok2 := sizeIn(oomAllocated, data)
	if ok && ok2 {
		m.Figures = append(m.Figures, Figure{Metric: "allocated", Bytes: allocated + asked, Relation: "more_than", Method: "out of memory"})
	}
	if total, ok := sizeIn(oomTotal, data); ok {
		m.Figures = append(m.Figures, Figure{Metric: "process", Bytes: total, Relation: "more_than", Method: "out of memory"})
	}
	return m, nil
}

// sizeIn is the first size that a pattern finds.
func sizeIn(p *regexp.Regexp, data []byte) (units.Bytes, bool) {
	found := p.FindSubmatch(data)
	for i := 1; i+1 < len(found); i += 2 {
		if x, err := strconv.ParseFloat(string(found[i]), 64); err == nil {
			return units.Bytes(x * float64(unitOf(string(found[i+1])))), true
		}
	}
	return 0, false
}

// memoryInfo is what TensorFlow returns for a device.
var memoryInfo = regexp.MustCompile(`^\s*\{\s*['"](?:current|peak)['"]\s*:\s*\d+\s*,\s*['"](?:current|peak)['"]\s*:\s*\d+\s*\}\s*$`)

var memoryInfoPeak = regexp.MustCompile(`['"]peak['"]\s*:\s*(\d+)`)

func isMemoryInfo(_ string, data []byte) bool { return memoryInfo.Match(data) }

func readMemoryInfo(data []byte) (*Measured, error) {
	m := &Measured{}
	m.add("allocated", whole(memoryInfoPeak.FindSubmatch(data)[1]), 0, "tf.config.experimental.get_memory_info")
	return m, nil
}

// readChromeProfile reads the memory events of a trace that was exported with
// profile_memory: what the allocator held of device type 1, the GPU.
func readChromeProfile(data []byte) (*Measured, error) {
	var trace struct {
		Events []struct {
			Name string `json:"name"`
			Args struct {
				Allocated units.Bytes     `json:"Total Allocated"`
				Reserved  units.Bytes     `json:"Total Reserved"`
				Type      json.RawMessage `json:"Device Type"`
			} `json:"args"`
		} `json:"traceEvents"`
	}
	if err := json.Unmarshal(data, &trace); err != nil {
		return nil, fault.New(fault.Invalid, "the trace is no JSON: %v", err)
	}
	var allocated, reserved units.Bytes
	for _, e := range trace.Events {
		if e.Name == "[memory]" && strings.Trim(string(e.Args.Type), `"`) == "1" {
			allocated, reserved = max(allocated, e.Args.Allocated), max(reserved, e.Args.Reserved)
		}
	}
	m := &Measured{}
	m.add("allocated", allocated, 0, "torch.profiler")
	m.add("reserved", reserved, 0, "torch.profiler")
	return m, nil
}

// timeline is what export_memory_timeline writes as JSON: the times, and at each
// of them the sizes by category.
type timeline = [2][]json.RawMessage

func isTimeline(_ string, data []byte) bool {
	var t timeline
	return bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) && asJSON(data, &t) && len(t[0]) > 0 && len(t[0]) == len(t[1])
}

func readTimeline(data []byte) (*Measured, error) {
	var t timeline
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, fault.New(fault.Invalid, "the timeline is no JSON: %v", err)
	}
	most := units.Bytes(0)
	for _, row := range t[1] {
		var sizes []float64
		if err := json.Unmarshal(row, &sizes); err != nil {
			return nil, fault.New(fault.Invalid, "the timeline has no list of sizes at every time")
		}
		sum := 0.0
		for _, x := range sizes {
			sum += x
		}
		most = max(most, units.Bytes(sum))
	}
	m := &Measured{}
	m.add("tensor", most, 0, "torch.profiler, memory timeline")
	return m, nil
}

// smiColumn names the column of a query that holds the memory.
var smiColumn = regexp.MustCompile(`(?i)memory\.used|used_gpu_memory|used_memory`)

func isSMI(_ string, data []byte) bool {
	first, _, _ := bytes.Cut(bytes.TrimSpace(data), []byte("\n"))
	return bytes.Contains(first, []byte(",")) && smiColumn.Match(first) || bytes.Equal(bytes.TrimSpace(first), []byte("memory.used [MiB]"))
}

// readSMI reads what nvidia-smi writes of a query with --format=csv: the most
// any one process held, or of a query of the GPU, the device. Samples miss what
// lies between them.
func readSMI(data []byte) (*Measured, error) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	column, method, most := -1, "", units.Bytes(0)
	for lines.Scan() {
		cells := strings.Split(lines.Text(), ",")
		if column < 0 {
			for i, c := range cells {
				if smiColumn.MatchString(c) {
					column, method = i, "nvidia-smi, samples of the device"
					if !strings.Contains(c, "memory.used") {
						method = "nvidia-smi, samples of the process"
					}
				}
			}
			continue
		}
		if column < len(cells) {
			n, _, _ := strings.Cut(strings.TrimSpace(cells[column]), " ")
			if x, err := strconv.ParseInt(n, 10, 64); err == nil {
				most = max(most, units.Bytes(x)*units.MiB)
			}
		}
	}
	m := &Measured{}
	m.add("process", most, units.MiB, method)
	return m, lines.Err()
}

// add notes a size that was measured; none where it is nothing.
func (m *Measured) add(metric string, b, rounding units.Bytes, method string) {
	if b > 0 {
		m.Figures = append(m.Figures, Figure{Metric: metric, Bytes: b, Relation: "equals", Rounding: rounding, Method: method})
	}
}

func whole(digits []byte) units.Bytes {
	n, _ := strconv.ParseInt(string(digits), 10, 64) // what overflows is no size
	return units.Bytes(n)
}
