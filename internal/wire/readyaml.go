package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// yamlReader turns YAML nodes into ours: aliases and merge keys resolved,
// within the limits.
type yamlReader struct {
	nodes int
	found *Invalid
}

// readYAML reads one YAML document.
func readYAML(data []byte, found *Invalid) (*node, error) {
	if err := checkText(data); err != nil {
		return nil, err
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	if err := dec.Decode(&doc); err != nil {
		return nil, explainYAML(err)
	}
	if err := dec.Decode(&next); !errors.Is(err, io.EOF) {
		return nil, notOne(Position{next.Line, next.Column}, "one YAML document")
	}
	r := &yamlReader{found: found}
	n, err := r.value(doc.Content[0], "", 0)
	var limit errLimit
	if errors.As(err, &limit) {
		return nil, notOne(Position{}, string(limit))
	}
	return n, err
}

// lineOf finds the line in the library's error texts.
var lineOf = regexp.MustCompile(`line (\d+): `)

// explainYAML places a syntax error.
func explainYAML(err error) error {
	if errors.Is(err, io.EOF) {
		return notOne(Position{}, "a job: the text is empty")
	}
	said := strings.TrimPrefix(err.Error(), "yaml: ")
	var pos Position
	if m := lineOf.FindStringSubmatch(said); m != nil {
		line, _ := strconv.Atoi(m[1])
		pos, said = Position{line, 1}, strings.Replace(said, m[0], "", 1)
	}
	return notOne(pos, "YAML: "+said)
}

func (r *yamlReader) value(y *yaml.Node, path string, depth int) (*node, error) {
	if r.nodes++; depth > maxDepth || r.nodes > maxNodes {
		return nil, errLimit(fmt.Sprintf("at most %d levels and %d values, aliases counted as often as used", maxDepth, maxNodes))
	}
	n := &node{pos: Position{y.Line, y.Column}}
	switch y.Kind {
	case yaml.AliasNode:
		return r.value(y.Alias, path, depth+1)
	case yaml.SequenceNode:
		return n, r.list(n, y, path, depth)
	case yaml.MappingNode:
		return n, r.object(n, y, path, depth)
	}
	r.scalar(n, y)
	return n, nil
}

// scalar reads an unquoted scalar by YAML's rules for what it looks like, and
// keeps how it was written.
func (r *yamlReader) scalar(n *node, y *yaml.Node) {
	n.kind, n.text = text, y.Value
	if y.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0 {
		n.loose = plain
	}
	switch y.ShortTag() {
	case "!!null":
		n.kind = null
	case "!!bool":
		n.kind, n.text = boolean, strings.ToLower(y.Value)
	case "!!int", "!!float":
		n.kind = number
	}
}

// jsonNumber matches what JSON calls a number.
var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)

// canonicalNumber rewrites YAML's other notations of numbers (0x10, 1_000, .5)
// as JSON's; what JSON cannot say (.inf, .nan) stays and is refused later.
func canonicalNumber(s string) string {
	if jsonNumber.MatchString(s) {
		return s
	}
	clean := strings.ReplaceAll(s, "_", "")
	if i, err := strconv.ParseInt(clean, 0, 64); err == nil {
		return strconv.FormatInt(i, 10)
	}
	if f, err := strconv.ParseFloat(clean, 64); err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return s
}

func (r *yamlReader) list(n *node, y *yaml.Node, path string, depth int) error {
	n.kind = list
	for i, c := range y.Content {
		x, err := r.value(c, fmt.Sprintf("%s[%d]", path, i), depth+1)
		if err != nil {
			return err
		}
		n.items = append(n.items, x)
	}
	return nil
}

func (r *yamlReader) object(n *node, y *yaml.Node, path string, depth int) error {
	n.kind = object
	n.members = make([]member, 0, len(y.Content)/2)
	keys := keySet{}
	var merged []*node
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		value, err := r.value(v, join(path, k.Value), depth+1)
		if err != nil {
			return err
		}
		pos := Position{k.Line, k.Column}
		switch {
		case k.ShortTag() == "!!merge":
			merged = append(merged, value)
		case k.Kind != yaml.ScalarNode:
			r.found.add(path, pos, "a key that is no text", "keys of text", "")
		case keys.has(n, k.Value):
			r.found.add(join(path, k.Value), pos, value.describe(), "each key once", "")
		default:
			n.members = append(n.members, member{k.Value, pos, value})
		}
	}
	keys.merge(n, merged)
	return nil
}

// merge adds the keys that << brings and the object lacks.
func (s *keySet) merge(n *node, merged []*node) {
	for _, m := range merged {
		s.merge(n, m.items)
		for _, x := range m.members {
			if !s.has(n, x.key) {
				n.members = append(n.members, x)
			}
		}
	}
}
