package chart_test

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"memplan/internal/units"
	"memplan/web/chart"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func bar() chart.Bar {
	return chart.Bar{
		ID: "b", Title: "At the peak", Desc: "Parameters 15.0 GiB & more",
		Parts: []chart.Part{
			{Category: "parameters", Bytes: 15 * units.GiB},
			{Category: "gradients", Bytes: 15 * units.GiB},
			{Category: "optimizer", Bytes: 30 * units.GiB},
			{Category: "activations", Bytes: 2 * units.GiB},
			{Category: "rounding", Bytes: 4096},
			{Category: "context", Bytes: 512 * units.MiB},
		},
		Usable: 79 * units.GiB, Required: 61 * units.GiB, Low: 60 * units.GiB, High: 63 * units.GiB,
		Format: units.Bytes.String,
	}
}

func timeline() chart.Timeline {
	t := chart.Timeline{
		ID: "t", Title: "Through the steps", Desc: "Peak in backward",
		Categories: []string{"parameters", "gradients", "activations"},
		Usable:     24 * units.GiB, Unit: units.GiB, PeakLabel: "peak 20.0 GiB", Format: units.Bytes.String, Tick: units.Bytes.String,
	}
	add := func(part string, layers ...units.Bytes) {
		p := chart.Point{Event: 10 * len(t.Points), Phase: "steady_step", Part: part}
		for _, l := range layers {
			p.Layers = append(p.Layers, l*units.GiB)
			p.Allocated += l * units.GiB
		}
		p.Reserved = 21 * units.GiB
		t.Points = append(t.Points, p)
	}
	for i := range units.Bytes(8) {
		add("forward", 10, 0, i)
	}
	for i := range units.Bytes(8) {
		add("backward", 10, i+3, 7-i)
	}
	for range 4 {
		add("optimizer", 10, 10, 0)
	}
	return t
}

func TestGolden(t *testing.T) {
	t.Parallel()
	over := bar()
	over.Usable = 40 * units.GiB
	decimal := timeline()
	decimal.Unit, decimal.Format, decimal.Tick = units.GB, units.Bytes.Decimal, units.Bytes.Decimal
	tests := []struct {
		name string
		svg  string
	}{
		{"bar that fits", bar().SVG()},
		{"bar that exceeds", over.SVG()},
		{"timeline", timeline().SVG()},
		{"timeline in GB", decimal.SVG()},
		{"patterns", chart.Patterns()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			golden(t, strings.ReplaceAll(tt.name, " ", "-")+".svg", breakLines(tt.svg))
		})
	}
}

// breakLines puts each element on its own line, for a diff that can be read.
func breakLines(svg string) string { return strings.ReplaceAll(svg, "><", ">\n<") + "\n" }

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(string(want), got))
}

func TestDrawingsAreWellFormedAndNamed(t *testing.T) {
	t.Parallel()
	for _, svg := range []string{bar().SVG(), timeline().SVG(), chart.Patterns()} {
		dec := xml.NewDecoder(strings.NewReader(svg))
		for {
			_, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
		}
	}
	for _, svg := range []string{bar().SVG(), timeline().SVG()} {
		require.Contains(t, svg, `role="img"`)
		require.Contains(t, svg, `<title id=`)
		require.Contains(t, svg, `<desc id=`)
		require.NotContains(t, svg, "style=", "a strict content policy refuses inline styles")
	}
}

func TestBarScalesToTheLongestThing(t *testing.T) {
	t.Parallel()
	b := bar()
	b.Usable, b.High, b.Required, b.Low = 10*units.GiB, 200*units.GiB, 100*units.GiB, 90*units.GiB
	svg := b.SVG()
	require.Contains(t, svg, `x1="4.9%" x2="4.9%"`, "usable at 10/200 of 98 %")
	require.Contains(t, svg, `x1="98%" x2="98%"`, "the interval's high end at 98 %")
}

func TestThinPartsAreNotDrawn(t *testing.T) {
	t.Parallel()
	svg := bar().SVG()
	require.NotContains(t, svg, "c-rounding")
	require.Contains(t, svg, "c-context")
}

func TestTimelineWithoutPointsIsEmpty(t *testing.T) {
	t.Parallel()
	require.Empty(t, chart.Timeline{}.SVG())
}

func TestTimelineOfOnePoint(t *testing.T) {
	t.Parallel()
	one := timeline()
	one.Points = one.Points[:1]
	require.Contains(t, one.SVG(), "area c-parameters")
}

func TestCategoriesAreInOrderAndKnown(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for i, c := range chart.Categories() {
		require.False(t, seen[c.Key], c.Key)
		seen[c.Key] = true
		require.Equal(t, i, chart.Order(c.Key))
		require.Equal(t, c.Label, chart.Label(c.Key))
		require.NotEmpty(t, c.How, c.Key)
	}
	require.Equal(t, "brand_new", chart.Label("brand_new"), "an unknown category shows its key")
	require.Equal(t, len(seen), chart.Order("brand_new"))
}
