// Package allocator is a model of PyTorch's native CUDA caching allocator
// (c10/cuda/CUDACachingAllocator.cpp), exact to the byte: which block serves
// which request, what stays behind, what is asked of the driver, and when
// memory is exhausted. It knows events and sizes, and nothing of models.
//
// # What is modelled
//
// A request is rounded up to 512 bytes. Up to 1 MiB it belongs to the small
// pool, whose segments are 2 MiB; above, to the large pool, where requests
// under 10 MiB share segments of 20 MiB and larger ones get a segment of their
// own, rounded to 2 MiB. Each stream has its own two pools. A request takes
// the smallest free block that holds it; among equals that of the oldest
// segment, and in it the lowest address. What is left of the block stays free
// if it is at least 512 bytes (small pool) or more than 1 MiB (large pool);
// otherwise the whole block is handed out, which is why allocated exceeds
// requested. A freed block merges with its free neighbours.
//
// A miss asks the driver for a segment. Where the driver has no more, in
// order: max_split_size_mb lets go of oversize blocks, then all segments that
// are wholly free go back and the request is tried once more (a retry), then
// memory is exhausted. A segment with one living block stays: that is
// fragmentation. With a memory fraction and garbage_collection_threshold, old
// free segments go back before the driver is asked.
//
// Expandable segments are modelled as ranges of addresses, one for each pool
// and stream, of which pages of 2 or 20 MiB are mapped as they are needed, at
// the lowest place that has room, and unmapped where they are wholly free
// when memory is short.
//
// A block that other streams use (UseOn) is parked when it is freed: no longer
// allocated, but active, until those uses are over, which an allocation
// notices. How soon is not a matter of the allocator: Config.EventLag.
//
// The driver gives a segment the lowest free address. On a real card addresses
// are of the driver's choosing, and since spring 2026 PyTorch's choices do not
// depend on them; older versions break ties by address
// (Config.TiesByAddress), and there reserved can differ by a tie.
//
// # What it runs on
//
// A Program is a tree of parts with repetitions. The allocator's whole state
// can be compared, so a repetition that changes nothing any more ends a loop
// early without changing the answer. Marks cut the run into windows of peaks.
// ReadTrace makes a program of what a real run did.
//
// # How it is proved
//
// Traces of real PyTorch in testdata are replayed: jobs and random stress,
// under every option and under pressure, on torch 2.15 and 2.6. Bytes at every
// mark, traffic with the driver and the address of every block are equal.
//
// # Required capacity
//
// A cache fills what it is given, so what a run reserves says little about
// what it needs. Required looks for the smallest capacity at which a program
// completes. It replays under the least thinkable capacity, raising it only
// where even a released cache leaves no room, then verifies, and bisects what
// is left between. The verified answer is never too small. Against a trial of
// every capacity it was exact on the real jobs in testdata and on 99 of 100
// programs or more of random churn (TestRequiredAgainstEveryCapacity); with two
// replays instead of eight it was 4 % too large there in the mean. Completing is
// not monotone in capacity: a larger card can fail where a smaller one had to
// release its cache earlier, in a better moment.
//
// # What is not modelled
//
// The cudaMallocAsync backend, private pools (CUDA graphs, MemPool), free
// memory callbacks, per-process memory that PyTorch did not allocate, and the
// time any of it takes. A request that failed and was caught is not an event:
// its effect on the cache is that of EmptyCache.
package allocator
