// Package snapshot writes a run's events in the formats of other tools: as
// plain JSON, as the memory snapshot that torch.cuda.memory._dump_snapshot
// writes and https://pytorch.org/memory_viz shows, and as a Chrome trace for
// chrome://tracing and https://ui.perfetto.dev. All are written as the events
// come: a trace of a large model has more of them than one wants to hold.
package snapshot
