package wire

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
)

// kind is what a value is, before anybody asked what it should be.
type kind uint8

const (
	null kind = iota
	boolean
	number
	text
	list
	object
	kinds // how many there are
)

// looseness says how far the notation a value was read from tells its kind.
type looseness uint8

const (
	exact looseness = iota // JSON, and quoted YAML: the kind is meant
	plain                  // an unquoted YAML scalar: 2.10 may be a version
	loose                  // a form or URL: everything is text
)

// node is a value of any notation. The readers make trees of them, the
// decoder checks and normalises them in place, so that every notation is
// treated by the same code.
type node struct {
	kind    kind
	loose   looseness
	text    string   // a scalar, as it was written
	items   []*node  // of a list
	members []member // of an object, in the order written
	pos     Position
	from    string // the synonym it was given by, if any
}

// member is one key of an object.
type member struct {
	key   string
	pos   Position
	value *node
}

// Position is a place in the text of an input, counted from 1. The zero
// Position is unknown: forms and URLs have none.
type Position struct{ Line, Column int }

// empty reports whether nothing was written: "key:" in YAML.
func (n *node) empty() bool { return n.kind == null && n.text == "" }

// get returns the value under a key, or nil.
func (n *node) get(key string) *node {
	if n == nil {
		return nil
	}
	for i := range n.members {
		if n.members[i].key == key {
			return n.members[i].value
		}
	}
	return nil
}

// set puts a value under a key, replacing what was there.
func (n *node) set(key string, value *node) {
	for i := range n.members {
		if n.members[i].key == key {
			n.members[i].value = value
			return
		}
	}
	n.members = append(n.members, member{key, value.pos, value})
}

// drop removes a key.
func (n *node) drop(key string) {
	n.members = slices.DeleteFunc(n.members, func(m member) bool { return m.key == key })
}

// equal reports whether two trees say the same, whatever the order of keys.
func (n *node) equal(m *node) bool {
	if n.kind != m.kind || len(n.items) != len(m.items) || len(n.members) != len(m.members) {
		return false
	}
	switch n.kind {
	case list:
		return slices.EqualFunc(n.items, m.items, (*node).equal)
	case object:
		return !slices.ContainsFunc(n.members, func(x member) bool {
			other := m.get(x.key)
			return other == nil || !x.value.equal(other)
		})
	case number:
		a, _ := strconv.ParseFloat(n.text, 64)
		b, _ := strconv.ParseFloat(m.text, 64)
		return a == b
	}
	return n.text == m.text
}

// appendJSON appends the tree as JSON.
func (n *node) appendJSON(b []byte) []byte {
	switch n.kind {
	case null:
		return append(b, "null"...)
	case text:
		return appendText(b, n.text)
	case list:
		b = append(b, '[')
		for i, x := range n.items {
			b = x.appendJSON(comma(b, i))
		}
		return append(b, ']')
	case object:
		b = append(b, '{')
		for i, m := range n.members {
			b = append(appendText(comma(b, i), m.key), ':')
			b = m.value.appendJSON(b)
		}
		return append(b, '}')
	}
	return append(b, n.text...)
}

func comma(b []byte, i int) []byte {
	if i > 0 {
		return append(b, ',')
	}
	return b
}

// appendText appends s as a JSON string, most of which need no escaping.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' || s[i] == '"' || s[i] == '\\' {
			var quoted bytes.Buffer
			e := json.NewEncoder(&quoted)
			e.SetEscapeHTML(false)
			_ = e.Encode(s) // a string always encodes
			return append(b, bytes.TrimSpace(quoted.Bytes())...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// describe says in a few words what a value is, for an error's "got".
func (n *node) describe() string {
	switch n.kind {
	case null:
		return "null"
	case list:
		return "a list"
	case object:
		return "an object"
	case text:
		return strconv.Quote(clip(n.text))
	}
	return clip(n.text)
}

// clip shortens what a user wrote to what a message can carry.
func clip(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
