package wire

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	jsonv2 "github.com/go-json-experiment/json"
	"go.yaml.in/yaml/v3"

	"memplan/internal/estimator/spec"
)

// Schema is the JSON Schema of a job: the public contract, as it is served.
//
//go:embed job.schema.json
var Schema []byte

// Decoder reads jobs by a compiled schema. It is immutable: one serves any
// number of goroutines.
type Decoder struct {
	root        *rule
	synonyms    map[string]Synonym
	aliases     map[string]Alias
	names       map[string]string   // alias by path
	paths       map[string][]string // by key name
	longAliases []string            // those long enough to be mistyped
}

// NewDecoder compiles a job's schema.
func NewDecoder(schema []byte) (*Decoder, error) {
	root, err := compileSchema(schema)
	if err != nil {
		return nil, err
	}
	annotate(root, "")
	d := &Decoder{root: root, synonyms: map[string]Synonym{}, aliases: map[string]Alias{}, names: map[string]string{}, paths: map[string][]string{}}
	for _, s := range Synonyms() {
		d.synonyms[s.Key] = s
	}
	for _, a := range Aliases() {
		d.aliases[a.Key], d.names[a.Path] = a, a.Key
		if len(a.Key) > 3 {
			d.longAliases = append(d.longAliases, a.Key)
		}
	}
	d.collectPaths(root, "")
	return d, nil
}

// collectPaths notes where each key name stands, for suggestions.
func (d *Decoder) collectPaths(r *rule, path string) {
	for _, reader := range r.by {
		if reader == nil {
			continue
		}
		for _, f := range reader.fields {
			at := join(path, f.name)
			d.paths[f.name] = append(d.paths[f.name], at)
			d.collectPaths(f.rule, at)
		}
	}
}

// standard is the decoder of the embedded schema.
var standard = sync.OnceValue(func() *Decoder {
	d, err := NewDecoder(Schema)
	if err != nil {
		panic(err) // the embedded schema is part of the build, and tested
	}
	return d
})

// DecodeJSON reads a job from JSON. A job that is wrong gives an *Invalid that
// lists every wrong field; one that is too large, a fault of kind TooLarge.
func DecodeJSON(data []byte) (spec.Job, error) { return standard().JSON(data) }

// DecodeYAML reads a job from one YAML document, with the errors of
// DecodeJSON.
func DecodeYAML(data []byte) (spec.Job, error) { return standard().YAML(data) }

// Decode reads a job from JSON or YAML, whichever it looks like.
func Decode(data []byte) (spec.Job, error) {
	if looksLikeJSON(data) {
		return DecodeJSON(data)
	}
	return DecodeYAML(data)
}

// looksLikeJSON reports whether the text begins as a JSON object does, which
// YAML's flow style hardly ever does.
func looksLikeJSON(data []byte) bool {
	rest, found := bytes.CutPrefix(bytes.TrimSpace(data), []byte("{"))
	rest = bytes.TrimSpace(rest)
	return found && (len(rest) == 0 || rest[0] == '"' || rest[0] == '}')
}

// JSON reads a job from JSON.
func (d *Decoder) JSON(data []byte) (spec.Job, error) { return d.read(data, readJSON) }

// YAML reads a job from YAML.
func (d *Decoder) YAML(data []byte) (spec.Job, error) { return d.read(data, readYAML) }

func (d *Decoder) read(data []byte, reader func([]byte, *Invalid) (*node, error)) (spec.Job, error) {
	found := &Invalid{}
	root, err := reader(data, found)
	if err != nil {
		return spec.Job{}, err
	}
	return (&check{d: d, found: found}).job(root)
}

// job checks a tree and builds the job it describes.
func (c *check) job(root *node) (spec.Job, error) {
	if root.kind != object {
		c.wrong("job", root, "an object with the key model", "")
		return spec.Job{}, c.found
	}
	c.rename(root, root, "", c.d.root.index)
	c.rename(root, root.get("training"), "training", c.d.root.index["training"].index)
	c.method(root)
	c.value(c.d.root, "", root)
	job, err := build(root)
	if err != nil {
		return spec.Job{}, err
	}
	c.contradictions(job, root)
	return job, c.found.err()
}

// build makes a job of a checked tree.
func build(root *node) (spec.Job, error) {
	job := spec.Job{Version: 1}
	if err := jsonv2.Unmarshal(root.appendJSON(make([]byte, 0, 2048)), &job); err != nil {
		return spec.Job{}, fmt.Errorf("wire: a checked job does not fit its type: %w", err)
	}
	return job, nil
}

// nearestKey suggests a key, by its full path, for one that an object does not
// have: a key of the same object, the same key elsewhere, or one like it
// elsewhere.
func (d *Decoder) nearestKey(r *rule, path, key string) string {
	var own, all []string
	for _, f := range r.fields {
		own = append(own, f.name)
	}
	if path == "" || path == "training" {
		for name := range d.synonyms {
			own = append(own, name)
		}
	}
	if path == "" {
		own = append(own, d.longAliases...)
	}
	slices.Sort(own)
	if best := nearest(key, own); best != "" {
		if s, ok := d.synonyms[best]; ok && r.index[best] == nil {
			return s.Path
		}
		if a, ok := d.aliases[best]; ok && r.index[best] == nil {
			return a.Path
		}
		return join(path, best)
	}
	for name := range d.paths {
		all = append(all, name)
	}
	slices.Sort(all)
	if best := nearest(key, all); best != "" {
		return closestPath(d.paths[best], path)
	}
	return ""
}

// closestPath prefers the path with the longest beginning in common, then the
// shortest.
func closestPath(paths []string, path string) string {
	return slices.MinFunc(paths, func(a, b string) int {
		if sa, sb := strings.HasPrefix(a, path+"."), strings.HasPrefix(b, path+"."); sa != sb {
			if sa {
				return -1
			}
			return 1
		}
		return strings.Count(a, ".") - strings.Count(b, ".")
	})
}

// Encode writes the normal form of a job as JSON: only what is set, keys in
// the format's order, every union in its shortest form.
func Encode(job spec.Job) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(job); err != nil {
		return nil, fmt.Errorf("wire: encode job: %w", err)
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// EncodeYAML writes the normal form as YAML.
func EncodeYAML(job spec.Job) ([]byte, error) {
	n, err := treeOf(job)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(n.yaml()); err != nil {
		return nil, fmt.Errorf("wire: encode job: %w", err)
	}
	return b.Bytes(), e.Close()
}

// treeOf is the normal form of a job as a tree.
func treeOf(job spec.Job) (*node, error) {
	data, err := Encode(job)
	if err != nil {
		return nil, err
	}
	return readJSON(data, &Invalid{})
}

// yaml turns a tree into the library's nodes; lists of scalars are written in
// one line.
func (n *node) yaml() *yaml.Node {
	switch n.kind {
	case list:
		y := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for _, x := range n.items {
			if x.kind > text {
				y.Style = 0
			}
			y.Content = append(y.Content, x.yaml())
		}
		return y
	case object:
		y := &yaml.Node{Kind: yaml.MappingNode}
		for _, m := range n.members {
			y.Content = append(y.Content, (&node{kind: text, text: m.key}).yaml(), m.value.yaml())
		}
		return y
	case text:
		y := &yaml.Node{}
		y.SetString(n.text)
		return y
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: n.text}
}
