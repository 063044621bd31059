package allocator

// Kind says what an Event does.
type Kind uint8

// The kinds of events.
const (
	Alloc      Kind = iota // storage Block comes to life with Bytes on Stream
	Free                   // storage Block dies
	Recat                  // the bytes of Block are now for Category; the allocator does nothing
	UseOn                  // record_stream: Block is used by Stream and may be reused only when that use is over
	Resize                 // storage.resize_: Block has Bytes from now on; 0 frees them and keeps the storage
	EmptyCache             // torch.cuda.empty_cache
	Mark                   // a boundary: the watcher gets the statistics, and the peaks start anew
)

var kindNames = [...]string{"alloc", "free", "recat", "use_on", "resize", "empty_cache", "mark"}

// String returns the kind's name in lower case.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Event is one step of what a training step does to memory. It is 24 bytes
// long: a program holds tens of thousands of them.
type Event struct {
	Kind     Kind
	Stream   uint8 // CUDA stream of Alloc, UseOn and Resize; 0 is the current stream, MaxStreams bounds it
	Category uint8 // what the bytes are for (Alloc, Recat); opaque here
	Block    int32 // storage: dense, small, unique among the living
	Site     int32 // which op of which module; for Mark its code; opaque here
	Bytes    int64 // requested by Alloc, new size of Resize; not rounded
}

// Part is a stretch of a program: its Events, then its inner Parts, all of it
// Repeat times.
type Part struct {
	Label  int32 // the phase; opaque here
	Events []Event
	Parts  []Part
	// Repeat is how often the part runs; 0 is once. A repetition that ends
	// in the state it (or a recent one) began in proves the rest to be
	// copies, and those are not run: the answer is exact, and 128 micro
	// batches cost as much as a few.
	Repeat int
	// Carry renames storages after each repetition, all at once: what this
	// one made under From, the next one frees under To.
	Carry []Carry
}

// Carry says that storage From is known as To from the next repetition on.
type Carry struct{ From, To int32 }

// Program is a sequence of parts, run in order.
type Program []Part
