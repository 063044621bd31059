package web

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"memplan/internal/wire"
)

// vocabulary is what the format calls its fields, indexed. It never changes.
var vocabulary = sync.OnceValue(func() words {
	w := words{fields: map[string]wire.Field{}, spellings: map[string][]string{}}
	for _, f := range wire.Fields() {
		w.fields[f.Path] = f
		w.order = append(w.order, f.Path)
		if f.Alias != "" {
			w.spellings[f.Path] = append(w.spellings[f.Path], f.Alias)
		}
		w.spellings[f.Path] = append(w.spellings[f.Path], f.Path)
	}
	for _, s := range wire.Synonyms() {
		w.spellings[s.Path] = append(w.spellings[s.Path], s.Key, "training."+s.Key)
	}
	return w
})

// words is the fields of the format by path.
type words struct {
	fields    map[string]wire.Field
	order     []string
	spellings map[string][]string // keys of the URL that mean a path, the proper one first
}

// openPaths are objects whose keys anyone may choose: a key below them is a
// field although the format cannot list it.
const openPaths = "runtime.library_versions."

// fieldAt finds a field of the format by its path.
func fieldAt(path string) (wire.Field, bool) {
	if f, ok := vocabulary().fields[path]; ok {
		return f, true
	}
	if strings.HasPrefix(path, openPaths) {
		return wire.Field{Path: path, Type: "text"}, true
	}
	return wire.Field{}, false
}

// nameOf is the key of a path in the URL: its short one where it has one.
func nameOf(path string) string { return spellings(path)[0] }

// spellings is every key of the URL that means a path, the proper one first.
func spellings(path string) []string {
	if s := vocabulary().spellings[path]; len(s) > 0 {
		return s
	}
	return []string{path}
}

// choicesOf is the values that the format lists for a path.
func choicesOf(path string) []string {
	f, _ := fieldAt(path)
	switch {
	case len(f.Enum) > 0 && f.Type == "boolean or text":
		return append(slices.Clone(f.Enum), "true", "false")
	case f.Type == "boolean":
		return []string{"true", "false"}
	}
	return f.Enum
}

// labelOf is what the form calls a path, or the one it is a part of.
func labelOf(path string) string {
	if label, ok := labels()[path]; ok {
		return label
	}
	return sentenceCase(path)
}

// labels is the names that the layout gives.
var labels = sync.OnceValue(func() map[string]string {
	m := map[string]string{"model": "Model", "model.parameters": "Parameters"}
	for _, p := range firstFields {
		m[p.path] = p.label
	}
	for _, g := range folded {
		for _, p := range g.fields {
			m[p.path] = p.label
		}
	}
	m["model.architecture"] = "Architecture" // on its own, without the field that takes it
	return m
})

// controlFor makes the control of a placed field.
func controlFor(p placed) (control, bool) {
	f, ok := fieldAt(p.path)
	if !ok {
		return control{}, false
	}
	c := control{
		Path: f.Path, Name: nameOf(f.Path), ID: idOf(f.Path), Label: p.label, Help: f.Help,
		Suffix: p.suffix, Default: shownDefault(f), Only: p.only, Kind: kindOf(f), Step: "any",
	}
	if f.Type == "whole number" {
		c.Step = "1"
	}
	if f.Low != nil {
		c.Min = fmt.Sprint(*f.Low)
	}
	if len(f.Examples) > 0 {
		c.Example = "such as " + f.Examples[0]
	}
	if c.Kind == selectInput {
		for _, v := range choicesOf(f.Path) {
			c.Options = append(c.Options, option{Value: v, Text: yesNo(v)})
		}
	}
	c.markUnmodelled()
	return c, true
}

// kindOf is how a field is asked for: what the format lists is chosen, a
// number is a number, and all else is text.
func kindOf(f wire.Field) kind {
	switch {
	case f.Path == "model.id":
		return modelInput
	case f.Path == "model.config" || f.Path == "model.architecture" || f.Path == "model.graph":
		return longInput
	case len(choicesOf(f.Path)) > 0 && !strings.Contains(f.Type, "list") && !strings.Contains(f.Type, "number or text"):
		return selectInput
	case f.Type == "whole number" || f.Type == "number":
		return numberInput
	}
	return textInput
}

// shownDefault is a field's default as the form shows it.
func shownDefault(f wire.Field) string {
	if f.Default == "[]" || f.Default == "0.0" {
		return map[string]string{"[]": "none", "0.0": "0"}[f.Default]
	}
	return yesNo(f.Default)
}

// yesNo says booleans as people do.
func yesNo(v string) string {
	switch v {
	case "true":
		return "yes"
	case "false":
		return "no"
	}
	return v
}

// formText writes a value of the format as a form does: text bare, all else as
// JSON.
func formText(v any) string {
	if s := reflect.ValueOf(v); s.Kind() == reflect.String {
		return s.String()
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}
