package wire

import (
	"bytes"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// maxKeys bounds the keys of a form.
const maxKeys = 2000

// DecodeValues reads a job from a form or a URL: dotted paths of the format
// (training.micro_batch_size=4), the short keys of Aliases, and Synonyms.
// Lists are comma separated, objects and anything unusual is JSON text, an
// empty value says nothing. The errors are those of DecodeJSON, without lines.
func DecodeValues(values url.Values) (spec.Job, error) { return standard().Values(values) }

// Values reads a job from a form or a URL.
func (d *Decoder) Values(values url.Values) (spec.Job, error) {
	c := &check{d: d, found: &Invalid{}}
	root, err := c.tree(values)
	if err != nil {
		return spec.Job{}, err
	}
	return c.job(root)
}

// IsKey reports whether a key of a URL belongs to a job, as the pages' own
// keys do not.
func IsKey(key string) bool {
	d := standard()
	first, _, _ := strings.Cut(key, ".")
	_, short := d.aliases[key]
	_, known := d.synonyms[key]
	return short || known || key == zeroAlias || d.root.index[first] != nil
}

// tree sorts the values into the tree that JSON would give.
func (c *check) tree(values url.Values) (*node, error) {
	size := 0
	for key, list := range values {
		for _, v := range list {
			size += len(key) + len(v)
		}
	}
	if size > MaxBytes || len(values) > maxKeys {
		return nil, fault.New(fault.TooLarge, "the form has %d keys and %d bytes; %d and %d are read at most", len(values), size, maxKeys, MaxBytes)
	}
	root := &node{kind: object}
	for _, key := range slices.SortedFunc(maps.Keys(values), pathsFirst) {
		if v := looseValue(values[key]); v != nil {
			c.put(root, key, v)
		}
	}
	return root, nil
}

// pathsFirst sorts full paths before short keys, so that a contradiction is
// reported at the short one.
func pathsFirst(a, b string) int {
	if x, y := strings.Contains(a, "."), strings.Contains(b, "."); x != y {
		if x {
			return -1
		}
		return 1
	}
	return strings.Compare(a, b)
}

// looseValue is the node of a key's texts, nil when they are all empty.
func looseValue(texts []string) *node {
	var items []*node
	for _, s := range texts {
		s = strings.ToValidUTF8(strings.TrimSpace(s), "\uFFFD")
		if s != "" {
			items = append(items, &node{kind: text, loose: loose, text: s})
		}
	}
	switch len(items) {
	case 0:
		return nil
	case 1:
		return items[0]
	}
	return &node{kind: list, items: items}
}

// put places one key of the form.
func (c *check) put(root *node, key string, v *node) {
	alias, short := c.d.aliases[key]
	switch {
	case key == zeroAlias:
		c.translate(root, key, c.d.synonyms["zero_stage"], v)
	case short && alias.Path != key:
		v.from = key
		if key == adapterAlias {
			c.implied = &node{kind: text, text: "lora"}
		}
		c.place(root, key, alias.Path, v)
	default:
		c.descend(root, c.d.root, strings.ToValidUTF8(key, "\uFFFD"), v)
	}
}

// descend walks a dotted path, making the objects on the way. Below an object
// of free keys the rest of the path is one key.
func (c *check) descend(n *node, r *rule, path string, v *node) {
	key, rest, deeper := strings.Cut(path, ".")
	child := r.index[key]
	if child == nil || !deeper {
		key, rest, deeper = path, "", false
	}
	if !deeper {
		if there := n.get(key); there != nil && there.kind == object && child != nil && child.short != "" {
			n, key = there, child.short
		}
		n.set(key, v)
		return
	}
	next := n.get(key)
	if next == nil {
		next = &node{kind: object}
		n.set(key, next)
	}
	if next.kind != object { // a name alone, then a key beside it
		next = &node{kind: object, members: []member{{key: child.short, value: next}}}
		n.set(key, next)
	}
	below := child.by[object]
	if below == nil {
		below = &rule{}
	}
	c.descend(next, below, rest, v)
}

// settle decides the kind of a value written as text, by what its rule allows.
func (r *rule) settle(n *node) {
	n.loose = exact
	if n.kind != text || r.meansText(n.text) {
		return
	}
	_, isNumber := asNumber(n.text)
	switch {
	case r.by[boolean] != nil && r.switches(n.text):
		n.kind, n.text = boolean, nearestBoolean(n.text)
	case r.by[number] != nil && isNumber:
		n.kind = number
	case r.by[text] != nil && strings.HasPrefix(n.text, `"`) && n.parse(text),
		r.by[list] != nil && strings.HasPrefix(n.text, "[") && n.parse(list),
		r.by[object] != nil && strings.HasPrefix(n.text, "{") && n.parse(object):
	case r.by[null] != nil && (n.text == "null" || n.text == "none"):
		n.kind = null
	case r.by[list] != nil && (r.by[text] == nil || r.by[text].values != nil):
		n.split(r.by[list].items)
	}
}

// switches reports whether s is a position of a switch: true or false, and
// what else people write for them where it cannot be text or a number.
func (r *rule) switches(s string) bool {
	if r.by[number] != nil || r.by[text] != nil && r.by[text].values == nil {
		return s == "true" || s == "false"
	}
	return nearestBoolean(s) != ""
}

// meansText reports whether s is one of the names the rule knows.
func (r *rule) meansText(s string) bool {
	if _, ok := r.spellings[s]; ok {
		return true
	}
	t := r.by[text]
	return t != nil && t.allows(&node{kind: text, text: s})
}

// asNumber reads a number as JSON writes it.
func asNumber(s string) (float64, bool) {
	if !jsonNumber.MatchString(s) {
		return 0, false
	}
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil
}

// parse replaces n by the JSON its text is, if that is JSON of the kind.
func (n *node) parse(k kind) bool {
	found := &Invalid{}
	parsed, err := readJSON([]byte(n.text), found)
	if err != nil || len(found.Fields) > 0 || parsed.kind != k {
		return false
	}
	parsed.pos = Position{}
	*n = *parsed
	return true
}

// split makes a list of a text with commas; sizes may be written with an x
// between them: 224x224.
func (n *node) split(items *rule) {
	separators := ","
	if items.by[number] != nil {
		separators = ",x×"
	}
	parts := strings.FieldsFunc(n.text, func(r rune) bool { return strings.ContainsRune(separators, r) })
	n.kind, n.items = list, nil
	for _, p := range parts {
		n.items = append(n.items, &node{kind: text, loose: loose, text: strings.TrimSpace(p)})
	}
}

// guess decides the kind of a value that may be anything: JSON if it is JSON.
func (n *node) guess() {
	n.loose = exact
	if n.kind != text {
		return
	}
	found := &Invalid{}
	if parsed, err := readJSON([]byte(n.text), found); err == nil && len(found.Fields) == 0 {
		parsed.pos = Position{}
		*n = *parsed
	}
}

// EncodeValues writes the normal form of a job for a URL: short keys where
// there are any, dotted paths elsewhere, only what is set.
func EncodeValues(job spec.Job) (url.Values, error) {
	pairs, err := standard().pairs(job)
	values := make(url.Values, len(pairs))
	for _, p := range pairs {
		values.Set(p.key, p.value)
	}
	return values, err
}

// EncodeQuery writes a job as the query of a URL, in the order of the format:
// equal jobs have equal queries.
func EncodeQuery(job spec.Job) (string, error) {
	pairs, err := standard().pairs(job)
	if err != nil {
		return "", err
	}
	parts := make([]string, len(pairs))
	for i, p := range pairs {
		parts[i] = escape(p.key) + "=" + escape(p.value)
	}
	return strings.Join(parts, "&"), nil
}

// escape is url.QueryEscape, less the escapes that a query does not need and
// that make a link hard to read.
func escape(s string) string {
	return strings.NewReplacer("%2F", "/", "%2C", ",", "%3A", ":", "%40", "@").Replace(url.QueryEscape(s))
}

// pair is one key and its value.
type pair struct{ key, value string }

// pairs lists what a job sets, in the order of the format.
func (d *Decoder) pairs(job spec.Job) ([]pair, error) {
	root, err := treeOf(job)
	if err != nil {
		return nil, err
	}
	root.drop("version")
	var out []pair
	d.flatten(&out, d.root, "", root)
	return out, nil
}

// flatten appends the leaves of n.
func (d *Decoder) flatten(out *[]pair, r *rule, path string, n *node) {
	if n.kind != object || r.free || !r.opens(n) {
		*out = append(*out, pair{d.shorten(path), r.plain(n)})
		return
	}
	reader := r.by[object]
	for _, f := range reader.fields {
		if v := n.get(f.name); v != nil {
			d.flatten(out, f.rule, join(path, f.name), v)
		}
	}
	for _, m := range n.members {
		if reader.index[m.key] == nil {
			d.flatten(out, reader.extra, join(path, m.key), m.value)
		}
	}
}

// opens reports whether an object can be written key by key: it has some, and
// free ones are names whose values are text.
func (r *rule) opens(n *node) bool {
	reader := r.by[object]
	if len(n.members) == 0 || reader == nil {
		return false
	}
	if reader.extra == nil || reader.extra.free {
		return reader.extra == nil
	}
	return !slices.ContainsFunc(n.members, func(m member) bool {
		return m.value.kind != text || m.key == "" || strings.TrimSpace(m.key) != m.key
	})
}

// shorten is the key of a path: its alias where there is one.
func (d *Decoder) shorten(path string) string {
	if key, ok := d.names[path]; ok {
		return key
	}
	return path
}

// plain writes a value the way people do where that reads back the same, and
// as JSON otherwise.
func (r *rule) plain(n *node) string {
	written := n.text
	if n.kind == list {
		parts := make([]string, len(n.items))
		for i, x := range n.items {
			parts[i] = x.text
		}
		written = strings.Join(parts, ",")
	}
	if n.kind != object && !r.free && written != "" && r.readsBack(n, written) {
		return written
	}
	return string(bytes.TrimSpace(n.appendJSON(nil)))
}

// readsBack reports whether the text settles into n.
func (r *rule) readsBack(n *node, written string) bool {
	back := &node{kind: text, loose: loose, text: strings.TrimSpace(written)}
	if r.respell(back) != nil {
		return false
	}
	for _, x := range back.items {
		if x.loose == loose && r.by[list] != nil && r.by[list].items.respell(x) != nil {
			return false
		}
	}
	return back.equal(n)
}
