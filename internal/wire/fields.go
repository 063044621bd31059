package wire

import "strings"

// Field describes one key of a job, for forms, help texts and documentation.
// The table of them is derived from the schema.
type Field struct {
	Path     string   // training.micro_batch_size
	Alias    string   // its short key in URLs, if any
	Type     string   // "boolean", "whole number", "number", "text", "list", "object", alternatives joined by " or "
	Want     string   // what is allowed, in words
	Enum     []string // the names allowed, where there is a list; an object may be another way
	Default  string   // as a form shows it; empty where trainer or version decides
	Examples []string
	Help     string
	Low      *float64 // least number allowed, where there is one
	High     *float64 // largest number allowed, where there is one
}

// Fields lists every key of the format but the free contents of model.config
// and the like, in the format's order. A key that may be written short (an
// optimizer) is followed by those of its long form.
func Fields() []Field {
	d := standard()
	var out []Field
	d.describe(&out, d.root, "")
	return out
}

// describe appends the keys of r's object form.
func (d *Decoder) describe(out *[]Field, r *rule, path string) {
	for _, f := range r.objectFields() {
		at := join(path, f.name)
		if types := f.rule.typeNames(); strings.Join(types, "") != "object" || len(f.rule.objectFields()) == 0 || f.rule.by[object].extra != nil {
			*out = append(*out, d.field(f.rule, at, types))
		}
		if f.rule.by[object] == nil || f.rule.by[object].extra == nil {
			d.describe(out, f.rule, at)
		}
	}
}

// objectFields are the keys of r where it is an object.
func (r *rule) objectFields() []field {
	if r.by[object] == nil {
		return nil
	}
	return r.by[object].fields
}

func (d *Decoder) field(r *rule, path string, types []string) Field {
	f := Field{Path: path, Alias: d.names[path], Type: strings.Join(types, " or "), Want: r.want, Help: r.help}
	if r.def != nil && r.def.kind != null {
		f.Default = r.plain(r.def)
	}
	for _, x := range r.examples {
		f.Examples = append(f.Examples, r.plain(x))
	}
	for _, reader := range r.by {
		if reader != nil {
			f.Enum = append(f.Enum, enumOf(reader)...)
		}
	}
	if n := r.by[number]; n != nil {
		f.Low, f.High = n.low.pointer(), n.high.pointer()
	}
	return f
}

// enumOf lists the names a value, or the items of a list, may have.
func enumOf(r *rule) []string {
	if r.values == nil && r.items != nil {
		r = r.items
	}
	var names []string
	for _, v := range r.values {
		names = append(names, v.text)
	}
	return names
}

func (b bound) pointer() *float64 {
	if !b.set {
		return nil
	}
	return &b.value
}

// typeNames lists the kinds a rule reads, null left out.
func (r *rule) typeNames() []string {
	names := [kinds]string{boolean: "boolean", number: "number", text: "text", list: "list", object: "object"}
	var out []string
	for k, reader := range r.by {
		switch {
		case reader == nil || kind(k) == null:
		case kind(k) == number && reader.whole:
			out = append(out, "whole number")
		default:
			out = append(out, names[k])
		}
	}
	return out
}
