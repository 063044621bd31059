package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// Config reads numbers from a config.json, collecting every key that is
// missing or of the wrong type.
type Config struct {
	values map[string]any
	fields fault.Fields
	at     string    // the public path of the keys, "" for model.config
	parts  []*Config // objects among the values that were read
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

// Whole is IntOr for a number that may be 0.
func (c *Config) Whole(fallback int64, key string) int64 {
	if v, ok := c.values[key]; ok && (v == float64(0) || v == 0) {
		return 0
	}
	return c.IntOr(fallback, key)
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

// Window returns the width of an attention window; 0 is none, which null means.
func (c *Config) Window(fallback int64, key string) int64 {
	if c.Null(key) {
		return 0
	}
	return c.IntOr(fallback, key)
}

// Null reports whether a key is null.
func (c *Config) Null(key string) bool {
	v, set := c.values[key]
	return set && v == nil
}

// Sliding says which layers see only a window: those layer_types names, else
// all but every so many-th.
func (c *Config) Sliding(layers, every int64) []bool {
	named, _ := c.values["layer_types"].([]any)
	if named != nil && int64(len(named)) != layers {
		c.fields.Add("model.config.layer_types", len(named), fmt.Sprintf("a list of %d", layers), "")
		return nil
	}
	sliding := make([]bool, layers)
	for i := range sliding {
		sliding[i] = (int64(i)+1)%every != 0
		if named != nil {
			sliding[i] = named[i] == "sliding_attention"
		}
	}
	return sliding
}

// Activation returns the name of an activation the programs know, or the
// default.
func (c *Config) Activation(fallback, key string) string {
	name := c.Text(fallback, key)
	if activations[name] == nil {
		known := slices.Sorted(maps.Keys(activations))
		c.fields.Add("model.config."+key, name, "one of "+join(known), nearest(name, known))
		return fallback
	}
	return name
}

// RotaryPart returns the columns of a head that rotary embeddings turn: the
// factor stands among the rope parameters or, in older files, by itself.
func (c *Config) RotaryPart(fallback float64, key string, headDim int64) int64 {
	factor := c.Float(fallback, key)
	if rope, ok := c.values["rope_parameters"].(map[string]any); ok {
		nested := Config{values: rope}
		factor = nested.Float(factor, "partial_rotary_factor")
	}
	return int64(float64(headDim) * factor)
}

// Token returns the id of a special token, or the default; -1 is none.
func (c *Config) Token(fallback int64, key string) int64 {
	if c.Null(key) {
		return -1
	}
	switch x := c.values[key].(type) {
	case float64:
		return int64(x)
	case int:
		return int64(x)
	case nil:
		return fallback
	}
	c.fields.Add("model.config."+key, c.values[key], "a token's id", "")
	return fallback
}

// OneOf returns a word that must be one of those allowed, the first of which is
// the default.
func (c *Config) OneOf(key string, allowed ...string) string {
	word := c.Text(allowed[0], key)
	if !slices.Contains(allowed, word) {
		c.fields.Add("model.config."+key, word, "one of "+join(allowed), nearest(word, allowed))
	}
	return word
}

// Refuses reports an error where a switch is on that the program does not
// know.
func (c *Config) Refuses(keys ...string) {
	for _, k := range keys {
		if v := c.values[k]; v != nil && v != false {
			c.fields.Add("model.config."+k, v, "nothing: it is not modelled", "")
		}
	}
}

// needsTransformers reports an error for a version of transformers whose model is
// another program, which is not modelled; why says what it does.
func (c *Config) needsTransformers(b Build, since spec.Version, why string) {
	if v := b.Versions.Transformers; v.Before(since) {
		c.fields.Add("runtime.library_versions.transformers", v.String(), "at least "+since.String()+": "+why, since.String())
	}
}

// eagerOr is the kernel of a family that has no other attention than the eager
// one: what is not asked for by name falls back to it.
func (c *Config) eagerOr(kernel string) string {
	if kernel == "flash" {
		c.fields.Add("training.attention", kernel, "eager: this family's flash attention is not modelled", "eager")
	}
	return "eager"
}

// Divides reports an error unless part divides whole.
func (c *Config) Divides(part, whole string, p, w int64) {
	if w%p != 0 {
		c.fields.Add("model.config."+part, p, fmt.Sprintf("a divisor of %s (%d)", whole, w), "")
	}
}

// Err returns what was wrong.
func (c *Config) Err() error { return c.all().Err() }

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
