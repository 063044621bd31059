package web

import (
	"net/url"
	"strings"

	"memplan/internal/fault"
)

// fieldError is what is wrong with one field, and the addresses that put it
// right.
type fieldError struct {
	fault.Field
	Fixes []change
}

func (s state) fieldError(f fault.Field) fieldError {
	e := fieldError{Field: f}
	if f.Path == "model" {
		e.Fixes = s.oneModel()
		return e
	}
	switch path, value, ok := strings.Cut(f.Nearest, ": "); {
	case f.Nearest == "":
	case ok && isField(path): // the nearest job differs in another field
		e.Fixes = append(e.Fixes, change{"Use " + labelOf(path) + ": " + value, s.with(path, value)})
	default:
		e.Fixes = append(e.Fixes, change{"Use " + clip(f.Nearest, 40), s.with(f.Path, f.Nearest)})
	}
	if without, any := s.without(f.Path); any {
		e.Fixes = append(e.Fixes, change{"Leave it out", without})
	}
	return e
}

func isField(path string) bool {
	_, ok := fieldAt(path)
	return ok
}

// oneModel offers each of several models given at once.
func (s state) oneModel() []change {
	ways := []string{"model.id", "model.config", "model.architecture", "model.parameters", "model.graph"}
	var out []change
	for _, keep := range ways {
		if !s.Values.Has(nameOf(keep)) {
			continue
		}
		v := cloneValues(s.Values)
		for _, other := range ways {
			if other != keep {
				v.Del(nameOf(other))
				v.Del(other)
			}
		}
		out = append(out, change{"Use the " + modelWays[keep], "/plan?" + encodeQuery(v, s.Unit)})
	}
	if len(out) < 2 {
		return nil
	}
	return out
}

var modelWays = map[string]string{
	"model.id": "id", "model.config": "pasted config", "model.architecture": "sizes",
	"model.parameters": "count", "model.graph": "graph",
}

// without is the address with everything below a path left out, where the path
// is a group of fields.
func (s state) without(path string) (address string, any bool) {
	v := url.Values{}
	for key, all := range s.Values {
		if strings.HasPrefix(pathOf(key), path+".") {
			any = true
			continue
		}
		v[key] = all
	}
	return "/plan?" + encodeQuery(v, s.Unit), any
}

// pathOf is the path that a key of the URL means.
func pathOf(key string) string {
	for path, names := range vocabulary().spellings {
		for _, n := range names {
			if n == key {
				return path
			}
		}
	}
	return key
}

// controlPath is the control that shows what is wrong at a path: a count is
// typed where ids are, and a long form is chosen in its short one.
func controlPath(path string) string {
	switch {
	case path == "model.parameters" || path == "model":
		return "model.id"
	case strings.Contains(path, ".") && repeats(path):
		return path[:strings.LastIndex(path, ".")]
	}
	return path
}
