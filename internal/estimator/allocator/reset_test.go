package allocator

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// An allocator that is new runs a program as one that was used before does,
// event for event, also where repetitions may end early.
func TestResetIsAsNew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := configs().Draw(t, "config")
		c.Settles = rapid.Bool().Draw(t, "settles")
		round := returned(steps(t, 40))
		p := Program{{Label: 1, Events: round}, {Label: 2, Repeat: 6, Events: round}}
		fresh, used := New(c), New(Config{})
		_ = used.Run(Program{{Events: steps(t, 40)}}, nil)
		used.Reset(c)
		a, b := fresh.Run(p, nil), used.Run(p, nil)
		require.Equal(t, a, b)
		require.Equal(t, fresh.Stats(), used.Stats())
		require.Equal(t, fresh.serial, used.serial)
	})
}

// returned is a list of events after which nothing is alive.
func returned(events []Event) []Event {
	alive := map[int32]bool{}
	var order []int32
	for _, e := range events {
		switch e.Kind {
		case Alloc:
			alive[e.Block] = true
			order = append(order, e.Block)
		case Free:
			delete(alive, e.Block)
		}
	}
	for _, b := range order {
		if alive[b] {
			events = append(events, Event{Kind: Free, Block: b})
		}
	}
	return events
}
