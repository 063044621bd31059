package wire

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rule is the schema of one value, compiled: references resolved, and the
// alternative to take found by the kind of the value alone. (No key of the
// format has two alternatives of one kind.)
type rule struct {
	help     string
	def      *node        // default; nil where trainer or version decides
	examples []*node      // where the schema shows some
	ref      string       // the shared definition it came from: dtype, size_gib
	by       [kinds]*rule // reads a value of a kind; nil: refused
	values   []*node      // the only ones allowed
	whole    bool         // numbers must be
	low      bound        // of a number
	high     bound        // of a number
	minText  int          // characters
	maxText  int          // characters; 0: any
	pattern  *regexp.Regexp
	minItems int
	maxItems int // 0: any
	unique   bool
	free     bool // anything goes, however deep
	items    *rule
	fields   []field // of an object, in the schema's order
	index    map[string]*rule
	extra    *rule // of the other keys; nil: refused
	required []string
	oneOf    []string // exactly one of these keys must be there
	minKeys  int
	choices  []string // the alternatives, in words
	want     string   // what is allowed, in words

	// What the schema does not say: see spellings.go.
	parse     func(string) error // reads text with a unit, in place of pattern
	nothing   string             // the value that says no more than leaving the key out
	short     string             // the key that a text stands for, where an object may be written short
	spellings map[string]string  // other ways of writing a scalar
	expand    func(*node) error  // other ways of writing an object
}

// field is one key of an object.
type field struct {
	name string
	rule *rule
}

// bound is an end of a range.
type bound struct {
	value    float64
	set      bool
	excluded bool
}

// anything accepts every value, as the contents of a config.json.
func anything() *rule {
	r := &rule{want: "any value", free: true}
	r.accept(null, boolean, number, text, list, object)
	r.items, r.extra = r, r
	return r
}

// accept makes r itself the reader of some kinds.
func (r *rule) accept(ks ...kind) {
	for _, k := range ks {
		r.by[k] = r
	}
}

// schemaCompiler turns the nodes of a JSON Schema into rules. It knows the
// keywords that the job's schema uses and refuses others, so that a schema it
// reads is a schema it enforces.
type schemaCompiler struct{ defs *node }

func compileSchema(data []byte) (*rule, error) {
	found := &Invalid{}
	root, err := readJSON(data, found)
	if err == nil {
		err = found.err()
	}
	if err != nil {
		return nil, fmt.Errorf("wire: schema: %w", err)
	}
	c := &schemaCompiler{defs: root.get("$defs")}
	return c.rule(root)
}

// rule compiles one schema; nil stands for a value that is never allowed.
func (c *schemaCompiler) rule(s *node) (*rule, error) {
	if s.kind == boolean {
		if s.text == "true" {
			return anything(), nil
		}
		return nil, nil
	}
	r := &rule{}
	if err := c.refer(r, s.get("$ref")); err != nil {
		return nil, err
	}
	for _, m := range s.members {
		if err := c.keyword(r, m.key, m.value); err != nil {
			return nil, fmt.Errorf("%s: %w", m.key, err)
		}
	}
	for _, v := range r.values {
		r.accept(v.kind)
	}
	if r.by[number] == r && r.whole && !r.high.set {
		r.high = bound{value: largestInt, set: true}
	}
	r.want = r.words()
	return r, nil
}

// largestInt is the largest whole number that is exact in every reader's JSON.
const largestInt = 1 << 53

// refer starts r as a copy of a shared definition.
func (c *schemaCompiler) refer(r *rule, ref *node) error {
	if ref == nil {
		return nil
	}
	name := strings.TrimPrefix(ref.text, "#/$defs/")
	def := c.defs.get(name)
	if def == nil {
		return fmt.Errorf("wire: schema: no definition %q", ref.text)
	}
	base, err := c.rule(def)
	if err != nil {
		return err
	}
	*r = *base
	r.ref = name
	for k, b := range base.by {
		if b == base {
			r.by[k] = r
		}
	}
	if unit, ok := measures[name]; ok {
		r.by[text].parse, r.want = unit.parse, unit.want
	}
	return nil
}

// keyword reads one keyword of JSON Schema.
func (c *schemaCompiler) keyword(r *rule, key string, v *node) (err error) {
	switch key {
	case "$schema", "$defs", "$ref", "title":
	case "description":
		r.help = v.text
	case "default":
		r.def = v
	case "examples":
		r.examples = v.items
	case "type":
		return r.types(v)
	case "const":
		r.values = []*node{v}
	case "enum":
		r.values = v.items
	case "minimum", "exclusiveMinimum":
		return r.low.read(v, key == "exclusiveMinimum")
	case "maximum":
		return r.high.read(v, false)
	case "minLength":
		r.minText, err = strconv.Atoi(v.text)
	case "maxLength":
		r.maxText, err = strconv.Atoi(v.text)
	case "minItems":
		r.minItems, err = strconv.Atoi(v.text)
	case "maxItems":
		r.maxItems, err = strconv.Atoi(v.text)
	case "minProperties":
		r.minKeys, err = strconv.Atoi(v.text)
	case "uniqueItems":
		r.unique = v.text == "true"
	case "required":
		r.required = v.texts()
	case "pattern":
		r.pattern, err = regexp.Compile(v.text)
	case "items":
		r.items, err = c.rule(v)
	case "additionalProperties":
		r.extra, err = c.rule(v)
	case "properties":
		return c.properties(r, v)
	case "oneOf":
		return c.oneOf(r, v)
	default:
		return fmt.Errorf("wire: schema: the keyword is not known")
	}
	return err
}

// typeKinds are JSON Schema's names of kinds.
var typeKinds = map[string]kind{
	"null": null, "boolean": boolean, "integer": number, "number": number, "string": text, "array": list, "object": object,
}

func (r *rule) types(v *node) error {
	names := v.texts()
	if v.kind == text {
		names = []string{v.text}
	}
	for _, name := range names {
		k, ok := typeKinds[name]
		if !ok {
			return fmt.Errorf("wire: schema: no type %q", name)
		}
		r.accept(k)
		r.whole = r.whole || name == "integer"
	}
	return nil
}

func (b *bound) read(v *node, excluded bool) (err error) {
	b.set, b.excluded = true, excluded
	b.value, err = strconv.ParseFloat(v.text, 64)
	return err
}

func (c *schemaCompiler) properties(r *rule, v *node) error {
	r.index = make(map[string]*rule, len(v.members))
	for _, m := range v.members {
		child, err := c.rule(m.value)
		if err != nil {
			return fmt.Errorf("%s: %w", m.key, err)
		}
		r.fields = append(r.fields, field{m.key, child})
		r.index[m.key] = child
	}
	return nil
}

// oneOf reads alternatives, which differ either in kind or in the one key they
// require.
func (c *schemaCompiler) oneOf(r *rule, v *node) error {
	for _, s := range v.items {
		if only := s.get("required"); only != nil && len(s.members) == 1 {
			r.oneOf = append(r.oneOf, only.texts()...)
			continue
		}
		alternative, err := c.rule(s)
		if err != nil {
			return err
		}
		r.choices = append(r.choices, alternative.want)
		for k, reader := range alternative.by {
			if reader == nil {
				continue
			}
			if r.by[k] != nil {
				return fmt.Errorf("wire: schema: two alternatives of one kind")
			}
			r.by[k] = reader
		}
	}
	return nil
}

// texts returns the texts of a list.
func (n *node) texts() []string {
	var out []string
	for _, x := range n.items {
		out = append(out, x.text)
	}
	return out
}

// words says what a rule allows, for an error's "want".
func (r *rule) words() string {
	if unit, ok := measures[r.ref]; ok {
		return unit.want
	}
	if r.values != nil {
		return wordList(r.values)
	}
	said := slices.Clone(r.choices)
	for k, reader := range r.by {
		if reader == r {
			said = append(said, r.kindWords(kind(k)))
		}
	}
	slices.SortStableFunc(said, func(a, b string) int { return nullLast(a) - nullLast(b) })
	return strings.Join(said, ", or ")
}

func nullLast(s string) int {
	if s == "null" {
		return 1
	}
	return 0
}

// wordList writes values as a sentence does: "a, b or c".
func wordList(values []*node) string {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = v.text
	}
	return orList(names)
}

// orList joins names as a sentence does.
func orList(names []string) string {
	if last := len(names) - 1; last > 0 {
		return strings.Join(names[:last], ", ") + " or " + names[last]
	}
	return strings.Join(names, "")
}

func (r *rule) kindWords(k kind) string {
	switch k {
	case null:
		return "null"
	case boolean:
		return "true or false"
	case number:
		return r.numberWords()
	case text:
		return r.textWords()
	case list:
		return r.listWords()
	}
	if r.oneOf != nil {
		return "an object with exactly one of " + orList(r.oneOf)
	}
	return "an object"
}

func (r *rule) numberWords() string {
	s := "a number"
	if r.whole {
		s = "a whole number"
	}
	low, high := formatNumber(r.low.value), formatNumber(r.high.value)
	bounded := r.high.set && r.high.value < largestInt
	switch {
	case r.low.set && r.low.excluded && bounded:
		return s + " above " + low + " and up to " + high
	case r.low.set && bounded:
		return s + " from " + low + " to " + high
	case r.low.set && r.low.excluded:
		return s + " above " + low
	case r.low.set:
		return s + ", " + low + " or more"
	}
	return s
}

func (r *rule) textWords() string {
	switch {
	case r.maxText > 0:
		return fmt.Sprintf("text of at most %d characters", r.maxText)
	case r.pattern != nil:
		return "text of the form " + r.pattern.String()
	}
	return "text"
}

func (r *rule) listWords() string {
	s := "a list of "
	switch {
	case r.maxItems > 0:
		s += fmt.Sprintf("%d to %d items, each ", r.minItems, r.maxItems)
	case r.unique:
		s += "different items, each "
	case r.minItems > 0:
		s += "at least one item, each "
	}
	if r.items == nil {
		return s + "values"
	}
	return s + r.items.want
}

// formatNumber writes a number without an exponent where people would.
func formatNumber(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) <= largestInt {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
