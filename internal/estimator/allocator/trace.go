package allocator

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"memplan/internal/units"
)

// Trace is what torch's own allocator did in a run: the program that reached
// it, and what it answered, to compare a replay with.
type Trace struct {
	Program   Program  // one part of all events; first another, of what was alive before, if there was any
	Sites     []string // the source line of Event.Site
	Addresses []int64  // of each event of the last part: where torch put an Alloc; 0 for others
	Segments  []TracedSegment
	Marks     []TracedMark // of the Mark events, whose Site is the index here
}

// TracedSegment is one piece of traffic with the driver.
type TracedSegment struct {
	Op      SegmentOp
	Address int64
	Bytes   units.Bytes
	Index   int // of the event it served, in the last part
}

// TracedMark is a boundary at which torch's counters were read.
type TracedMark struct {
	Part      string
	Step      int // -1 outside a step
	Allocated units.Bytes
	Reserved  units.Bytes // peak since the previous mark
}

// record is one line of a trace file.
type record struct {
	Event          string `json:"event"`
	Address        int64  `json:"address"`
	Bytes          int64  `json:"bytes"`
	Stream         int64  `json:"stream"`
	At             string `json:"at"`
	Part           string `json:"part"`
	Step           *int   `json:"step"`
	AllocatedBytes int64  `json:"allocated_bytes"`
	ReservedBytes  int64  `json:"reserved_bytes"`
}

// ReadTrace reads a trace of torch's memory history: an object whose "events"
// are objects with "event", the action of torch's trace entry (alloc,
// free_requested, free_completed, segment_alloc, segment_free, segment_map,
// segment_unmap, oom), "address", "bytes", "stream" and, optionally, "at". Of
// its own it knows "mark", which ends a "part" of a "step" and carries
// "allocated_bytes" and "reserved_bytes" (the peak), and the calls that
// torch does not record: "record_stream" with "address" and "stream", and
// "empty_cache".
//
// Where those are missing they are inferred. A free that is not completed at
// once had uses on another stream. Segments given back without need, the next
// one having had room beside them, were given back by an empty_cache; the
// object's "explicit" set to true says that all such calls are recorded and
// nothing is to be inferred, as traces under a garbage collection threshold
// require. An allocation that failed leaves an empty_cache, which is what the
// attempt did to the cache.
func ReadTrace(r io.Reader) (*Trace, error) {
	var file struct {
		Explicit bool     `json:"explicit"`
		Events   []record `json:"events"`
	}
	if err := json.NewDecoder(r).Decode(&file); err != nil {
		return nil, fmt.Errorf("read allocator trace: %w", err)
	}
	t := newTracer(file.Explicit, file.Events)
	for i := range file.Events {
		if err := t.read(i); err != nil {
			return nil, fmt.Errorf("read allocator trace: event %d: %w", i, err)
		}
	}
	return t.finish(), nil
}

// foreign stands for the unnamed stream of an inferred use.
const foreign = MaxStreams - 1

// tracer turns records into events.
type tracer struct {
	in       []record
	explicit bool
	out      Trace
	events   []Event
	before   []Event // what was alive when the trace began

	storage map[int64]int32 // living, by address
	used    map[int64]bool  // with a recorded use
	spare   []int32
	next    int32
	streams map[int64]uint8
	sites   map[string]int32

	reserved int64
	highest  int64 // peak of reserved over the whole trace: the device has at least that
	released int64 // by the latest records in a row
	emptying bool  // the latest other record is an empty_cache
}

func newTracer(explicit bool, in []record) *tracer {
	t := &tracer{
		in: in, explicit: explicit,
		storage: map[int64]int32{}, used: map[int64]bool{},
		streams: map[int64]uint8{}, sites: map[string]int32{},
	}
	now := int64(0)
	var streams []int64
	for i := range in {
		now += in[i].reserves()
		t.highest = max(t.highest, now)
		streams = append(streams, in[i].Stream)
	}
	slices.Sort(streams) // torch orders its pools by the handles; 0 is the default stream
	for i, s := range slices.Compact(streams) {
		t.streams[s] = uint8(min(i, foreign))
	}
	return t
}

// reserves is what a record adds to the memory taken from the driver.
func (r *record) reserves() int64 {
	switch r.Event {
	case "segment_alloc", "segment_map":
		return r.Bytes
	case "segment_free", "segment_unmap":
		return -r.Bytes
	}
	return 0
}

var segmentOps = map[string]SegmentOp{
	"segment_alloc": SegmentAlloc, "segment_free": SegmentFree,
	"segment_map": SegmentMap, "segment_unmap": SegmentUnmap,
}

func (t *tracer) read(i int) error {
	r := &t.in[i]
	if op, ok := segmentOps[r.Event]; ok {
		t.segment(r, op)
		return nil
	}
	stream := t.streams[r.Stream]
	if stream == foreign {
		return fmt.Errorf("more than %d streams", foreign)
	}
	if r.Event != "free_completed" {
		t.settle(false)
		t.emptying = r.Event == "empty_cache"
	}
	switch r.Event {
	case "alloc":
		return t.alloc(r, stream)
	case "free_requested":
		t.free(i, stream)
	case "free_completed": // the model completes frees by itself
	case "record_stream":
		t.used[r.Address] = true
		t.emit(Event{Kind: UseOn, Stream: stream, Block: t.living(r.Address, 0, 0)}, 0)
	case "empty_cache", "oom":
		t.emit(Event{Kind: EmptyCache}, 0)
	case "mark":
		t.mark(r)
	default:
		return fmt.Errorf("unknown event %q", r.Event)
	}
	return nil
}

// segment notes traffic with the driver. It serves the event that comes next,
// unless memory came back that did not have to.
func (t *tracer) segment(r *record, op SegmentOp) {
	if op == SegmentAlloc || op == SegmentMap {
		t.settle(t.reserved+t.released+r.Bytes > t.highest)
	} else {
		t.released += r.Bytes
	}
	t.reserved += r.reserves()
	served := len(t.events)
	if t.emptying && t.released > 0 {
		served--
	}
	t.out.Segments = append(t.out.Segments, TracedSegment{op, r.Address, units.Bytes(r.Bytes), served})
}

// settle decides what the latest releases were for: the miss that follows, if
// it had no room otherwise, or nothing but an empty_cache.
func (t *tracer) settle(needed bool) {
	if t.released > 0 && !needed && !t.explicit && !t.emptying {
		t.emit(Event{Kind: EmptyCache}, 0)
	}
	t.released = 0
}

func (t *tracer) emit(e Event, address int64) {
	t.events = append(t.events, e)
	t.out.Addresses = append(t.out.Addresses, address)
}

func (t *tracer) site(at string) int32 {
	s, ok := t.sites[at]
	if !ok {
		s = int32(len(t.out.Sites))
		t.sites[at] = s
		t.out.Sites = append(t.out.Sites, at)
	}
	return s
}

func (t *tracer) alloc(r *record, stream uint8) error {
	if _, ok := t.storage[r.Address]; ok {
		return fmt.Errorf("address %d is allocated twice", r.Address)
	}
	id := t.newStorage(r.Address)
	t.emit(Event{Kind: Alloc, Stream: stream, Block: id, Site: t.site(r.At), Bytes: r.Bytes}, r.Address)
	return nil
}

func (t *tracer) newStorage(address int64) int32 {
	id := t.next
	if n := len(t.spare); n > 0 {
		id, t.spare = t.spare[n-1], t.spare[:n-1]
	} else {
		t.next++
	}
	t.storage[address] = id
	return id
}

// living returns the storage at an address. One that the trace did not see
// coming was there before it.
func (t *tracer) living(address, bytes int64, stream uint8) int32 {
	if id, ok := t.storage[address]; ok {
		return id
	}
	id := t.next // no spare one: those were alive in between
	t.next++
	t.storage[address] = id
	t.before = append(t.before, Event{Kind: Alloc, Stream: stream, Block: id, Bytes: bytes})
	return id
}

// free ends a storage. One whose memory is not back with the next record
// waits for another stream.
func (t *tracer) free(i int, stream uint8) {
	r := &t.in[i]
	id := t.living(r.Address, r.Bytes, stream)
	done := i+1 < len(t.in) && t.in[i+1].Event == "free_completed" && t.in[i+1].Address == r.Address
	if !done && !t.used[r.Address] {
		t.emit(Event{Kind: UseOn, Stream: foreign, Block: id}, 0)
	}
	t.emit(Event{Kind: Free, Stream: stream, Block: id}, 0)
	delete(t.storage, r.Address)
	delete(t.used, r.Address)
	t.spare = append(t.spare, id)
}

func (t *tracer) mark(r *record) {
	m := TracedMark{Part: r.Part, Step: -1, Allocated: units.Bytes(r.AllocatedBytes), Reserved: units.Bytes(r.ReservedBytes)}
	if r.Step != nil {
		m.Step = *r.Step
	}
	t.emit(Event{Kind: Mark, Site: int32(len(t.out.Marks))}, 0)
	t.out.Marks = append(t.out.Marks, m)
}

func (t *tracer) finish() *Trace {
	t.settle(false)
	if len(t.before) > 0 {
		t.out.Program = append(t.out.Program, Part{Events: t.before})
	}
	t.out.Program = append(t.out.Program, Part{Events: t.events})
	return &t.out
}
