package allocator_test

import (
	"fmt"

	"memplan/internal/estimator/allocator"
)

// A training loop of 128 micro batches in miniature: the activations of one
// are freed as those of the next begin.
func Example() {
	micro := allocator.Part{
		Repeat: 128,
		Events: []allocator.Event{
			{Kind: allocator.Alloc, Block: 2, Bytes: 30 << 20}, // activations
			{Kind: allocator.Free, Block: 1},                   // the previous loss
			{Kind: allocator.Alloc, Block: 3, Bytes: 4},        // this one's
			{Kind: allocator.Free, Block: 2},
		},
		Carry: []allocator.Carry{{From: 3, To: 1}},
	}
	program := allocator.Program{
		{Events: []allocator.Event{
			{Kind: allocator.Alloc, Block: 0, Bytes: 100 << 20}, // weights
			{Kind: allocator.Alloc, Block: 1, Bytes: 0},         // no loss yet
		}},
		micro,
	}
	config := allocator.Config{}
	a := allocator.New(config)
	if err := a.Run(program, nil); err != nil {
		fmt.Println(err)
	}
	s := a.Stats()
	required, err := a.RequiredAfter(config, program, s, 0)
	fmt.Println(s.Allocated.Peak, s.Reserved.Peak, required, err)
	// Output: 130 MiB 132 MiB 132 MiB <nil>
}
