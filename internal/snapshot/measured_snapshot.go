package snapshot

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"memplan/internal/estimator/allocator"
	"memplan/internal/fault"
	"memplan/internal/units"
)

// isPickle knows protocol 2 and later by its first byte.
func isPickle(_ string, data []byte) bool { return len(data) > 1 && data[0] == 0x80 && data[1] <= 5 }

// traced is one entry of a device's history.
type traced struct {
	Event   string `json:"event"`
	Address int64  `json:"address"`
	Bytes   int64  `json:"bytes"`
	Stream  int64  `json:"stream"`

	category string
}

// readSnapshot reads a memory snapshot: the history of the first device that has
// one. What was alive before the history began is known from what is alive at
// its end. The peaks are of the history; of a snapshot without one, of its end.
func readSnapshot(data []byte) (*Measured, error) {
	v, err := unpickle(data)
	if err != nil {
		return nil, err
	}
	root, ok := v.(map[string]any)
	if !ok || root["segments"] == nil {
		return nil, fault.New(fault.Invalid, "the pickle is no memory snapshot: it has no segments")
	}
	h := newHistory(root)
	m := &Measured{ByCategory: h.byCategory()}
	m.add("requested", units.Bytes(h.peakRequested), 0, "memory snapshot")
	m.add("reserved", units.Bytes(h.peakReserved), 0, "memory snapshot")
	replayed, err := h.replay()
	if err != nil {
		return nil, err
	}
	m.Replayed = replayed
	// Torch's history has sizes as they were asked for; whole blocks are what
	// the allocator makes of them.
	m.add("allocated", replayed.Allocated, 0, "memory snapshot, replayed")
	return m, nil
}

// history is a device's traffic, with what was alive before it put in front.
type history struct {
	events        []traced
	at            map[string]int64 // by category at the peak
	peakRequested int64
	peakReserved  int64
}

func newHistory(root map[string]any) *history {
	h := &history{}
	device := int64(0)
	for i, t := range items(root["device_traces"]) {
		if list := items(t); len(list) > 0 {
			device = int64(i)
			for _, e := range list {
				h.entry(e)
			}
			break
		}
	}
	alive, seen := h.atEnd(), h.segmentsSeen()
	var before []traced
	for _, s := range items(root["segments"]) {
		segment, _ := s.(map[string]any)
		if integer(segment["device"]) != device {
			continue
		}
		size := integer(segment["total_size"])
		if !within(seen, integer(segment["address"]), size) {
			before = append(before, traced{Event: "segment_alloc", Address: integer(segment["address"]), Bytes: size, Stream: integer(segment["stream"])})
		}
		at := integer(segment["address"])
		for _, b := range items(segment["blocks"]) {
			block, _ := b.(map[string]any)
			if a, ok := block["address"]; ok {
				at = integer(a)
			}
			if block["state"] == "active_allocated" && !alive[at] {
				before = append(before, traced{
					Event: "alloc", Address: at, Bytes: cmp.Or(integer(block["requested_size"]), integer(block["size"])),
					Stream: integer(segment["stream"]), category: categoryOf(block),
				})
			}
			at += integer(block["size"])
		}
	}
	h.events = append(before, h.events...)
	h.follow()
	return h
}

// entry notes one entry of a device's history; those of other kinds are left
// out.
func (h *history) entry(e any) {
	x, _ := e.(map[string]any)
	action, _ := x["action"].(string)
	switch action {
	case "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom":
	default:
		return
	}
	h.events = append(h.events, traced{
		Event: action, Address: integer(x["addr"]), Bytes: integer(x["size"]), Stream: integer(x["stream"]), category: categoryOf(x),
	})
}

// atEnd is what the history says is alive at its end.
func (h *history) atEnd() map[int64]bool {
	alive := map[int64]bool{}
	for _, e := range h.events {
		switch e.Event {
		case "alloc":
			alive[e.Address] = true
		case "free_completed":
			delete(alive, e.Address)
		}
	}
	return alive
}

// segmentsSeen are the addresses at which the history took memory, in order.
func (h *history) segmentsSeen() []int64 {
	var seen []int64
	for _, e := range h.events {
		if e.Event == "segment_alloc" || e.Event == "segment_map" {
			seen = append(seen, e.Address)
		}
	}
	slices.Sort(seen)
	return seen
}

// within says whether one of the addresses lies in a segment.
func within(seen []int64, address, size int64) bool {
	i, _ := slices.BinarySearch(seen, address)
	return i < len(seen) && seen[i] < address+max(size, 1)
}

// follow finds the peaks. A block that is freed and was never seen to come was
// alive before.
func (h *history) follow() {
	type block struct {
		bytes    int64
		category string
	}
	live, total, reserved := map[int64]block{}, map[string]int64{}, int64(0)
	var before []traced
	known := map[int64]bool{}
	for _, e := range h.events {
		switch {
		case e.Event == "alloc":
			known[e.Address] = true
		case e.Event == "free_requested" && !known[e.Address]:
			before = append(before, traced{Event: "alloc", Address: e.Address, Bytes: e.Bytes, Stream: e.Stream, category: e.category})
			known[e.Address] = true
		}
	}
	h.events = append(before, h.events...)
	sum := int64(0)
	for _, e := range h.events {
		switch e.Event {
		case "alloc":
			live[e.Address] = block{e.Bytes, e.category}
			total[e.category] += e.Bytes
			if sum += e.Bytes; sum > h.peakRequested {
				h.peakRequested, h.at = sum, maps.Clone(total)
			}
		case "free_completed":
			b := live[e.Address]
			delete(live, e.Address)
			total[b.category] -= b.bytes
			sum -= b.bytes
		case "segment_alloc", "segment_map":
			reserved += e.Bytes
			h.peakReserved = max(h.peakReserved, reserved)
		case "segment_free", "segment_unmap":
			reserved -= e.Bytes
		}
	}
}

// byCategory is what was alive at the peak, largest first.
func (h *history) byCategory() []Share {
	var all []Share
	for _, c := range slices.Sorted(maps.Keys(h.at)) {
		if h.at[c] > 0 {
			all = append(all, Share{c, units.Bytes(h.at[c])})
		}
	}
	slices.SortStableFunc(all, func(a, b Share) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return all
}

// replay sends the traffic through the simulated allocator.
func (h *history) replay() (Replayed, error) {
	text, err := json.Marshal(map[string]any{"events": h.events})
	if err != nil {
		return Replayed{}, fault.Wrap(fault.Internal, "snapshot: encode history", err)
	}
	trace, err := allocator.ReadTrace(bytes.NewReader(text))
	if err != nil {
		return Replayed{}, fault.New(fault.Invalid, "the snapshot's history contradicts itself: %v", err)
	}
	a := allocator.New(allocator.Config{})
	if err := a.Run(trace.Program, nil); err != nil {
		return Replayed{}, fault.New(fault.Invalid, "the snapshot's history cannot be replayed: %v", err)
	}
	s := a.Stats()
	return Replayed{Allocated: s.Allocated.Peak, Reserved: s.Reserved.Peak}, nil
}

// categoryOf says what a block is for: as memplan's own snapshots say it, or by
// the stack that made it.
func categoryOf(x map[string]any) string {
	if c, ok := x["category"].(string); ok && c != "unknown" {
		return coarse(c)
	}
	named := ""
	for _, f := range items(x["frames"]) {
		frame, _ := f.(map[string]any)
		file, _ := frame["filename"].(string)
		name, _ := frame["name"].(string)
		switch {
		case strings.Contains(file, "torch/optim/"), strings.Contains(file, "bitsandbytes/optim"):
			return "optimizer"
		case strings.Contains(file, "torch/autograd/graph.py"), strings.Contains(file, "torch/_tensor.py") && name == "backward":
			return "backward"
		case strings.Contains(file, "torch/nn/modules/module.py") && (name == "_apply" || name == "convert" || name == "to"):
			return "parameters"
		case name == "forward" || strings.Contains(file, "torch/nn/functional.py"):
			named = cmp.Or(named, "forward")
		}
	}
	return cmp.Or(named, "other")
}

// coarse is the category of a breakdown in the words that a stack tells apart.
func coarse(category string) string {
	switch category {
	case "parameters", "adapters", "master_weights", "resident_modules":
		return "parameters"
	case "optimizer":
		return "optimizer"
	case "gradients", "buckets":
		return "backward"
	case "activations", "logits", "temporaries":
		return "forward"
	}
	return "other"
}

// Coarse puts a breakdown into the categories of a memory snapshot: those that
// lie outside the allocator are left out.
func Coarse(category string) (string, bool) {
	switch category {
	case "context", "communication", "fragmentation", "rounding":
		return "", false
	}
	return coarse(category), true
}

func items(v any) []any {
	list, _ := v.([]any)
	return list
}

func integer(v any) int64 {
	n, _ := v.(int64)
	return n
}
