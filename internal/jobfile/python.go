package jobfile

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// pythonSyntax is Python calls with keyword arguments, one after another. The
// first part of a key is the call, the second the argument; a value that is
// itself a call or a dictionary continues the key.
func pythonSyntax() syntax {
	return syntax{name: "Python calls with keyword arguments", comments: true, encode: encodePython, decode: decodePython}
}

// modules say where the names of calls come from.
var modules = []struct {
	from  string
	names []string
}{
	{"lightning", []string{"Trainer"}},
	{"peft", []string{"LoraConfig"}},
	{"transformers", []string{"AutoModelForCausalLM", "BitsAndBytesConfig", "TrainingArguments"}},
	{"trl", []string{"SFTConfig"}},
}

// imports are the lines that the calls need before them.
func imports(calls []string) string {
	var out strings.Builder
	for _, m := range modules {
		var used []string
		for _, name := range m.names {
			if slices.ContainsFunc(calls, func(c string) bool { return c == name || strings.HasPrefix(c, name+".") }) {
				used = append(used, name)
			}
		}
		if len(used) > 0 {
			fmt.Fprintf(&out, "from %s import %s\n", m.from, strings.Join(used, ", "))
		}
	}
	return out.String()
}

// expression is Python code that stands for a value.
type expression string

// assignments are the names that calls are usually bound to.
var assignments = map[string]string{
	"TrainingArguments": "args", "SFTConfig": "args", "LoraConfig": "peft_config",
	"BitsAndBytesConfig": "quantization_config", "Trainer": "trainer", "AutoModelForCausalLM.from_pretrained": "model",
}

func encodePython(d document) (string, error) {
	var out strings.Builder
	root := d.tree()
	out.WriteString(imports(root.keys))
	for _, call := range root.keys {
		if out.Len() > 0 {
			out.WriteByte('\n')
		}
		if name := assignments[call]; name != "" {
			out.WriteString(name + " = ")
		}
		out.WriteString(call + "(\n")
		n := root.nodes[call]
		for _, key := range n.keys {
			c := n.nodes[key]
			if key == "0" {
				fmt.Fprintf(&out, "    %s,\n", python(c))
				continue
			}
			fmt.Fprintf(&out, "    %s=%s,\n", key, python(c))
		}
		out.WriteString(")\n")
	}
	return out.String(), nil
}

// python is a value, or a dictionary of the values below, as Python writes it.
func python(n *nested) string {
	if len(n.keys) > 0 {
		var items []string
		for _, key := range n.keys {
			items = append(items, strconv.Quote(key)+": "+python(n.nodes[key]))
		}
		return "{" + strings.Join(items, ", ") + "}"
	}
	switch v := n.value.(type) {
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case string:
		return strconv.Quote(v)
	case expression:
		return string(v)
	case []any:
		items := make([]string, len(v))
		for i, x := range v {
			items[i] = python(&nested{value: x})
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	return fmt.Sprint(n.value)
}

// decodePython reads every call in a file that has keyword arguments of plain
// values, wherever it stands; what it cannot read it passes over.
func decodePython(data []byte) (document, error) {
	if len(data) > limit {
		return document{}, errTooLarge
	}
	p := &pythonReader{text: []rune(string(data))}
	for !p.done() {
		if name := p.dotted(); name != "" {
			p.space()
			if p.accept('(') {
				p.arguments(strings.ReplaceAll(name, ".", `\.`))
			}
			continue
		}
		p.skip()
	}
	if len(p.found.entries) == 0 {
		return document{}, errors.New("no call with keyword arguments in it")
	}
	return p.found, nil
}

// pythonReader walks over Python text.
type pythonReader struct {
	text  []rune
	at    int
	depth int
	found document
}

func (p *pythonReader) done() bool { return p.at >= len(p.text) }

func (p *pythonReader) peek() rune {
	if p.done() {
		return 0
	}
	return p.text[p.at]
}

func (p *pythonReader) accept(r rune) bool {
	if p.peek() == r {
		p.at++
		return true
	}
	return false
}

// space passes over blanks and comments.
func (p *pythonReader) space() {
	for !p.done() {
		switch c := p.peek(); {
		case unicode.IsSpace(c) || c == '\\':
			p.at++
		case c == '#':
			for !p.done() && p.peek() != '\n' {
				p.at++
			}
		default:
			return
		}
	}
}

// skip passes over one token that means nothing here.
func (p *pythonReader) skip() {
	p.space()
	switch c := p.peek(); {
	case c == '"' || c == '\'':
		p.quotedText()
	case !p.done() && !isName(c):
		p.at++
	}
}

func isName(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// dotted reads a name with dots; "" where none begins.
func (p *pythonReader) dotted() string {
	start := p.at
	if c := p.peek(); c != '_' && !unicode.IsLetter(c) {
		if unicode.IsDigit(c) { // a number is no name, and must be passed over whole
			for isName(p.peek()) || p.peek() == '.' {
				p.at++
			}
		}
		return ""
	}
	for isName(p.peek()) || p.peek() == '.' {
		p.at++
	}
	return string(p.text[start:p.at])
}

// quotedText reads a quoted text, also one in three quotes.
func (p *pythonReader) quotedText() string {
	q := p.peek()
	three := p.at+2 < len(p.text) && p.text[p.at+1] == q && p.text[p.at+2] == q
	if three {
		p.at += 3
	} else {
		p.at++
	}
	var out strings.Builder
	for !p.done() {
		c := p.peek()
		switch {
		case c == '\\' && p.at+1 < len(p.text):
			p.at++
			out.WriteRune(p.peek())
		case c == q && !three:
			p.at++
			return out.String()
		case c == q && p.at+2 < len(p.text) && p.text[p.at+1] == q && p.text[p.at+2] == q:
			p.at += 3
			return out.String()
		default:
			out.WriteRune(c)
		}
		p.at++
	}
	return out.String()
}

// arguments reads up to the closing parenthesis of a call, under a key.
func (p *pythonReader) arguments(prefix string) {
	if p.depth++; p.depth > deepest {
		p.at = len(p.text)
		return
	}
	defer func() { p.depth-- }()
	for place := 0; ; {
		p.space()
		if p.done() || p.accept(')') || p.accept(']') || p.accept('}') { // the last two: it was no Python
			return
		}
		start := p.at
		name := p.dotted()
		p.space()
		if name != "" && p.accept('=') && p.peek() != '=' {
			p.value(prefix + "." + name)
		} else {
			p.at = start
			p.value(prefix + "." + strconv.Itoa(place))
			place++
		}
		p.rest()
	}
}

// value reads a plain value under a key: texts, numbers, truth values, lists
// and dictionaries of them. Anything else is passed over, calls in it read.
func (p *pythonReader) value(key string) {
	p.space()
	switch c := p.peek(); {
	case c == '"' || c == '\'':
		p.found.set(key, p.quotedText())
	case c == '[' || c == '(':
		p.sequence(key)
	case c == '{':
		p.dictionary(key)
	default:
		p.scalar(key)
	}
}

func (p *pythonReader) scalar(key string) {
	start := p.at
	for isName(p.peek()) || strings.ContainsRune(".-+", p.peek()) && p.peek() != 0 {
		p.at++
	}
	switch word := string(p.text[start:p.at]); word {
	case "True":
		p.found.set(key, true)
	case "False":
		p.found.set(key, false)
	case "None":
		p.found.set(key, nil)
	case "":
	default:
		p.space()
		if p.accept('(') {
			if word == "dict" {
				p.arguments(key)
				return
			}
			p.arguments(strings.ReplaceAll(word, ".", `\.`))
			return
		}
		p.found.set(key, plain(strings.ReplaceAll(word, "_000", "000")))
	}
}

func (p *pythonReader) sequence(key string) {
	p.at++
	items := []any{}
	for {
		p.space()
		if p.done() || p.accept(']') || p.accept(')') {
			break
		}
		before := p.at
		inner := &pythonReader{text: p.text, at: p.at, depth: p.depth + 1}
		if inner.depth > deepest {
			p.at = len(p.text)
			return
		}
		inner.value("x")
		if v, ok := inner.found.get("x"); ok {
			items = append(items, v)
		}
		p.at = inner.at
		p.space()
		p.accept(',')
		if p.at == before {
			p.at++
		}
	}
	p.found.set(key, items)
}

func (p *pythonReader) dictionary(key string) {
	if p.depth++; p.depth > deepest {
		p.at = len(p.text)
		return
	}
	defer func() { p.depth-- }()
	p.at++
	for {
		p.space()
		if p.done() || p.accept('}') {
			return
		}
		before := p.at
		if c := p.peek(); c == '"' || c == '\'' {
			name := p.quotedText()
			p.space()
			if p.accept(':') {
				p.value(joinKey(key, name))
			}
		}
		p.space()
		p.accept(',')
		if p.at == before {
			p.at++
		}
	}
}

// rest passes over what is left of an argument, to its comma.
func (p *pythonReader) rest() {
	for depth := 0; !p.done(); {
		p.space()
		switch c := p.peek(); {
		case c == '"' || c == '\'':
			p.quotedText()
			continue
		case strings.ContainsRune("([{", c):
			depth++
		case strings.ContainsRune(")]}", c) && depth == 0:
			return
		case strings.ContainsRune(")]}", c):
			depth--
		case c == ',' && depth == 0:
			p.at++
			return
		}
		p.at++
	}
}
