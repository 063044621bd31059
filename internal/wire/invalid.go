package wire

import (
	"fmt"
	"strings"

	"memplan/internal/fault"
)

// Invalid is everything wrong with one input. It unwraps to its fault.Fields,
// so that fault.KindOf and fault.FieldsOf see what they know; At adds where in
// the text each field stands.
type Invalid struct {
	Fields fault.Fields
	At     []Position // as long as Fields; zero where the place is unknown
}

// Error lists the fields in sentences, each with its line where that is known.
func (e *Invalid) Error() string {
	lines := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		lines[i] = f.String()
		if e.At[i].Line > 0 {
			lines[i] = fmt.Sprintf("line %d: %s", e.At[i].Line, lines[i])
		}
	}
	return strings.Join(lines, "; ")
}

// With is e and more fields, whose places are unknown.
func (e *Invalid) With(more fault.Fields) *Invalid {
	return &Invalid{
		Fields: append(e.Fields[:len(e.Fields):len(e.Fields)], more...),
		At:     append(e.At[:len(e.At):len(e.At)], make([]Position, len(more))...),
	}
}

// Unwrap returns the fields.
func (e *Invalid) Unwrap() error { return e.Fields }

// Location is where the i-th field stands, in words; empty where unknown.
func (e *Invalid) Location(i int) string {
	if i >= len(e.At) || e.At[i].Line == 0 {
		return ""
	}
	return fmt.Sprintf("line %d, column %d", e.At[i].Line, e.At[i].Column)
}

// maxFaults is how many wrong fields of one input are told; a text made of
// nothing but faults would take long to explain.
const maxFaults = 100

func (e *Invalid) add(path string, pos Position, got, want, nearest string) {
	if len(e.Fields) >= maxFaults {
		return
	}
	e.Fields = append(e.Fields, fault.Field{Path: path, Got: got, Want: want, Nearest: nearest})
	e.At = append(e.At, pos)
}

// under puts a key, or an index in brackets, before the paths of the faults
// from the first-th on.
func (e *Invalid) under(part string, first int) {
	for i := first; i < len(e.Fields); i++ {
		f := &e.Fields[i]
		if !strings.HasPrefix(f.Path, "[") {
			f.Path = "." + f.Path
		}
		f.Path = part + f.Path
	}
}

// err returns e, or nil when nothing is wrong.
func (e *Invalid) err() error {
	if len(e.Fields) == 0 {
		return nil
	}
	return e
}
