// Package docs_test makes the pages that state figures from the engine's
// answers, so that none of them is typed.
package docs_test

import (
	"flag"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"text/template"

	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/planner"
	"memplan/internal/units"
	"memplan/internal/wire"
)

var update = flag.Bool("update", false, "write the pages anew")

// TestClaims makes docs/claims.md from its template. A claim whose figures no
// longer say what the text around them says fails in the template's own checks.
func TestClaims(t *testing.T) {
	source, err := os.ReadFile("claims.tmpl.md")
	require.NoError(t, err)
	page, err := template.New("claims").Funcs(figures(t)).Parse(string(source))
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, page.Execute(&out, nil))
	if *update {
		require.NoError(t, os.WriteFile("claims.md", []byte(out.String()), 0o644))
	}
	want, err := os.ReadFile("claims.md")
	require.NoError(t, err)
	require.Equal(t, string(want), out.String(), "go test ./docs -update writes it anew")
}

// figures are the functions of a page: a job in YAML gives an estimate, an
// estimate its figures, and must says what the text relies on.
func figures(t *testing.T) template.FuncMap {
	tables, err := catalog.Open()
	require.NoError(t, err)
	p := planner.New(planner.Config{Catalog: tables})
	return template.FuncMap{
		"job": func(lines ...string) (*estimator.Estimate, error) {
			job, err := wire.DecodeYAML([]byte(strings.Join(lines, "\n")))
			if err != nil {
				return nil, err
			}
			return p.Estimate(t.Context(), job)
		},
		"gib":   func(b units.Bytes) string { return digits(float64(b) / float64(units.GiB)) },
		"mib":   func(b units.Bytes) string { return digits(float64(b) / float64(units.MiB)) },
		"mb":    func(b units.Bytes) string { return digits(float64(b) / 1e6) },
		"gb":    func(b units.Bytes) string { return digits(float64(b) / 1e9) },
		"ratio": func(a, b units.Bytes) float64 { return float64(a) / float64(b) },
		"less":  func(a, b units.Bytes) string { return fmt.Sprintf("%.0f %%", 100*(1-float64(a)/float64(b))) },
		"minus": func(a, b units.Bytes) units.Bytes { return a - b },
		"times": func(n int, b units.Bytes) units.Bytes { return units.Bytes(n) * b },
		"each":  func(n int, b units.Bytes) units.Bytes { return b / units.Bytes(n) },
		"count": func(n int64) string { return grouped(n) },
		"of": func(e *estimator.Estimate, category string) units.Bytes {
			for _, s := range e.Breakdown {
				if s.Category == category {
					return s.Bytes
				}
			}
			return 0
		},
		"phase": func(e *estimator.Estimate, name string) (estimator.Phase, error) {
			for _, p := range e.Phases {
				if p.Name == name {
					return p, nil
				}
			}
			return estimator.Phase{}, fmt.Errorf("no phase %s", name)
		},
		"must": func(holds bool, what string) (string, error) {
			if !holds {
				return "", fmt.Errorf("no longer so: %s", what)
			}
			return "", nil
		},
		"more": func(a, b units.Bytes) bool { return a > b },
		"near": func(x, y float64) bool { return math.Abs(x-y) < 0.05*y },
	}
}

// grouped prints a count with its thousands apart.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// digits prints three significant digits.
func digits(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}
