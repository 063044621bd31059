// Package fault is the vocabulary of what can go wrong: a few kinds that every
// door maps to its own status, and field errors that name what was wrong with
// a job. Kinds are turned into HTTP statuses in one place and into exit codes
// in one other; no other package does either.
package fault

import (
	"errors"
	"fmt"
	"strings"
)

// Kind says what sort of failure an error is, for the doors to map.
type Kind uint8

// The kinds. Internal is the zero value: an error nobody classified.
const (
	Internal    Kind = iota // a defect or a failing dependency; the text stays in the log
	Invalid                 // the input is wrong; Fields say where
	NotFound                // the named thing does not exist
	Conflict                // the request contradicts the present state
	Forbidden               // the caller may not do this, or a policy refuses it
	Unavailable             // a dependency cannot be reached just now
	TooLarge                // the input is over a limit
)

var kindNames = [...]string{"internal", "invalid", "not_found", "conflict", "forbidden", "unavailable", "too_large"}

// String returns the kind's name as the wire spells it.
func (k Kind) String() string { return kindNames[k] }

// Error is a classified failure: the operation that failed, its kind, a text
// fit for a user, and the cause, which is not.
type Error struct {
	Op     string // "store: save estimate"
	Kind   Kind
	Text   string // shown to users; empty shows the kind
	Fields Fields // of an Invalid error
	Err    error  // logged, never shown
}

// Error joins what is set, for logs.
func (e *Error) Error() string {
	var parts []string
	for _, s := range []string{e.Op, e.Text} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	if len(e.Fields) > 0 {
		parts = append(parts, e.Fields.Error())
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	if len(parts) == 0 {
		return e.Kind.String()
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// New returns an error of a kind with a text for the user.
func New(k Kind, format string, args ...any) error {
	return &Error{Kind: k, Text: fmt.Sprintf(format, args...)}
}

// Wrap classifies err, keeping it as the cause. It returns nil for nil.
func Wrap(k Kind, op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Kind: k, Err: err}
}

// KindOf returns the kind of the outermost classified error in err's chain,
// Invalid for bare Fields, and Internal otherwise.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	var f Fields
	if errors.As(err, &f) {
		return Invalid
	}
	return Internal
}

// FieldsOf returns the field errors anywhere in err's chain.
func FieldsOf(err error) Fields {
	var f Fields
	if errors.As(err, &f) {
		return f
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Fields
	}
	return nil
}

// Field is one wrong value of a job: where it stands, what was there, what may
// stand there, and the nearest value that would do.
type Field struct {
	Path    string `json:"path"`              // training.micro_batch_size
	Got     string `json:"got,omitempty"`     // as the user wrote it
	Want    string `json:"want"`              // what is allowed, in words
	Nearest string `json:"nearest,omitempty"` // a valid value to use instead
}

// Fields is every wrong field of one input. A nil Fields is no error: return
// it through Err.
type Fields []Field

// Add appends a field error.
func (f *Fields) Add(path string, got any, want, nearest string) {
	*f = append(*f, Field{Path: path, Got: fmt.Sprint(got), Want: want, Nearest: nearest})
}

// Err returns f as an error, or nil when it is empty.
func (f Fields) Err() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

// Error lists the fields on one line.
func (f Fields) Error() string {
	lines := make([]string, len(f))
	for i, x := range f {
		lines[i] = x.String()
	}
	return strings.Join(lines, "; ")
}

// String is the sentence shown for one field.
func (x Field) String() string {
	s := x.Path + ": "
	if x.Got != "" {
		s += "got " + x.Got + ", "
	}
	s += "want " + x.Want
	if x.Nearest != "" {
		s += " (nearest: " + x.Nearest + ")"
	}
	return s
}
