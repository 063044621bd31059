package web

import (
	"net/url"
	"strings"
	"sync"

	"memplan/internal/estimator"
	"memplan/internal/wire"
)

// choice is a value of a field.
type choice struct{ path, value string }

// anyValue stands for all that may be written into a field without choices.
const anyValue = "*"

// unmodelled is the choices that the engine refuses for want of rules. The
// engine itself is asked, once for each, so that no list here can differ from
// what it does.
var unmodelled = sync.OnceValue(func() map[choice]bool {
	all := map[choice]bool{}
	for _, path := range vocabulary().order {
		if strings.HasPrefix(path, "model.") && path != "model.implementation" {
			continue
		}
		choices := choicesOf(path)
		for _, value := range choices {
			if refused(path, value) {
				all[choice{path, value}] = true
			}
		}
		for _, value := range samples(path) {
			if len(choices) == 0 && refused(path, value) {
				all[choice{path, anyValue}] = true
			}
		}
	}
	return all
})

// samples are values to try of a field that lists none.
func samples(path string) []string {
	f, _ := fieldAt(path)
	some := append([]string{}, f.Examples...)
	if strings.Contains(f.Type, "number") {
		some = append(some, "2")
	}
	if strings.Contains(f.Type, "boolean") {
		some = append(some, "true")
	}
	return some
}

// beside is what other settings some values need, so that a job with them is
// no contradiction.
func beside() []url.Values {
	return []url.Values{
		{},
		{"training.method": {"lora"}},
		{"training.method": {"frozen"}, "training.modules_to_train": {"lm_head"}},
		{"parallelism.data": {"2"}},
	}
}

// refused reports whether the engine has no rules for a value. One that the
// format does not allow is not refused: what is wrong with it is said when it
// is given.
func refused(path, value string) bool {
	for _, v := range beside() {
		v.Set("model.id", "gpt2")
		v.Set(path, value)
		job, err := wire.DecodeValues(v)
		if err != nil {
			continue
		}
		for _, f := range estimator.Unmodelled(job) {
			if rest, below := strings.CutPrefix(f.Path, path); below && (rest == "" || rest[0] == '.' || rest[0] == '[') {
				return true
			}
		}
		return false
	}
	return false
}

// markUnmodelled notes what of a control the engine has no rules for.
func (c *control) markUnmodelled() {
	c.Unmodelled = unmodelled()[choice{c.Path, anyValue}]
	for i, o := range c.Options {
		c.Options[i].Unmodelled = unmodelled()[choice{c.Path, o.Value}]
	}
}
