package jobfile

import (
	"fmt"
	"strconv"
	"strings"

	"memplan/internal/fault"
)

// document is a file as an ordered list of keys and plain values: text, bool,
// int, float64, or a list of them. Nested keys are joined by dots; a dot of a
// key's own is written \. and a number is a place in a list.
type document struct {
	entries []entry
	places  map[string]int
}

type entry struct {
	key   string
	value any
}

// set puts a value under a key, in place of one that is there.
func (d *document) set(key string, value any) {
	if i, ok := d.places[key]; ok {
		d.entries[i].value = value
		return
	}
	if d.places == nil {
		d.places = map[string]int{}
	}
	d.places[key] = len(d.entries)
	d.entries = append(d.entries, entry{key, value})
}

func (d *document) get(key string) (any, bool) {
	i, ok := d.places[key]
	if !ok {
		return nil, false
	}
	return d.entries[i].value, true
}

// lines is a document of some entries.
func lines(entries ...entry) document {
	var d document
	for _, e := range entries {
		d.set(e.key, e.value)
	}
	return d
}

// splitKey undoes the joining of nested keys.
func splitKey(key string) []string {
	parts := strings.Split(strings.ReplaceAll(key, `\.`, "\x00"), ".")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], "\x00", ".")
	}
	return parts
}

func joinKey(prefix, key string) string {
	key = strings.ReplaceAll(key, ".", `\.`)
	if prefix == "" {
		return key
	}
	return prefix + "." + key
}

// source is a document being read: it remembers which keys were asked for and
// what was wrong with their values.
type source struct {
	document
	used  map[string]bool
	wrong fault.Fields
}

// value returns what stands under a key; null counts as nothing.
func (s *source) value(key string) (any, bool) {
	v, ok := s.get(key)
	if ok {
		s.used[key] = true
	}
	return v, ok && v != nil
}

// unknown lists the keys nobody asked for.
func (s *source) unknown() []string {
	var keys []string
	for _, e := range s.entries {
		if !s.used[e.key] {
			keys = append(keys, strings.ReplaceAll(e.key, `\.`, "."))
		}
	}
	return keys
}

func (s *source) refuse(key string, got any, want string) {
	s.wrong.Add(key, got, want, "")
}

// number returns a number, also one written as text.
func (s *source) number(key string) (float64, bool) {
	v, ok := s.value(key)
	if !ok {
		return 0, false
	}
	switch x := v.(type) {
	case int:
		return float64(x), true
	case float64:
		return x, true
	case string:
		if f, err := strconv.ParseFloat(strings.ReplaceAll(x, "_", ""), 64); err == nil {
			return f, true
		}
	}
	s.refuse(key, v, "a number")
	return 0, false
}

// whole returns a whole number.
func (s *source) whole(key string) (int, bool) {
	f, ok := s.number(key)
	if ok && f != float64(int(f)) {
		s.refuse(key, f, "a whole number")
		return 0, false
	}
	return int(f), ok
}

// flag returns true or false. A flag of a command line stands without a value.
func (s *source) flag(key string) (on, ok bool) {
	v, ok := s.value(key)
	if !ok {
		return false, false
	}
	switch strings.ToLower(fmt.Sprint(v)) {
	case "true", "yes", "on", "1":
		return true, true
	case "false", "no", "off", "0":
		return false, true
	}
	s.refuse(key, v, "true or false")
	return false, false
}

// word returns a text; numbers and truth values are texts too.
func (s *source) word(key string) (string, bool) {
	v, ok := s.value(key)
	if !ok {
		return "", false
	}
	if _, list := v.([]any); list {
		s.refuse(key, v, "one value")
		return "", false
	}
	return fmt.Sprint(v), true
}

// words returns a list of texts; one text, or several with commas, is a list too.
func (s *source) words(key string) ([]string, bool) {
	v, ok := s.value(key)
	if !ok {
		return nil, false
	}
	list, ok := v.([]any)
	if !ok {
		var all []string
		for _, w := range strings.Split(fmt.Sprint(v), ",") {
			all = append(all, strings.TrimSpace(w))
		}
		return all, true
	}
	all := make([]string, len(list))
	for i, x := range list {
		all[i] = fmt.Sprint(x)
	}
	return all, true
}

func list(words []string) []any {
	all := make([]any, len(words))
	for i, w := range words {
		all[i] = w
	}
	return all
}
