// Package step turns a job into the stream of allocations that its training
// run makes: the model is built and moved to the card, a trainer's loop runs
// the first step and a steady one, and everything is written down as a program
// for the allocator.
//
// A trainer, an optimizer, a rewrite of the module tree (adapters) or a hook on
// it (data parallelism) is one file and one line in its registry.
package step
