package snapshot

import (
	"bufio"
	"encoding/json"
	"fmt"

	"memplan/internal/estimator"
	"memplan/internal/units"
)

// chromeEvent is one event of Chrome's Trace Event Format.
type chromeEvent struct {
	Name  string         `json:"name"`
	Phase string         `json:"ph"`
	Time  int            `json:"ts"`
	Span  int            `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Scope string         `json:"s,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// The tracks of durations, from the top.
var tracks = [...]string{"phase", "part", "module"}

// writeChrome writes a Chrome trace. Its microseconds are indices of events;
// phases, parts and modules are durations, and the bytes are counters: allocated
// and reserved, and those of every category.
func writeChrome(w *bufio.Writer, r *estimator.Recording) error {
	c := &chrome{w: w, enc: json.NewEncoder(w), by: map[string]units.Bytes{}}
	_, _ = w.WriteString(`{"displayTimeUnit":"ms","otherData":{"engine":"memplan ` + r.Engine.Version + `","time":"index of the event"},"traceEvents":[` + "\n")
	c.put(chromeEvent{Name: "process_name", Phase: "M", Args: map[string]any{"name": "GPU memory, time in events"}})
	for i, name := range tracks {
		c.put(chromeEvent{Name: "thread_name", Phase: "M", TID: i, Args: map[string]any{"name": name}})
		c.put(chromeEvent{Name: "thread_sort_index", Phase: "M", TID: i, Args: map[string]any{"sort_index": i}})
	}
	for e := range r.Events() {
		c.event(&e)
		if c.err != nil {
			return c.err
		}
	}
	c.finish()
	_, _ = w.WriteString("]}\n")
	return c.err
}

// chrome follows the events while it writes.
type chrome struct {
	w    *bufio.Writer
	enc  *json.Encoder
	some bool
	err  error

	spans [len(tracks)]struct {
		name  string
		start int
	}
	by                  map[string]units.Bytes
	allocated, reserved units.Bytes
	peak                estimator.TraceEvent
	last                int
}

// put writes an event on a line of its own.
func (c *chrome) put(e chromeEvent) {
	if c.some {
		_, _ = c.w.WriteString(",")
	}
	c.some = true
	if err := c.enc.Encode(e); err != nil && c.err == nil {
		c.err = err
	}
}

func (c *chrome) event(e *estimator.TraceEvent) {
	c.last = e.Event
	c.span(0, e.Phase)
	c.span(1, partName(e))
	switch e.Action {
	case "alloc":
		c.span(2, e.Module)
		c.count(e.Category, e.Bytes)
	case "free":
		c.count(e.Category, -e.Bytes)
	case "change_category":
		c.count(e.FromCategory, -e.Bytes)
		c.count(e.Category, e.Bytes)
	}
	if e.Allocated != c.allocated || e.Reserved != c.reserved {
		c.allocated, c.reserved = e.Allocated, e.Reserved
		c.put(chromeEvent{Name: "memory", Phase: "C", Time: e.Event, Args: map[string]any{"allocated_bytes": e.Allocated, "reserved_bytes": e.Reserved}})
	}
	if e.Allocated > c.peak.Allocated {
		c.peak = *e
	}
}

// partName is what a part is called on its track; the load has none.
func partName(e *estimator.TraceEvent) string {
	if e.MicroBatch > 0 {
		return fmt.Sprintf("%s %d", e.Part, e.MicroBatch)
	}
	return e.Part
}

// count changes a category's counter.
func (c *chrome) count(category string, by units.Bytes) {
	c.by[category] += by
	c.put(chromeEvent{Name: "bytes of " + category, Phase: "C", Time: c.last, Args: map[string]any{"bytes": c.by[category]}})
}

// span goes on with a track, or ends what it shows when the name changes.
func (c *chrome) span(track int, name string) {
	s := &c.spans[track]
	if s.name == name {
		return
	}
	if s.name != "" {
		c.put(chromeEvent{Name: s.name, Phase: "X", Time: s.start, Span: c.last - s.start, TID: track})
	}
	s.name, s.start = name, c.last
}

// finish ends the tracks and points at the peak.
func (c *chrome) finish() {
	c.last++
	for track := range tracks {
		c.span(track, "")
	}
	p := c.peak
	c.put(chromeEvent{Name: "peak", Phase: "i", Scope: "g", Time: p.Event, Args: map[string]any{
		"allocated_bytes": p.Allocated, "reserved_bytes": p.Reserved, "phase": p.Phase, "part": p.Part, "module": p.Module, "op": p.Op,
	}})
}
