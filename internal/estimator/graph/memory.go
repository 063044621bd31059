package graph

import "memplan/internal/estimator/allocator"

// Memory is what a machine works in. It may be handed to one machine after
// another, never to two at a time, so that a service answers without asking
// the runtime for the same megabytes again and again. A machine's events and
// origins are gone once the next one has its memory.
type Memory struct {
	events   arena[allocator.Event]
	tensors  arena[Tensor]
	nodes    arena[Node]
	storages []storage
	made     []Origin
}

// reset makes the memory empty again.
func (m *Memory) reset() {
	m.events.reset()
	m.tensors.reset()
	m.nodes.reset()
	m.storages = m.storages[:0]
	clear(m.made)
	m.made = m.made[:0]
}

// arena hands out stretches of one type, all of them zero, and takes them back
// together.
type arena[T any] struct {
	chunks [][]T
	chunk  int // the one in use
	used   int // of it
}

// take returns n zero values.
func (a *arena[T]) take(n int) []T {
	for ; a.chunk < len(a.chunks); a.chunk, a.used = a.chunk+1, 0 {
		if c := a.chunks[a.chunk]; len(c)-a.used >= n {
			a.used += n
			return c[a.used-n : a.used : a.used]
		}
	}
	a.chunks = append(a.chunks, make([]T, max(n, expected)))
	a.used = n
	return a.chunks[a.chunk][:n:n]
}

// reset takes everything back and wipes what was used.
func (a *arena[T]) reset() {
	for i := 0; i <= a.chunk && i < len(a.chunks); i++ {
		clear(a.chunks[i])
	}
	a.chunk, a.used = 0, 0
}
