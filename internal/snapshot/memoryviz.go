package snapshot

import (
	"bufio"
	"cmp"
	"strings"

	"memplan/internal/estimator"
	"memplan/internal/estimator/allocator"
)

// writeMemoryViz writes what torch.cuda.memory._snapshot() returns in a process
// that recorded its memory history from the start: all traffic of device 0, and
// the segments as they are at the end. A moment's time in microseconds is its
// event's index. Stacks are what made a storage instead of Python's: operation,
// modules from the inside out, part, phase.
func writeMemoryViz(w *bufio.Writer, r *estimator.Recording) error {
	v := &visualised{}
	return pickle(w, dict{
		{"device_traces", []any{v.trace(r)}},
		{"segments", later(v.segments)},
		{"allocator_settings", allocatorSettings(r.Allocator)},
		{"external_annotations", later(func() any { return v.annotations })},
	})
}

// visualised follows the events while they are written.
type visualised struct {
	layout
	annotations []any
	began       int // the event with which the present part began
}

// trace is device_traces[0].
func (v *visualised) trace(r *estimator.Recording) list {
	return func(yield func(any) bool) {
		for e := range r.Events() {
			v.enter(&e)
			if e.Action == "mark" {
				v.annotate(&e)
				continue
			}
			for _, action := range tracedAs(e.Action) {
				if !yield(entry(&e, action)) {
					return
				}
			}
		}
	}
}

// tracedAs are torch's entries for an event: none for what its history does not
// record. A free is complete at once: blocks are not reused before it is.
func tracedAs(action string) []string {
	switch action {
	case "free":
		return []string{"free_requested", "free_completed"}
	case "alloc", "segment_alloc", "segment_free", "segment_map", "segment_unmap":
		return []string{action}
	}
	return nil
}

// entry is one entry of a trace. Torch's own has no category, but MemoryViz.js
// colours by it. It then adds the category "unknown" for what has none, by a
// misspelt name that ends the page; so somebody must have that category, and
// traffic with the driver is in no plot of tensors.
func entry(e *estimator.TraceEvent, action string) dict {
	return dict{
		{"action", action},
		{"addr", e.Address},
		{"size", int64(e.Bytes)},
		{"stream", int(e.Stream)},
		{"time_us", e.Event},
		{"category", cmp.Or(e.Category, "unknown")},
		{"frames", frames(e)},
	}
}

// origin identifies a stack.
type origin struct{ module, op, source, part, phase string }

// frames is what made an event's storage, as a stack, the innermost first.
func frames(e *estimator.TraceEvent) shared {
	o := origin{e.Module, e.Op, e.Source, e.Part, e.Phase}
	return shared{o, func() any {
		var stack []any
		if o.op != "" {
			stack = append(stack, frame(o.op, cmp.Or(o.source, "op")))
		}
		for path := o.module; path != ""; {
			stack = append(stack, frame(path, "module"))
			path = path[:max(strings.LastIndexByte(path, '.'), 0)]
		}
		if o.part != "" {
			stack = append(stack, frame(o.part, "part"))
		}
		return append(stack, frame(o.phase, "phase"))
	}}
}

// frame is one line of a stack.
func frame(name, file string) shared {
	return shared{[2]string{name, file}, func() any { return dict{{"name", name}, {"filename", file}, {"line", 0}} }}
}

// annotate notes the part that a mark ends.
func (v *visualised) annotate(mark *estimator.TraceEvent) {
	name := strings.TrimSuffix(mark.Phase+"/"+mark.Part, "/")
	for _, x := range []struct {
		stage string
		at    int
	}{{"START", v.began}, {"END", mark.Event}} {
		v.annotations = append(v.annotations, dict{{"stage", x.stage}, {"name", name}, {"device", 0}, {"time_us", x.at}})
	}
	v.began = mark.Event
}

// allocatorSettings are the settings the replay knows, by torch's names.
func allocatorSettings(c allocator.Config) dict {
	split := int64(-1)
	if c.MaxSplitSize > 0 {
		split = int64(c.MaxSplitSize)
	}
	return dict{
		{"max_split_size", split},
		{"garbage_collection_threshold", c.GarbageCollectionThreshold},
		{"expandable_segments", c.ExpandableSegments},
	}
}
