package model

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"memplan/internal/fault"
)

// Sizes given as a tree: model.architecture, whose parts are objects with keys
// of their own.

// readSizes wraps model.architecture.
func readSizes(values map[string]any) *Config {
	return &Config{values: values, at: "model.architecture"}
}

// Part is the object under a key, nil where there is none. What is wrong in it
// is reported with the whole.
func (c *Config) Part(key string) *Config {
	switch v := c.values[key].(type) {
	case map[string]any:
		return c.part(key, v)
	case nil:
		return nil
	}
	c.fields.Add("model.config."+key, c.values[key], "an object", "")
	return nil
}

// Parts are the objects of a list under a key; there may be none.
func (c *Config) Parts(key string) []*Config {
	list, ok := c.values[key].([]any)
	if !ok && c.values[key] != nil {
		c.fields.Add("model.config."+key, c.values[key], "a list of objects", "")
	}
	var all []*Config
	for i, v := range list {
		object, ok := v.(map[string]any)
		at := key + "[" + strconv.Itoa(i) + "]"
		if !ok {
			c.fields.Add("model.config."+at, v, "an object", "")
			continue
		}
		all = append(all, c.part(at, object))
	}
	return all
}

func (c *Config) part(key string, values map[string]any) *Config {
	p := &Config{values: values, at: c.where(key)}
	c.parts = append(c.parts, p)
	return p
}

// where is the public path of a key.
func (c *Config) where(key string) string {
	if c.at == "" {
		return "model.config." + key
	}
	return c.at + "." + key
}

// Only reports every key beside those known.
func (c *Config) Only(known ...string) {
	for _, key := range slices.Sorted(maps.Keys(c.values)) {
		if !slices.Contains(known, key) {
			c.fields.Add("model.config."+key, c.values[key], "one of the keys "+join(known), nearest(key, known))
		}
	}
}

// all lists what was wrong here and in the parts, by public path.
func (c *Config) all() fault.Fields {
	var found fault.Fields
	for _, f := range c.fields {
		if rest, ok := strings.CutPrefix(f.Path, "model.config."); ok && c.at != "" {
			f.Path = c.at + "." + rest
		}
		found = append(found, f)
	}
	for _, p := range c.parts {
		found = append(found, p.all()...)
	}
	return found
}
