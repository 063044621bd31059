package chart

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"

	"memplan/internal/units"
)

// lettering is the width of one character of a label in CSS pixels, on the
// generous side, and narrow and wide the widths of drawing at which a label
// may count on room.
const (
	lettering = 6.4
	narrow    = 300.0
	wide      = 560.0
)

// drawing collects SVG text.
type drawing struct{ strings.Builder }

// open begins the picture: an image to assistive technology, named by its
// title and described by its summary.
func (d *drawing) open(id, class, title, desc string, height int) {
	fmt.Fprintf(d, `<svg class="chart %s" role="img" aria-labelledby="%s-t %s-d" width="100%%" height="%d">`, class, id, id, height)
	fmt.Fprintf(d, `<title id="%s-t">%s</title><desc id="%s-d">%s</desc>`, id, html.EscapeString(title), id, html.EscapeString(desc))
}

func (d *drawing) close() string {
	d.WriteString(`</svg>`)
	return d.String()
}

// rect draws a box: x and w in percent, y and h in pixels, with a title that
// shows on hover.
func (d *drawing) rect(class string, x, w float64, y, h int, fill, title string) {
	fmt.Fprintf(d, `<rect class="%s" x="%s%%" width="%s%%" y="%d" height="%d"`, class, num(x), num(w), y, h)
	if fill != "" {
		fmt.Fprintf(d, ` fill="%s"`, fill)
	}
	if title == "" {
		d.WriteString(`/>`)
		return
	}
	fmt.Fprintf(d, `><title>%s</title></rect>`, html.EscapeString(title))
}

// line draws from (x1, y1) to (x2, y2): x in percent, y in pixels.
func (d *drawing) line(class string, x1 float64, y1 int, x2 float64, y2 int) {
	fmt.Fprintf(d, `<line class="%s" x1="%s%%" x2="%s%%" y1="%d" y2="%d"/>`, class, num(x1), num(x2), y1, y2)
}

// escape writes text that is no markup.
func escape(d *drawing, s string) { d.WriteString(html.EscapeString(s)) }

// text writes at x percent and y pixels; dx shifts it by pixels.
func (d *drawing) text(class, anchor string, x float64, y, dx int, s string) {
	fmt.Fprintf(d, `<text class="%s" x="%s%%" y="%d" text-anchor="%s"`, class, num(x), y, anchor)
	if dx != 0 {
		fmt.Fprintf(d, ` dx="%d"`, dx)
	}
	fmt.Fprintf(d, `>%s</text>`, html.EscapeString(s))
}

// room returns the class of a label by the width it needs: shown always, shown
// only on a wide drawing, or "" for not at all.
func room(s string, percent float64) string {
	need := float64(len([]rune(s)))*lettering + 8
	switch {
	case need <= narrow*percent/100:
		return "label"
	case need <= wide*percent/100:
		return "label roomy"
	}
	return ""
}

// side says on which side of x percent a text hangs so that it stays inside.
func side(x float64) (anchor string, dx int) {
	if x > 55 {
		return "end", -6
	}
	return "start", 6
}

// num prints a coordinate with two decimals at most.
func num(v float64) string {
	return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
}

// Pattern is the fill that lays a category's pattern over its colour.
func Pattern(category string) string { return "url(#p-" + patternOf(category) + ")" }

// patternOf gives neighbours in the stack different patterns, so that they can
// be told apart without colour.
func patternOf(category string) string {
	switch category {
	case "gradients", "logits", "context", "adapters":
		return "rise"
	case "optimizer", "temporaries", "communication":
		return "fall"
	case "fragmentation", "buckets", "master_weights":
		return "dots"
	case "rounding", "cublas_workspace", "conv_workspace", "inputs":
		return "bars"
	}
	return "plain"
}

// Patterns is the definition of the fills that drawings refer to; a page holds
// it once.
func Patterns() string {
	const cell = `<pattern id="p-%s" width="8" height="8" patternUnits="userSpaceOnUse">%s</pattern>`
	var b strings.Builder
	b.WriteString(`<svg class="patterns" width="0" height="0" aria-hidden="true" focusable="false"><defs>`)
	for _, p := range [...][2]string{
		{"plain", ``},
		{"rise", `<path d="M-2 2L2 -2M0 8L8 0M6 10L10 6"/>`},
		{"fall", `<path d="M-2 6L2 10M0 0L8 8M6 -2L10 2"/>`},
		{"dots", `<circle cx="2" cy="2" r="1"/><circle cx="6" cy="6" r="1"/>`},
		{"bars", `<path d="M2 0V8M6 0V8"/>`},
	} {
		fmt.Fprintf(&b, cell, p[0], p[1])
	}
	b.WriteString(`</defs></svg>`)
	return b.String()
}

// ticks returns round values of a scale up to limit, about want of them, in
// steps of 1, 2, 2.5 or 5 times a power of ten of unit.
func ticks(limit, unit units.Bytes, want int) []units.Bytes {
	if limit <= 0 {
		return nil
	}
	raw := float64(limit) / float64(unit) / float64(want)
	mag := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * mag
	for _, m := range []float64{1, 2, 2.5, 5} {
		if raw <= m*mag {
			step = m * mag
			break
		}
	}
	var out []units.Bytes
	for v := step; v*float64(unit) <= float64(limit); v += step {
		out = append(out, units.Bytes(math.Round(v*float64(unit))))
	}
	return out
}
