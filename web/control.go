package web

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/a-h/templ"
)

// String is the kind as a class name.
func (k kind) String() string {
	return [...]string{"text", "number", "select", "model", "long"}[k]
}

// unset is the text of the choice that leaves a field out.
func (c control) unset() string {
	if c.Default == "" {
		return "auto"
	}
	return c.Default + " (auto)"
}

// placeholder is what an empty input shows.
func (c control) placeholder() string {
	if c.Default != "" {
		return c.Default
	}
	return c.Example
}

// hint explains a field where its label is pointed at: its key in the format,
// and the format's own words on it.
func (c control) hint() string {
	if c.Help == "" {
		return c.Path
	}
	return c.Path + ": " + c.Help
}

// optionGroup is options under one heading.
type optionGroup struct {
	Legend  string
	Options []option
}

func (c control) grouped() []optionGroup {
	var out []optionGroup
	for _, o := range c.Options {
		if n := len(out); n == 0 || out[n-1].Legend != o.Group {
			out = append(out, optionGroup{Legend: o.Group})
		}
		last := &out[len(out)-1]
		last.Options = append(last.Options, o)
	}
	return out
}

// selects reports whether an option is the chosen one.
func (s state) selects(c control, o option) bool { return strings.EqualFold(s.value(c), o.Value) }

// unlisted is a value of a select that is none of its options: it is shown
// all the same, with its error beside it, or as the synonym it is.
func (s state) unlisted(c control) string {
	v := s.value(c)
	if v == "" || slices.ContainsFunc(c.Options, func(o option) bool { return s.selects(c, o) }) {
		return ""
	}
	return v
}

func (s state) wrong(c control) bool { return len(s.errorsAt(c.Path)) > 0 }

// bad reports whether the state has no answer.
func (s state) bad() bool { return len(s.Errors) > 0 || s.Fault != nil }

// missing says why there is no answer.
func (s state) missing() string {
	if len(s.Errors) == 0 {
		return "something it needs is missing"
	}
	return plural(len(s.Errors), "a field needs", "some fields need") + " another value"
}

func (s state) errors() []fieldError {
	var out []fieldError
	for _, f := range s.Errors {
		out = append(out, s.fieldError(f))
	}
	return out
}

// changed counts the fields of sections that say something.
func (s state) changed(groups []section) int {
	n := 0
	for _, g := range groups {
		for _, c := range g.Controls {
			if s.value(c) != "" {
				n++
			}
		}
	}
	return n
}

// uses reports whether sections must be open: something in them is wrong.
func (s state) uses(groups []section) bool {
	for _, g := range groups {
		if slices.ContainsFunc(g.Controls, s.wrong) {
			return true
		}
	}
	return false
}

// used is the mark behind a folded section's name.
func (s state) used(groups []section) string {
	if n := s.changed(groups); n > 0 {
		return strconv.Itoa(n) + " set"
	}
	return ""
}

// sentence is the error without its path, which is the label beside it.
func (e fieldError) sentence() string {
	if e.Got == "" {
		return "Want " + e.Want + "."
	}
	return fmt.Sprintf("Got %s, want %s.", clip(e.Got, 60), e.Want)
}

// clip shortens a text that a page only hints at.
func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// follow lets a link to another state of the planner change the page in place.
// Without scripts it is a link. A link within the page stays one.
func follow(href string) templ.Attributes {
	if strings.HasPrefix(href, "#") {
		return nil
	}
	return templ.Attributes{
		"hx-get": href, "hx-target": "#plan", "hx-select": "#plan", "hx-swap": "outerMorph", "hx-push-url": "true",
	}
}

func failureTitle(code int) string {
	switch code {
	case http.StatusNotFound:
		return "Not found"
	case http.StatusServiceUnavailable:
		return "Not available just now"
	}
	if code < http.StatusInternalServerError {
		return "That did not work"
	}
	return "Something failed"
}

// shape prints a tensor's shape as PyTorch does.
func shape(dims []int64) string {
	out := make([]string, len(dims))
	for i, d := range dims {
		out[i] = strconv.FormatInt(d, 10)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// plain prints a value of the format for people.
func plain(v any) string {
	switch x := reflect.ValueOf(v); x.Kind() {
	case reflect.Invalid:
		return "none"
	case reflect.Bool:
		return yesNo(strconv.FormatBool(x.Bool()))
	case reflect.String:
		return x.String()
	case reflect.Float64, reflect.Float32:
		return strconv.FormatFloat(x.Float(), 'g', 4, 64)
	}
	return fmt.Sprint(v)
}
