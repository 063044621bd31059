package jobfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"
)

// syntax turns a document into text and back.
type syntax struct {
	name     string
	comments bool // lines that begin with # mean nothing
	encode   func(document) (string, error)
	decode   func([]byte) (document, error)
}

// limit is the largest file that is read.
const limit = 1 << 20

var errTooLarge = errors.New("more than 1 MiB")

// nested is a document as a tree, in the order of its entries.
type nested struct {
	keys  []string
	nodes map[string]*nested
	value any
}

func (n *nested) child(key string) *nested {
	if n.nodes == nil {
		n.nodes = map[string]*nested{}
	}
	c := n.nodes[key]
	if c == nil {
		c = new(nested)
		n.nodes[key] = c
		n.keys = append(n.keys, key)
	}
	return c
}

func (d document) tree() *nested {
	root := new(nested)
	for _, e := range d.entries {
		at := root
		for _, key := range splitKey(e.key) {
			at = at.child(key)
		}
		at.value = e.value
	}
	return root
}

// isList says that the children are places of a list.
func (n *nested) isList() bool { return len(n.keys) > 0 && n.keys[0] == "0" }

// yamlSyntax is YAML.
func yamlSyntax() syntax {
	return syntax{name: "YAML", comments: true, encode: encodeYAML, decode: decodeYAML}
}

func encodeYAML(d document) (string, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	node, err := d.tree().yaml()
	if err != nil {
		return "", err
	}
	if err := enc.Encode(node); err != nil {
		return "", err
	}
	return out.String(), enc.Close()
}

func (n *nested) yaml() (*yaml.Node, error) {
	if len(n.keys) == 0 {
		node := new(yaml.Node)
		if err := node.Encode(n.value); err != nil {
			return nil, err
		}
		if l, ok := n.value.([]any); ok && len(l) < 20 {
			node.Style = yaml.FlowStyle
		}
		return node, nil
	}
	node := &yaml.Node{Kind: yaml.MappingNode}
	if n.isList() {
		node.Kind = yaml.SequenceNode
	}
	for _, key := range n.keys {
		child, err := n.nodes[key].yaml()
		if err != nil {
			return nil, err
		}
		if !n.isList() {
			node.Content = append(node.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key})
		}
		node.Content = append(node.Content, child)
	}
	return node, nil
}

func decodeYAML(data []byte) (document, error) {
	if len(data) > limit {
		return document{}, errTooLarge
	}
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return document{}, err
	}
	if len(root.Content) == 0 || root.Content[0].Kind != yaml.MappingNode {
		return document{}, errors.New("no mapping at the top")
	}
	var d document
	return d, d.fromYAML("", root.Content[0], 0)
}

// deepest is how far files may nest.
const deepest = 32

func (d *document) fromYAML(key string, n *yaml.Node, depth int) error {
	if depth > deepest {
		return errors.New("nested too deep")
	}
	switch n.Kind {
	case yaml.AliasNode:
		return fmt.Errorf("line %d: aliases are not read", n.Line)
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if err := d.fromYAML(joinKey(key, n.Content[i].Value), n.Content[i+1], depth+1); err != nil {
				return err
			}
		}
		return nil
	case yaml.SequenceNode:
		if plainYAML(n) {
			break
		}
		for i, c := range n.Content {
			if err := d.fromYAML(joinKey(key, strconv.Itoa(i)), c, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return err
	}
	d.set(key, v)
	return nil
}

// plainYAML says that a list has only plain values.
func plainYAML(n *yaml.Node) bool {
	for _, c := range n.Content {
		if c.Kind != yaml.ScalarNode {
			return false
		}
	}
	return true
}

// jsonSyntax is JSON.
func jsonSyntax() syntax {
	return syntax{name: "JSON", encode: encodeJSON, decode: decodeJSON}
}

func encodeJSON(d document) (string, error) {
	text, err := d.tree().json()
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return "", err
	}
	return out.String() + "\n", nil
}

func (n *nested) json() ([]byte, error) {
	if len(n.keys) == 0 {
		return json.Marshal(n.value)
	}
	var out bytes.Buffer
	out.WriteByte('{')
	for i, key := range n.keys {
		child, err := n.nodes[key].json()
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out.WriteByte(',')
		}
		name, err := json.Marshal(key)
		if err != nil {
			return nil, err
		}
		out.Write(name)
		out.WriteByte(':')
		out.Write(child)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

func decodeJSON(data []byte) (document, error) {
	if !json.Valid(data) {
		return document{}, errors.New("not valid JSON")
	}
	return decodeYAML(data) // JSON is YAML, and that reader keeps the order
}

// tomlSyntax is TOML: the first part of a key is its table.
func tomlSyntax() syntax {
	return syntax{name: "TOML", comments: true, encode: encodeTOML, decode: decodeTOML}
}

func encodeTOML(d document) (string, error) {
	var out strings.Builder
	root := d.tree()
	for _, table := range root.keys {
		if out.Len() > 0 {
			out.WriteByte('\n')
		}
		fmt.Fprintf(&out, "[%s]\n", table)
		for _, key := range root.nodes[table].keys {
			value, err := json.Marshal(root.nodes[table].nodes[key].value) // texts, numbers and lists of them are written alike
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&out, "%s = %s\n", key, value)
		}
	}
	return out.String(), nil
}

func decodeTOML(data []byte) (document, error) {
	if len(data) > limit {
		return document{}, errTooLarge
	}
	var tree map[string]any
	if err := toml.Unmarshal(data, &tree); err != nil {
		return document{}, err
	}
	text, err := yaml.Marshal(tree)
	if err != nil {
		return document{}, err
	}
	return decodeYAML(text)
}
