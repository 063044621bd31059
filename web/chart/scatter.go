package chart

import (
	"fmt"

	"memplan/internal/units"
)

// Scatter is predicted sizes against measured ones, with the line on which they
// are equal.
type Scatter struct {
	ID     string // of the element; unique on its page
	Title  string
	Desc   string
	Points []Dot
	Format func(units.Bytes) string
}

// Dot is one size, measured and predicted, with what it holds of an interval.
type Dot struct {
	Group               string // names its mark: a circle, a square, a triangle
	Name                string
	Measured, Predicted units.Bytes
	Low, High           units.Bytes // 0: none
}

// The plot's edges in pixels from its top; x is in percent of the width.
const (
	scatterHeight             = 320
	scatterTop, scatterBottom = 12, 284
	scatterLeft, scatterRight = 9.0, 97.0
)

// SVG draws the plot. Both axes have one scale, from zero.
func (s Scatter) SVG() string {
	var d drawing
	d.open(s.ID, "scatter", s.Title, s.Desc, scatterHeight)
	limit := units.Bytes(1)
	for _, p := range s.Points {
		limit = max(limit, p.Measured, p.Predicted, p.High)
	}
	x := func(b units.Bytes) float64 {
		return scatterLeft + (scatterRight-scatterLeft)*float64(b)/float64(limit)
	}
	y := func(b units.Bytes) int {
		return scatterBottom - int((scatterBottom-scatterTop)*float64(b)/float64(limit))
	}
	for _, t := range ticks(limit, units.GiB, 5) {
		d.line("grid", x(t), scatterTop, x(t), scatterBottom)
		d.line("grid", scatterLeft, y(t), scatterRight, y(t))
		d.text("note", "middle", x(t), scatterBottom+16, 0, s.Format(t))
		d.text("note", "end", scatterLeft, y(t)+4, -6, s.Format(t))
	}
	d.line("identity", x(0), y(0), x(limit), y(limit))
	for _, p := range s.Points {
		if p.High > 0 {
			d.line("whisker", x(p.Measured), y(p.Low), x(p.Measured), y(p.High))
		}
		title := fmt.Sprintf("%s, %s: measured %s, predicted %s", p.Name, p.Group, s.Format(p.Measured), s.Format(p.Predicted))
		fmt.Fprintf(&d, `<circle class="dot d-%s" cx="%s%%" cy="%d" r="4"><title>`, p.Group, num(x(p.Measured)), y(p.Predicted))
		escape(&d, title)
		d.WriteString(`</title></circle>`)
	}
	d.text("note", "end", scatterRight, scatterHeight-4, 0, "measured")
	d.text("note", "start", scatterLeft, scatterTop+2, 6, "predicted")
	return d.close()
}
