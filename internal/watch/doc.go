// Package watch judges samples of a running process: whether its memory grows
// from step to step, when that ends, and how much of it is fragmentation. It is
// pure.
package watch
