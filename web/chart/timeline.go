package chart

import (
	"fmt"
	"strings"

	"memplan/internal/units"
)

// Timeline is the course of memory through the steps: the allocated bytes as
// stacked areas by category, the reserved bytes as a line above, over the index
// of allocation events, with the parts of the step along the foot and the peak
// marked.
type Timeline struct {
	ID         string // of the element; unique on its page
	Title      string
	Desc       string
	Categories []string // bottom to top
	Points     []Point  // in order of Event
	Usable     units.Bytes
	PeakLabel  string
	Unit       units.Bytes // of the scale: units.GiB or units.GB
	Format     func(units.Bytes) string
	Tick       func(units.Bytes) string // of round values
}

// Point is one moment of a timeline. Layers stand in the order of the
// timeline's categories and sum to the allocated bytes.
type Point struct {
	Event       int
	Phase, Part string
	Layers      []units.Bytes
	Allocated   units.Bytes
	Reserved    units.Bytes
}

// The timeline's rows, in pixels; and its plane, in units of its own that are
// stretched over the plot.
const (
	plotTop, plotHeight = 24, 232
	partTop, rowHeight  = plotTop + plotHeight + 4, 20
	phaseTop            = partTop + rowHeight + 2
	timelineHeight      = phaseTop + rowHeight
	planeW, planeH      = 1000, plotHeight
)

// SVG draws the timeline; without points it is empty.
func (t Timeline) SVG() string {
	if len(t.Points) == 0 {
		return ""
	}
	var d drawing
	d.open(t.ID, "timeline", t.Title, t.Desc, timelineHeight)
	p := t.plane()
	t.areas(&d, p)
	t.scaleLines(&d, p)
	t.peak(&d, p)
	t.labels(&d, p)
	t.bands(&d, p, partTop, func(x Point) string { return x.Phase + "/" + x.Part })
	t.bands(&d, p, phaseTop, func(x Point) string { return x.Phase })
	return d.close()
}

// plane maps events and bytes onto the plot.
type plane struct {
	first, last int
	top         units.Bytes
}

func (t Timeline) plane() plane {
	p := plane{first: t.Points[0].Event, last: t.Points[len(t.Points)-1].Event}
	for _, x := range t.Points {
		p.top = max(p.top, x.Allocated, x.Reserved)
	}
	if t.Usable > p.top && t.Usable < 2*p.top { // a line far above would flatten the rest
		p.top = t.Usable
	}
	p.top += p.top/25 + 1
	return p
}

// x is an event's place in percent of the width.
func (p plane) x(event int) float64 {
	return 100 * float64(event-p.first) / float64(max(p.last-p.first, 1))
}

// y is the height of b in whole units of the plane, from its top.
func (p plane) y(b units.Bytes) int {
	return planeH - int(float64(b)/float64(p.top)*planeH+0.5)
}

// areas paints each category from its upper edge down to the ground, the
// highest first, so that every edge is written once.
func (t Timeline) areas(d *drawing, p plane) {
	fmt.Fprintf(d, `<svg y="%d" height="%d" width="100%%" viewBox="0 0 %d %d" preserveAspectRatio="none">`, plotTop, plotHeight, planeW, planeH)
	for i := len(t.Categories) - 1; i >= 0; i-- {
		edge := t.path(p, func(x Point) units.Bytes { return sum(x.Layers[:i+1]) })
		if i > 0 && edge == t.path(p, func(x Point) units.Bytes { return sum(x.Layers[:i]) }) {
			continue // nothing of it shows
		}
		closed := fmt.Sprintf("M0 %d%sV%dZ", planeH, edge, planeH)
		fmt.Fprintf(d, `<path class="area c-%s" d="%s"/>`, t.Categories[i], closed)
		if patternOf(t.Categories[i]) != "plain" {
			fmt.Fprintf(d, `<path class="texture" fill="%s" d="%s"/>`, Pattern(t.Categories[i]), closed)
		}
	}
	reserved := t.path(p, func(x Point) units.Bytes { return x.Reserved })
	fmt.Fprintf(d, `<path class="reserved" d="M0 %d%s"/></svg>`, p.y(t.Points[0].Reserved), reserved)
}

// path follows one value as a staircase: it holds until the event that changes
// it.
func (t Timeline) path(p plane, value func(Point) units.Bytes) string {
	var b strings.Builder
	at := -1
	for _, x := range t.Points {
		y := p.y(value(x))
		if y == at {
			continue
		}
		fmt.Fprintf(&b, "H%dV%d", int(p.x(x.Event)*planeW/100+0.5), y)
		at = y
	}
	fmt.Fprintf(&b, "H%d", planeW)
	return b.String()
}

func (t Timeline) scaleLines(d *drawing, p plane) {
	for _, v := range ticks(p.top, t.Unit, 4) {
		y := plotTop + p.y(v)
		if line := plotTop + p.y(t.Usable); y < plotTop+10 || max(y-line, line-y) < 14 {
			continue // no room for its text
		}
		d.line("grid", 0, y, 100, y)
		d.text("tick", "start", 0, y-4, 3, t.Tick(v))
	}
	if t.Usable > 0 && t.Usable < p.top {
		y := plotTop + p.y(t.Usable)
		d.line("usable", 0, y, 100, y)
		x, anchor, dx := 100.0, "end", -4
		if p.x(t.top().Event) > 55 { // the peak's line and text stand there
			x, anchor, dx = 0, "start", 4
		}
		d.text("note", anchor, x, y-5, dx, "usable "+t.Format(t.Usable))
	}
}

// labels names each category where its layer stays thick enough for longest.
func (t Timeline) labels(d *drawing, p plane) {
	for i, key := range t.Categories {
		from, to := t.thickest(p, i, 16)
		if to <= from {
			continue
		}
		if class := room(Label(key), to-from); class != "" {
			mid := t.at(p, (from+to)/2)
			low, high := sum(mid.Layers[:i]), sum(mid.Layers[:i+1])
			d.text(class, "middle", (from+to)/2, plotTop+(p.y(low)+p.y(high))/2+4, 0, Label(key))
		}
	}
}

// thickest returns the longest stretch, in percent, over which layer i is at
// least height pixels thick.
func (t Timeline) thickest(p plane, i, height int) (from, to float64) {
	least := units.Bytes(float64(p.top) * float64(height) / planeH)
	start := -1.0
	for j, x := range t.Points {
		here := p.x(x.Event)
		thick := x.Layers[i] >= least
		if thick && start < 0 {
			start = here
		}
		last := j == len(t.Points)-1
		if start >= 0 && (!thick || last) {
			if here-start > to-from {
				from, to = start, here
			}
			start = -1
		}
	}
	return from, to
}

// at is the last point at or before x percent.
func (t Timeline) at(p plane, x float64) Point {
	found := t.Points[0]
	for _, point := range t.Points {
		if p.x(point.Event) > x {
			break
		}
		found = point
	}
	return found
}

// top is the first point of the most allocated bytes.
func (t Timeline) top() Point {
	top := t.Points[0]
	for _, x := range t.Points {
		if x.Allocated > top.Allocated {
			top = x
		}
	}
	return top
}

func (t Timeline) peak(d *drawing, p plane) {
	top := t.top()
	x, y := p.x(top.Event), plotTop+p.y(top.Allocated)
	d.line("peak", x, plotTop-6, x, plotTop+plotHeight)
	fmt.Fprintf(d, `<circle class="median" cx="%s%%" cy="%d" r="4"/>`, num(x), y)
	anchor, dx := side(x)
	d.text("note strong", anchor, x, plotTop-10, dx, t.PeakLabel)
}

// bands draws a row of boxes, one for each stretch of equal key, with its name
// or its initial where there is room.
func (t Timeline) bands(d *drawing, p plane, top int, key func(Point) string) {
	for i := 0; i < len(t.Points); {
		j, peak := i, units.Bytes(0)
		for ; j < len(t.Points) && key(t.Points[j]) == key(t.Points[i]); j++ {
			peak = max(peak, t.Points[j].Allocated)
		}
		end := 100.0
		if j < len(t.Points) {
			end = p.x(t.Points[j].Event)
		}
		from := p.x(t.Points[i].Event)
		name := Words(key(t.Points[i])[strings.LastIndex(key(t.Points[i]), "/")+1:])
		d.rect("band b-"+strings.ReplaceAll(name, " ", "-"), from, end-from, top, rowHeight, "", fmt.Sprintf("%s: at most %s allocated", name, t.Format(peak)))
		if room(name, end-from) == "" {
			name = strings.ToUpper(name[:min(1, len(name))])
		}
		if class := room(name, end-from); class != "" {
			d.text(class, "middle", (from+end)/2, top+14, 0, name)
		}
		i = j
	}
}

// Words turns a key of the public format into words.
func Words(key string) string { return strings.ReplaceAll(key, "_", " ") }

func sum(layers []units.Bytes) units.Bytes {
	var s units.Bytes
	for _, b := range layers {
		s += b
	}
	return s
}
