package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

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
	dec   *jsontext.Decoder
	nodes int
	end   int // of the token last read
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
	dec := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true))
	r := &jsonReader{data: data, dec: dec, pos: Position{1, 1}, found: found}
	n, err := r.value(0)
	if err != nil {
		return nil, r.explain(err)
	}
	if _, pos, err := r.next(); !errors.Is(err, io.EOF) {
		return nil, notOne(pos, "the end of the text after one JSON value")
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
	var syntax *jsontext.SyntacticError
	switch {
	case errors.As(err, &limit):
		return notOne(r.pos, string(limit))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return notOne(r.place(len(r.data)), "a complete JSON value: the text ends before it does")
	case errors.As(err, &syntax):
		return notOne(r.place(int(syntax.ByteOffset)), "JSON: "+syntax.Err.Error())
	}
	return notOne(r.pos, "JSON: "+strings.TrimPrefix(err.Error(), "jsontext: "))
}

// next reads a token, and says where it begins.
func (r *jsonReader) next() (jsontext.Token, Position, error) {
	token, err := r.dec.ReadToken()
	if err != nil {
		return token, Position{}, err
	}
	start := r.end
	for start < len(r.data) && strings.IndexByte(" \t\r\n:,", r.data[start]) >= 0 {
		start++
	}
	r.end = int(r.dec.InputOffset())
	return token, r.place(start), nil
}

// place is the line and column of a byte after all those asked for before.
func (r *jsonReader) place(end int) Position {
	if end < r.seen || end > len(r.data) {
		return r.pos
	}
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

// value reads the next value. Faults found in it have paths that begin there;
// under puts what stands above before them.
func (r *jsonReader) value(depth int) (*node, error) {
	token, pos, err := r.next()
	if err != nil {
		return nil, err
	}
	if r.nodes++; depth > maxDepth || r.nodes > maxNodes {
		return nil, errLimit(fmt.Sprintf("at most %d levels and %d values", maxDepth, maxNodes))
	}
	n := &node{pos: pos}
	switch token.Kind() {
	case 'n':
		n.kind, n.text = null, "null"
	case 't', 'f':
		n.kind, n.text = boolean, strconv.FormatBool(token.Bool())
	case '0':
		n.kind, n.text = number, token.String()
	case '"':
		n.kind, n.text = text, token.String()
	}
	switch token.Kind() {
	case '[':
		return n, r.list(n, depth)
	case '{':
		return n, r.object(n, depth)
	}
	return n, nil
}

func (r *jsonReader) list(n *node, depth int) error {
	n.kind = list
	for i := 0; r.dec.PeekKind() != ']'; i++ {
		before := len(r.found.Fields)
		x, err := r.value(depth + 1)
		if err != nil {
			return err
		}
		if len(r.found.Fields) > before {
			r.found.under("["+strconv.Itoa(i)+"]", before)
		}
		n.items = append(n.items, x)
	}
	_, _, err := r.next()
	return err
}

func (r *jsonReader) object(n *node, depth int) error {
	n.kind = object
	n.members = make([]member, 0, 8)
	keys := keySet{}
	for r.dec.PeekKind() != '}' {
		token, pos, err := r.next()
		if err != nil {
			return err
		}
		key := token.String()
		before := len(r.found.Fields)
		value, err := r.value(depth + 1)
		if err != nil {
			return err
		}
		r.found.under(key, before)
		if keys.has(n, key) {
			r.found.add(key, pos, value.describe(), "each key once", "")
			continue
		}
		n.members = append(n.members, member{key, pos, value})
	}
	_, _, err := r.next()
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
