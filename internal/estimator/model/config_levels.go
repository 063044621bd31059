package model

import (
	"fmt"
	"slices"
)

// Lists in a config.json: an entry a level of a network.

// Ints returns a list of whole positive numbers, which must be set.
func (c *Config) Ints(key string) []int64 {
	values, ok := c.values[key].([]any)
	if !ok || len(values) == 0 {
		c.fields.Add("model.config."+key, c.values[key], "a list of whole numbers", "")
		return []int64{1}
	}
	all := make([]int64, len(values))
	for i, v := range values {
		all[i] = c.whole(fmt.Sprintf("%s[%d]", key, i), v)
	}
	return all
}

// PerLevel returns a number for each of n levels: a list of them, or one for
// all.
func (c *Config) PerLevel(fallback int64, n int, key string) []int64 {
	if _, ok := c.values[key].([]any); !ok {
		return slices.Repeat([]int64{c.IntOr(fallback, key)}, n)
	}
	all := c.Ints(key)
	if len(all) != n {
		c.fields.Add("model.config."+key, len(all), fmt.Sprintf("a list of %d", n), "")
		return slices.Repeat([]int64{1}, n)
	}
	return all
}

// Words returns a list of words, which must be set.
func (c *Config) Words(key string) []string {
	values, _ := c.values[key].([]any)
	all := make([]string, len(values))
	for i, v := range values {
		all[i], _ = v.(string)
	}
	if len(all) == 0 {
		c.fields.Add("model.config."+key, c.values[key], "a list of names", "")
	}
	return all
}

// Blocks reports those of a list of classes that are not allowed.
func (c *Config) Blocks(got []string, key string, allowed ...string) {
	for i, name := range got {
		if !slices.Contains(allowed, name) {
			c.fields.Add(fmt.Sprintf("model.config.%s[%d]", key, i), name, "one of "+join(allowed), nearest(name, allowed))
		}
	}
}

// Count is a whole number that may be 0, or the default.
func (c *Config) Count(fallback int64, key string) int64 {
	if v := c.values[key]; v == 0 || v == 0.0 {
		return 0
	}
	return c.IntOr(fallback, key)
}

// Indices returns a list of indices below n, which may be empty or missing.
func (c *Config) Indices(key string, n int64) []int64 {
	values, _ := c.values[key].([]any)
	all := make([]int64, 0, len(values))
	for i, v := range values {
		x, ok := v.(float64)
		if !ok || x < 0 || x >= float64(n) || x != float64(int64(x)) {
			c.fields.Add(fmt.Sprintf("model.config.%s[%d]", key, i), v, fmt.Sprintf("a whole number from 0 to %d", n-1), "")
			continue
		}
		all = append(all, int64(x))
	}
	return all
}
