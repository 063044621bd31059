// Package queue wakes up workers for benchmarks through River, on Postgres and
// SQLite. It is planner.Queue, and the loop of a worker.
//
// A River job says only that a benchmark waits; the benchmark's own row says
// whether that is still so. Each card has a queue of its own, which only
// workers of its host listen to, and a worker takes one job of a queue at a
// time.
package queue
