package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"memplan/internal/fault"
)

// Limits on an input, against texts made to exhaust the reader.
const (
	MaxBytes = 8 << 20 // of text; a model given as a trace is the largest
	maxDepth = 64      // of nesting
	maxNodes = 400_000 // of values, YAML aliases counted as often as used
)

// jsonReader turns JSON text into nodes.
type jsonReader struct {
	data  []byte
	dec   *json.Decoder
	nodes int
	seen  int // bytes before this one are counted in pos
	pos   Position
	found *Invalid
}

// readJSON reads one JSON value. Duplicate keys are noted in found, with the
// first value kept; text that is not JSON at all is an error.
func readJSON(data []byte, found *Invalid) (*node, error) {
	if err := checkText(data); err != nil {
		return nil, err
	}
	r := &jsonReader{data: data, dec: json.NewDecoder(bytes.NewReader(data)), pos: Position{1, 1}, found: found}
	r.dec.UseNumber()
	n, err := r.value("", 0)
	if err != nil {
		return nil, r.explain(err)
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, notOne(r.position(), "the end of the text after one JSON value")
	}
	return n, nil
}

// checkText refuses what no notation allows.
func checkText(data []byte) error {
	if len(data) > MaxBytes {
		return fault.New(fault.TooLarge, "the job is %d bytes of text; %d are read at most", len(data), MaxBytes)
	}
	if !utf8.Valid(data) {
		return notOne(Position{}, "text in UTF-8")
	}
	return nil
}

// notOne is the error of a text that holds no job at all.
func notOne(pos Position, want string) error {
	e := &Invalid{}
	e.add("job", pos, "", want, "")
	return e
}

// errLimit ends reading where a limit was passed.
type errLimit string

func (e errLimit) Error() string { return string(e) }

// explain places a syntax error.
func (r *jsonReader) explain(err error) error {
	var limit errLimit
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &limit):
		return notOne(r.position(), string(limit))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return notOne(r.position(), "a complete JSON value: the text ends before it does")
	case errors.As(err, &syntax):
		return notOne(r.position(), "JSON: "+syntax.Error())
	}
	return notOne(r.position(), "JSON: "+err.Error())
}

// position is the line and column reading has come to.
func (r *jsonReader) position() Position {
	end := min(int(r.dec.InputOffset()), len(r.data))
	gap := r.data[r.seen:end]
	if lines := bytes.Count(gap, []byte("\n")); lines > 0 {
		r.pos.Line += lines
		r.pos.Column = len(gap) - bytes.LastIndexByte(gap, '\n')
	} else {
		r.pos.Column += len(gap)
	}
	r.seen = end
	return r.pos
}

// value reads the next value, which stands at path.
func (r *jsonReader) value(path string, depth int) (*node, error) {
	token, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	if r.nodes++; depth > maxDepth || r.nodes > maxNodes {
		return nil, errLimit(fmt.Sprintf("at most %d levels and %d values", maxDepth, maxNodes))
	}
	n := &node{pos: r.position()}
	switch t := token.(type) {
	case nil:
		n.kind, n.text = null, "null"
	case bool:
		n.kind, n.text = boolean, fmt.Sprint(t)
	case json.Number:
		n.kind, n.text = number, string(t)
	case string:
		n.kind, n.text = text, t
	case json.Delim:
		if t == '{' {
			return n, r.object(n, path, depth)
		}
		return n, r.list(n, path, depth)
	}
	return n, nil
}

func (r *jsonReader) list(n *node, path string, depth int) error {
	n.kind = list
	for i := 0; r.dec.More(); i++ {
		x, err := r.value(fmt.Sprintf("%s[%d]", path, i), depth+1)
		if err != nil {
			return err
		}
		n.items = append(n.items, x)
	}
	_, err := r.dec.Token()
	return err
}

func (r *jsonReader) object(n *node, path string, depth int) error {
	n.kind = object
	n.members = make([]member, 0, 8)
	keys := keySet{}
	for r.dec.More() {
		token, err := r.dec.Token()
		if err != nil {
			return err
		}
		key, pos := token.(string), r.position()
		value, err := r.value(join(path, key), depth+1)
		if err != nil {
			return err
		}
		if keys.has(n, key) {
			r.found.add(join(path, key), pos, value.describe(), "each key once", "")
			continue
		}
		n.members = append(n.members, member{key, pos, value})
	}
	_, err := r.dec.Token()
	return err
}

// keySet finds duplicate keys: by looking through a small object, and with a
// map in a large one.
type keySet struct{ large map[string]bool }

func (s *keySet) has(n *node, key string) bool {
	const small = 24
	if len(n.members) < small {
		return n.get(key) != nil
	}
	if s.large == nil {
		s.large = make(map[string]bool, 2*small)
		for _, m := range n.members {
			s.large[m.key] = true
		}
	}
	seen := s.large[key]
	s.large[key] = true
	return seen
}

// join extends a dotted path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
