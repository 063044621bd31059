package chart

import (
	"fmt"

	"memplan/internal/units"
)

// Bar is the memory at the peak as one stacked bar, with the line of what is
// usable and the interval of what is required below it.
type Bar struct {
	ID     string // of the element; unique on its page
	Title  string
	Desc   string
	Parts  []Part // in the order of Categories
	Usable units.Bytes
	// Required and its 5th and 95th percentile.
	Required, Low, High units.Bytes
	Format              func(units.Bytes) string
}

// Part is one category of a bar.
type Part struct {
	Category string
	Bytes    units.Bytes
}

// The bar's rows, in pixels from its top.
const (
	barTop, barHeight   = 22, 40
	whiskerY, whiskerUp = 80, 5
	barChartHeight      = 106
	hairline            = 0.15 // percent; thinner parts are not drawn
)

// SVG draws the bar.
func (b Bar) SVG() string {
	var d drawing
	d.open(b.ID, "bar", b.Title, b.Desc, barChartHeight)
	scale := b.scale()
	b.parts(&d, scale)
	b.usable(&d, scale)
	b.labels(&d, scale)
	b.whisker(&d, scale)
	return d.close()
}

// scale is percent of width per byte; the longest thing drawn fills 98 %.
func (b Bar) scale() float64 {
	var total units.Bytes
	for _, p := range b.Parts {
		total += p.Bytes
	}
	return 98 / float64(max(total, b.Usable, b.High, 1))
}

func (b Bar) parts(d *drawing, scale float64) {
	x := 0.0
	for _, p := range b.Parts {
		w := float64(p.Bytes) * scale
		if w >= hairline {
			name, size := Label(p.Category), b.Format(p.Bytes)
			d.rect("area c-"+p.Category, x, w, barTop, barHeight, "", "")
			d.rect("texture", x, w, barTop, barHeight, Pattern(p.Category), fmt.Sprintf("%s %s (%d bytes)", name, size, p.Bytes))
		}
		x += w
	}
}

// labels names the parts that have room for it, over everything else.
func (b Bar) labels(d *drawing, scale float64) {
	x := 0.0
	for _, p := range b.Parts {
		w := float64(p.Bytes) * scale
		if class := room(Label(p.Category), w); class != "" {
			d.text(class, "middle", x+w/2, barTop+17, 0, Label(p.Category))
			d.text(class, "middle", x+w/2, barTop+32, 0, b.Format(p.Bytes))
		}
		x += w
	}
}

func (b Bar) usable(d *drawing, scale float64) {
	x := float64(b.Usable) * scale
	d.line("usable", x, barTop-6, x, whiskerY+10)
	anchor, _ := side(x)
	d.text("note", anchor, x, barTop-10, 0, "usable "+b.Format(b.Usable))
}

func (b Bar) whisker(d *drawing, scale float64) {
	lo, mid, hi := float64(b.Low)*scale, float64(b.Required)*scale, float64(b.High)*scale
	d.line("whisker", lo, whiskerY, hi, whiskerY)
	d.line("whisker", lo, whiskerY-whiskerUp, lo, whiskerY+whiskerUp)
	d.line("whisker", hi, whiskerY-whiskerUp, hi, whiskerY+whiskerUp)
	fmt.Fprintf(d, `<circle class="median" cx="%s%%" cy="%d" r="4"/>`, num(mid), whiskerY)
	anchor, _ := side(mid)
	x := lo
	if anchor == "end" {
		x = hi
	}
	d.text("note", anchor, x, whiskerY+22, 0, fmt.Sprintf("required %s (%s to %s)", b.Format(b.Required), b.Format(b.Low), b.Format(b.High)))
}
