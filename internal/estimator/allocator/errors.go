package allocator

import (
	"fmt"

	"memplan/internal/units"
)

// Place is where in a program something happened.
type Place struct {
	Part  int32 // Label of the innermost part
	Index int   // of the event in that part
	Round int   // which repetition of that part, from 0
	Event Event
}

// OOM ends a run whose next block found no memory, after the whole cache was
// released.
type OOM struct {
	Place
	Requested units.Bytes // as asked for
	Segment   units.Bytes // what the driver refused: the text "Tried to allocate" of torch
	Allocated units.Bytes // at that moment
	Reserved  units.Bytes
	Capacity  units.Bytes
}

// Error says what was asked for and what was there.
func (e *OOM) Error() string {
	return fmt.Sprintf("out of memory: tried to allocate %v with %v reserved of %v, %v of it allocated (part %d, event %d)",
		e.Segment, e.Reserved, e.Capacity, e.Allocated, e.Part, e.Index)
}

// ProgramError is an event that no training step can emit: a defect of
// whatever made the program.
type ProgramError struct {
	Place
	Problem string
}

// Error names the event and what is wrong with it.
func (e *ProgramError) Error() string {
	return fmt.Sprintf("bad program: %v of storage %d: %s (part %d, event %d)",
		e.Event.Kind, e.Event.Block, e.Problem, e.Part, e.Index)
}
