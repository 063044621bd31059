package wire

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// check walks a tree by its rules: it normalises what is right in place, takes
// out what is wrong, and notes every fault on the way.
type check struct {
	d       *Decoder
	found   *Invalid
	implied *node // a method that a synonym stands for
}

// wrong notes a value that its rule refuses.
func (c *check) wrong(path string, n *node, want, nearest string) bool {
	c.found.add(path, n.pos, n.describe(), want, nearest)
	return false
}

// value checks n and reports whether it may stay.
func (c *check) value(r *rule, path string, n *node) bool {
	if r.free {
		return c.free(path, n)
	}
	if err := r.respell(n); err != nil {
		return c.wrong(path, n, err.Error(), "")
	}
	alternative := r.by[n.kind]
	if alternative == nil {
		return c.wrong(path, n, r.want, r.nearestOf(n))
	}
	switch n.kind {
	case number:
		return c.number(r, alternative, path, n)
	case text:
		return c.text(r, alternative, path, n)
	case list:
		return c.list(alternative, path, n)
	case object:
		return c.object(alternative, path, n)
	}
	return len(alternative.values) == 0 || alternative.allows(n) || c.wrong(path, n, r.want, "")
}

// allows reports whether n is one of the rule's values.
func (r *rule) allows(n *node) bool { return slices.ContainsFunc(r.values, n.equal) }

// nearestOf suggests a value for one of the wrong kind or the wrong name.
func (r *rule) nearestOf(n *node) string {
	if n.kind == list || n.kind == object {
		return ""
	}
	if names := r.names(); names != nil {
		best := nearest(n.text, names)
		if meant, ok := r.spellings[best]; ok {
			return meant
		}
		return best
	}
	if r.onlyText() {
		return strconv.Quote(clip(n.text))
	}
	if n.kind != text {
		return ""
	}
	if alternative := r.by[number]; alternative != nil {
		return alternative.nearestNumber(n.text)
	}
	if r.by[boolean] != nil {
		return nearestBoolean(n.text)
	}
	return ""
}

// names lists what may be written for a choice: its own names, then other
// spellings of them; nil when the value is no choice.
func (r *rule) names() []string {
	choice := r.by[text]
	if choice == nil || choice.values == nil {
		return nil
	}
	names := make([]string, 0, len(choice.values)+len(r.spellings))
	for _, v := range choice.values {
		names = append(names, v.text)
	}
	return append(names, slices.Sorted(maps.Keys(r.spellings))...)
}

// nearestNumber is the number that a text may have meant.
func (r *rule) nearestNumber(s string) string {
	v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || !finite(v) {
		return ""
	}
	return formatNumber(r.clamp(v))
}

// nearestBoolean is the switch position that a text may have meant.
func nearestBoolean(s string) string {
	switch strings.ToLower(s) {
	case "true", "yes", "on", "1":
		return "true"
	case "false", "no", "off", "0", "none":
		return "false"
	}
	return ""
}

// clamp moves v into the rule's range.
func (r *rule) clamp(v float64) float64 {
	if r.whole {
		v = math.Round(v)
	}
	if r.low.set && !r.low.excluded {
		v = max(v, r.low.value)
	}
	if r.high.set {
		v = min(v, r.high.value)
	}
	return v
}

func finite(v float64) bool { return !math.IsInf(v, 0) && !math.IsNaN(v) }

// largestNumber bounds every number of the format, so that no product of a few
// of them leaves the range of a float.
const largestNumber = 1e18

// number checks a number, and writes a whole one without fraction or exponent.
func (c *check) number(r, alternative *rule, path string, n *node) bool {
	written := n.describe()
	n.text = canonicalNumber(n.text)
	v, err := strconv.ParseFloat(n.text, 64)
	if err != nil || !finite(v) {
		c.found.add(path, n.pos, written, r.want, "")
		return false
	}
	if alternative.values != nil {
		if alternative.allows(n) {
			return true
		}
		return c.wrong(path, n, r.want, closestNumber(alternative.values, v))
	}
	low, high := alternative.low, alternative.high
	below := low.set && (v < low.value || low.excluded && v == low.value)
	above := high.set && v > high.value || math.Abs(v) > largestNumber
	if below || above || alternative.whole && v != math.Trunc(v) {
		return c.outOfRange(r, alternative, path, n, v)
	}
	if alternative.whole {
		n.text = strconv.FormatInt(int64(v), 10)
	}
	return true
}

func (c *check) outOfRange(r, alternative *rule, path string, n *node, v float64) bool {
	suggested := ""
	if w := alternative.clamp(v); w != v && math.Abs(w) <= largestNumber {
		suggested = formatNumber(w)
	}
	want := r.want
	if high := alternative.high; high.set && v > high.value && !strings.Contains(want, formatNumber(high.value)) {
		want += ", at most " + formatNumber(high.value)
	}
	return c.wrong(path, n, want, suggested)
}

// closestNumber is the allowed value nearest to v.
func closestNumber(values []*node, v float64) string {
	best, least := "", math.Inf(1)
	for _, x := range values {
		w, err := strconv.ParseFloat(x.text, 64)
		if d := math.Abs(w - v); err == nil && d < least {
			best, least = x.text, d
		}
	}
	return best
}

// text checks a text.
func (c *check) text(r, alternative *rule, path string, n *node) bool {
	switch {
	case alternative.values != nil:
		return alternative.allows(n) || c.wrong(path, n, r.want, r.nearestOf(n))
	case alternative.parse != nil:
		return alternative.parse(n.text) == nil || c.wrong(path, n, r.want, "")
	case alternative.pattern != nil && !alternative.pattern.MatchString(n.text):
		return c.wrong(path, n, r.want, "")
	}
	length := utf8.RuneCountInString(n.text)
	if length < alternative.minText {
		return c.wrong(path, n, r.want+", not empty", "")
	}
	if alternative.maxText > 0 && length > alternative.maxText {
		return c.wrong(path, n, r.want, "")
	}
	return true
}

// list checks a list and its items.
func (c *check) list(r *rule, path string, n *node) bool {
	good := true
	for i, x := range n.items {
		at := path + "[" + strconv.Itoa(i) + "]"
		good = c.value(r.items, at, x) && good
		if r.unique && slices.ContainsFunc(n.items[:min(i, maxFaults)], x.equal) {
			good = c.wrong(at, x, "each item once", "")
		}
	}
	if len(n.items) < r.minItems || r.maxItems > 0 && len(n.items) > r.maxItems {
		c.found.add(path, n.pos, fmt.Sprintf("a list of %d", len(n.items)), r.want, "")
		return false
	}
	return good
}

// free looks through a value that may be anything, for numbers that JSON
// cannot carry.
func (c *check) free(path string, n *node) bool {
	if n.loose == loose {
		n.guess()
	}
	good := true
	switch n.kind {
	case number:
		n.text = canonicalNumber(n.text)
		if v, err := strconv.ParseFloat(n.text, 64); err != nil || !finite(v) {
			return c.wrong(path, n, "a finite number", "")
		}
	case list:
		for i, x := range n.items {
			good = c.free(path+"["+strconv.Itoa(i)+"]", x) && good
		}
	case object:
		for _, m := range n.members {
			good = c.free(join(path, m.key), m.value) && good
		}
	}
	return good
}

// object checks an object key by key. A wrong key is taken out, so that the
// rest can still be read; one with nothing written behind it says nothing; the
// object itself stays unless it lacks something.
func (c *check) object(r *rule, path string, n *node) bool {
	kept := n.members[:0]
	written := r.mark(n)
	for _, m := range n.members {
		at := join(path, m.key)
		child := r.index[m.key]
		if child == nil {
			child = r.extra
		}
		switch {
		case child == nil:
			c.unknown(r, path, m)
		case m.value.empty() && !child.free:
		case c.value(child, at, m.value) && !child.absent(m.value):
			kept = append(kept, m)
		}
	}
	clear(n.members[len(kept):])
	n.members = kept
	return c.complete(r, path, n, written)
}

// presence is what an object held before wrong and empty keys were taken out.
type presence struct {
	keys  int
	oneOf []string // of the keys that exclude each other, those given
}

func (r *rule) mark(n *node) presence {
	p := presence{keys: len(n.members)}
	for _, key := range r.oneOf {
		if v := n.get(key); v != nil && !v.empty() {
			p.oneOf = append(p.oneOf, key)
		}
	}
	return p
}

// complete checks what an object must have.
func (c *check) complete(r *rule, path string, n *node, written presence) bool {
	good := c.chosen(r, path, n, written.oneOf)
	for _, key := range r.required {
		if n.get(key) == nil && !c.blamed(join(path, key)) {
			c.found.add(join(path, key), n.pos, "", r.index[key].want, "")
			good = false
		}
	}
	if written.keys < r.minKeys {
		c.found.add(path, n.pos, "an empty object", "at least one key", "")
		good = false
	}
	return good
}

// chosen checks that exactly one of the keys that exclude each other was given,
// and that it says something.
func (c *check) chosen(r *rule, path string, n *node, given []string) bool {
	if r.oneOf == nil {
		return true
	}
	if len(given) != 1 {
		got := strings.Join(given, " and ")
		if got == "" {
			got = "none of them"
		}
		c.found.add(path, n.pos, got, "exactly one of "+orList(r.oneOf), "")
		return false
	}
	at := join(path, given[0])
	if n.get(given[0]) == nil && !c.blamed(at) {
		c.found.add(at, n.pos, "an empty object", r.index[given[0]].want+" with at least one key", "")
	}
	return true
}

// blamed reports whether the path, or something in it, was found wrong.
func (c *check) blamed(path string) bool {
	for _, f := range c.found.Fields {
		if rest, ok := strings.CutPrefix(f.Path, path); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// absent reports whether a right value says no more than leaving its key out:
// null, an empty list, and "none" or false where the normal form has a long
// form or nothing. In a config.json they do say something.
func (r *rule) absent(n *node) bool {
	if r.free {
		return false
	}
	switch n.kind {
	case null:
		return true
	case list:
		return len(n.items) == 0
	case object:
		if short := n.get(r.short); r.short != "" && short != nil && short.text == r.nothing {
			return true
		}
		reader := r.by[object]
		return len(n.members) == 0 && reader.index == nil && len(reader.required) == 0
	}
	return r.nothing != "" && n.text == r.nothing
}

// unknown notes a key that the format does not have.
func (c *check) unknown(r *rule, path string, m member) {
	want := "a key of the job"
	if path != "" {
		want = "a key of " + path
	}
	if len(c.found.Fields) < maxFaults {
		c.found.add(join(path, m.key), m.pos, "an unknown key", want, c.d.nearestKey(r, path, m.key))
	}
}
