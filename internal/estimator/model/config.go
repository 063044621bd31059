package model

import (
	"fmt"
	"strings"

	"memplan/internal/fault"
)

// Config reads numbers from a config.json, collecting every key that is
// missing or of the wrong type.
type Config struct {
	values map[string]any
	fields fault.Fields
}

// Read wraps a config.json.
func Read(values map[string]any) *Config { return &Config{values: values} }

// Int returns the first of the keys that is set, which must be a whole
// positive number; it is an error when none is.
func (c *Config) Int(keys ...string) int64 {
	for _, k := range keys {
		if v, ok := c.values[k]; ok && v != nil {
			return c.whole(k, v)
		}
	}
	c.fields.Add("model.config."+keys[0], "nothing", "a whole number", "")
	return 1
}

// IntOr is Int with a default.
func (c *Config) IntOr(fallback int64, keys ...string) int64 {
	for _, k := range keys {
		if v, ok := c.values[k]; ok && v != nil {
			return c.whole(k, v)
		}
	}
	return fallback
}

func (c *Config) whole(key string, v any) int64 {
	var n int64
	switch x := v.(type) {
	case int:
		n = int64(x)
	case int64:
		n = x
	case float64:
		n = int64(x)
		if float64(n) != x {
			n = 0
		}
	}
	if n < 1 || n > 1<<40 {
		c.fields.Add("model.config."+key, v, "a whole number of at least 1", "")
		return 1
	}
	return n
}

// Float returns a number, or the default.
func (c *Config) Float(fallback float64, key string) float64 {
	switch x := c.values[key].(type) {
	case float64:
		return x
	case int:
		return float64(x)
	case nil:
		return fallback
	}
	c.fields.Add("model.config."+key, c.values[key], "a number", "")
	return fallback
}

// Bool returns a switch, or the default.
func (c *Config) Bool(fallback bool, key string) bool {
	switch x := c.values[key].(type) {
	case bool:
		return x
	case nil:
		return fallback
	}
	c.fields.Add("model.config."+key, c.values[key], "true or false", "")
	return fallback
}

// Text returns a word, or the default.
func (c *Config) Text(fallback, key string) string {
	switch x := c.values[key].(type) {
	case string:
		return x
	case nil:
		return fallback
	}
	c.fields.Add("model.config."+key, c.values[key], "text", "")
	return fallback
}

// Divides reports an error unless part divides whole.
func (c *Config) Divides(part, whole string, p, w int64) {
	if w%p != 0 {
		c.fields.Add("model.config."+part, p, fmt.Sprintf("a divisor of %s (%d)", whole, w), "")
	}
}

// Err returns what was wrong.
func (c *Config) Err() error { return c.fields.Err() }

func join(words []string) string { return strings.Join(words, ", ") }

// nearest is the known word with the smallest edit distance.
func nearest(word string, known []string) string {
	best, at := 1<<30, ""
	for _, k := range known {
		if d := distance(word, k); d < best {
			best, at = d, k
		}
	}
	return at
}

func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			next := min(row[j]+1, row[j-1]+1, diagonal)
			if a[i-1] == b[j-1] {
				next = min(next, diagonal)
			} else {
				next = min(next, diagonal+1)
			}
			diagonal, row[j] = row[j], next
		}
	}
	return row[len(b)]
}
