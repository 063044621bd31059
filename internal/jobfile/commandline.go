package jobfile

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// flagSyntax is a command line: --key value, and --key alone where it is true.
// program is what torchrun starts; its own options come before it.
func flagSyntax(program string) syntax {
	return syntax{
		name: "a command line", comments: true, decode: decodeFlags,
		encode: func(d document) (string, error) { return encodeFlags(d, program), nil },
	}
}

// ofLauncher are the options of torchrun itself.
var ofLauncher = []string{"nnodes", "nproc-per-node"}

func encodeFlags(d document, program string) string {
	launch := "torchrun"
	var lines []string
	for _, e := range d.entries {
		if slices.Contains(ofLauncher, e.key) {
			launch += fmt.Sprintf(" --%s=%v", e.key, e.value)
			continue
		}
		switch v := e.value.(type) {
		case bool:
			lines = append(lines, "--"+e.key)
		case []any:
			words := make([]string, len(v))
			for i, w := range v {
				words[i] = quoted(fmt.Sprint(w))
			}
			lines = append(lines, "--"+e.key+" "+strings.Join(words, " "))
		default:
			lines = append(lines, "--"+e.key+" "+quoted(fmt.Sprint(v)))
		}
	}
	return strings.Join(append([]string{launch + " " + program}, lines...), " \\\n    ") + "\n"
}

// quoted is a word as a shell reads it back.
func quoted(w string) string {
	if w != "" && strings.IndexFunc(w, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:,=+@%", r))
	}) < 0 {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}

func decodeFlags(data []byte) (document, error) {
	words, err := shellWords(string(data))
	if err != nil {
		return document{}, err
	}
	var d document
	for i := 0; i < len(words); i++ {
		key, ok := strings.CutPrefix(words[i], "--")
		if !ok {
			continue // the program, or a value that belongs to nothing known
		}
		if k, v, ok := strings.Cut(key, "="); ok {
			d.set(k, plain(v))
			continue
		}
		var values []any
		for i+1 < len(words) && !strings.HasPrefix(words[i+1], "--") && !strings.HasSuffix(words[i+1], ".py") {
			i++
			values = append(values, plain(words[i]))
		}
		switch len(values) {
		case 0:
			d.set(key, true)
		case 1:
			d.set(key, values[0])
		default:
			d.set(key, values)
		}
	}
	if len(d.entries) == 0 {
		return d, errors.New("no --option in it")
	}
	return d, nil
}

// plain is a word as the number it spells, or as text.
func plain(w string) any {
	if n, err := strconv.Atoi(w); err == nil {
		return n
	}
	if f, err := strconv.ParseFloat(w, 64); err == nil {
		return f
	}
	return w
}

// shellWords splits a command line as a shell does, without expanding: quotes,
// backslashes, comments to the end of a line.
func shellWords(s string) ([]string, error) {
	if len(s) > limit {
		return nil, errTooLarge
	}
	var words []string
	var word strings.Builder
	open, quote := false, byte(0)
	end := func() {
		if open {
			words = append(words, word.String())
		}
		word.Reset()
		open = false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case quote == 0 && c == '\\' && i+1 < len(s) && s[i+1] == '\n':
			i++
			end()
		case c == '\\' && quote != '\'' && i+1 < len(s):
			i++
			word.WriteByte(s[i])
			open = true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteByte(c)
		case c == '\'' || c == '"':
			quote, open = c, true
		case c == '#' && !open:
			for i+1 < len(s) && s[i+1] != '\n' {
				i++
			}
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			end()
		default:
			word.WriteByte(c)
			open = true
		}
	}
	if quote != 0 {
		return nil, errors.New("a quote that does not end")
	}
	end()
	return words, nil
}
