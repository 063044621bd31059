package web

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"memplan/internal/estimator"
	"memplan/internal/snapshot"
	"memplan/internal/units"
	"memplan/web/chart"
)

// answer is an estimate as the page prints it, in one unit.
type answer struct {
	*estimator.Estimate
	state
	Origin string // scheme and host of this server, for what is copied
}

// verdict is how each verdict is named and drawn.
type verdict struct{ Word, Class, Icon string }

var verdicts = map[estimator.Verdict]verdict{
	estimator.Fits:    {"Fits", "fits", "M3 8.5l3.2 3.2L13 5"},
	estimator.Tight:   {"Tight", "tight", "M8 3v6.5M8 12.2v.8"},
	estimator.Exceeds: {"Does not fit", "exceeds", "M4 4l8 8M12 4l-8 8"},
}

func (a answer) verdict() verdict { return verdicts[a.Target.Verdict] }

// sentence is the verdict in words, in the page's unit.
func (a answer) sentence() string {
	i := a.Peak.Interval
	needs := fmt.Sprintf("needs %s (%s to %s)", a.Unit.text(a.Peak.Required), a.Unit.number(i.Low), a.Unit.number(i.High))
	if a.Target.Verdict == estimator.Exceeds {
		return fmt.Sprintf("%s, %s gives %s", needs, a.card(), a.Unit.text(a.Target.Usable))
	}
	return fmt.Sprintf("%s of the %s usable on %s", needs, a.Unit.text(a.Target.Usable), a.card())
}

// card is the target as people say it.
func (a answer) card() string {
	if a.Target.GPU == "" {
		return "this card"
	}
	return a.Target.GPU
}

// margin says what is left or missing, and how likely the job is to fit.
func (a answer) margin() string {
	left := a.Target.Headroom
	word := "to spare"
	if left < 0 {
		left, word = -left, "short"
	}
	return fmt.Sprintf("%s %s, %s likely to fit", a.Unit.text(left), word, percent(a.Target.ProbabilityFits))
}

// percent never rounds a doubt away: 0.999 is "over 99 %".
func percent(p float64) string {
	switch {
	case p > 0.99:
		return "over 99 %"
	case p < 0.01:
		return "under 1 %"
	}
	return fmt.Sprintf("%.0f %%", p*100)
}

// peakPlace says where the peak is.
func (a answer) peakPlace() string {
	at := a.Peak.At
	place := "Peak in the " + chart.Words(at.Part)
	if at.Module != "" {
		place += " of " + at.Module
	}
	if at.Op != "" {
		place += " (" + at.Op + ")"
	}
	return place + ", " + chart.Words(at.Phase)
}

// source says what the interval rests on.
func (a answer) source() string {
	if s := a.Peak.Interval.Source; s != "prior" && s != "" {
		return "90 % interval from calibration " + s
	}
	return "90 % interval from priors: no measured run informs it yet"
}

// job sums up what was asked, for those who read the answer first.
func (a answer) job() string {
	t := a.Estimate.Job.Training
	parts := []string{a.model() + " with " + units.FormatCount(float64(a.Parameters.Total)) + " parameters"}
	if a.Parameters.Trainable != a.Parameters.Total {
		parts = append(parts, units.FormatCount(float64(a.Parameters.Trainable))+" trained")
	}
	size := fmt.Sprintf("micro batch %d", t.MicroBatchSize)
	if t.SequenceLength > 0 {
		size += fmt.Sprintf(" × %s tokens", group(int64(t.SequenceLength)))
	}
	if t.GradAccumSteps > 1 {
		size += fmt.Sprintf(" × %d accumulated", t.GradAccumSteps)
	}
	parts = append(parts, size, string(t.Precision), strings.TrimSpace(t.Method+" "+t.Optimizer.Name))
	if m := t.Checkpointing.Mode; m != "" && m != "none" {
		parts = append(parts, m+" checkpointing")
	} else {
		parts = append(parts, "no checkpointing")
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " · ")
}

func (a answer) model() string {
	if id := a.Estimate.Job.Model.ID; id != "" {
		return id
	}
	return "A model"
}

// shareRow is a line of the breakdown's table.
type shareRow struct {
	Category, Label, Printed, Exact, Share string
}

// breakdown is the shares in the order of the chart, printed so that they add
// up, and their printed sum.
func (a answer) breakdown() (rows []shareRow, total string) {
	shares := a.shares()
	sizes := make([]units.Bytes, len(shares))
	for i, s := range shares {
		sizes[i] = s.Bytes
	}
	printed, total := a.Unit.column(sizes)
	for i, s := range shares {
		rows = append(rows, shareRow{
			Category: s.Category, Label: chart.Label(s.Category), Printed: printed[i], Exact: exact(s.Bytes),
			Share: fmt.Sprintf("%.1f", 100*float64(s.Bytes)/float64(max(a.Peak.Process, 1))),
		})
	}
	return rows, total
}

// shares is the breakdown without what is nothing, in the order of the chart.
func (a answer) shares() []estimator.Share {
	shares := slices.DeleteFunc(slices.Clone(a.Breakdown), func(s estimator.Share) bool { return s.Bytes == 0 })
	slices.SortStableFunc(shares, func(x, y estimator.Share) int { return chart.Order(x.Category) - chart.Order(y.Category) })
	return shares
}

// bar is the breakdown's picture.
func (a answer) bar() string {
	b := chart.Bar{
		ID: "peak-bar", Title: "Memory of the process at the peak", Usable: a.Target.Usable,
		Required: a.Peak.Required, Low: a.Peak.Interval.Low, High: a.Peak.Interval.High, Format: a.Unit.text,
	}
	var words []string
	for _, s := range a.shares() {
		b.Parts = append(b.Parts, chart.Part{Category: s.Category, Bytes: s.Bytes})
		words = append(words, chart.Label(s.Category)+" "+a.Unit.text(s.Bytes))
	}
	b.Desc = strings.Join(words, ", ") + "; usable " + a.Unit.text(a.Target.Usable) + "."
	return b.SVG()
}

// timeline is the picture of the steps.
func (a answer) timeline() string {
	t := chart.Timeline{
		ID: "step-timeline", Title: "Allocated memory through the steps", Usable: a.Target.Usable,
		Unit: a.Unit.size(), Format: a.Unit.text, Tick: a.Unit.tick, Categories: a.layers(),
		PeakLabel: "peak " + a.Unit.text(a.Peak.Allocated) + " allocated",
	}
	for _, m := range a.Timeline {
		p := chart.Point{Event: m.Event, Phase: m.Phase, Part: m.Part, Allocated: m.Allocated, Reserved: m.Reserved}
		for _, c := range t.Categories {
			p.Layers = append(p.Layers, m.ByCategory.Of(c))
		}
		t.Points = append(t.Points, p)
	}
	t.Desc = a.peakPlace() + ", " + a.Unit.text(a.Peak.Allocated) + " allocated, " + a.Unit.text(a.Peak.Reserved) + " reserved."
	return t.SVG()
}

// layers is the categories that the timeline knows, bottom to top.
func (a answer) layers() []string {
	seen := map[string]bool{}
	var keys []string
	for _, m := range a.Timeline {
		for _, share := range m.ByCategory {
			if c := share.Category; share.Bytes != 0 && !seen[c] {
				seen[c] = true
				keys = append(keys, c)
			}
		}
	}
	slices.SortFunc(keys, func(x, y string) int {
		if d := chart.Order(x) - chart.Order(y); d != 0 {
			return d
		}
		return strings.Compare(x, y)
	})
	return keys
}

// moments is what the table below the timeline lists: where each part begins,
// peaks and ends. The chart's other points are in the API's answer.
func (a answer) moments() []estimator.Moment {
	var out []estimator.Moment
	for i := 0; i < len(a.Timeline); {
		j, top := i, i
		for ; j < len(a.Timeline) && a.Timeline[j].Phase == a.Timeline[i].Phase && a.Timeline[j].Part == a.Timeline[i].Part; j++ {
			if a.Timeline[j].Allocated > a.Timeline[top].Allocated {
				top = j
			}
		}
		for _, k := range slices.Compact([]int{i, top, j - 1}) {
			out = append(out, a.Timeline[k])
		}
		i = j
	}
	return out
}

// given is what a saved estimate was asked, as label and value.
func (a answer) given() [][2]string {
	var out [][2]string
	values := a.canonical()
	for _, path := range vocabulary().order {
		if v := values.Get(nameOf(path)); v != "" {
			out = append(out, [2]string{labelOf(path), clip(v, 200)})
			values.Del(nameOf(path))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		out = append(out, [2]string{labelOf(key), clip(values.Get(key), 200)})
	}
	return out
}

// traces is where the events of a saved estimate's job are to be had, in every
// format.
func (a answer) traces() []change {
	var out []change
	for _, f := range snapshot.Formats() {
		href := "/api/v1/estimates/" + a.ID + "/trace?format=" + string(f)
		out = append(out, change{Text: map[snapshot.Format]string{
			snapshot.Events: "JSON", snapshot.MemoryViz: "memory_viz", snapshot.Chrome: "Chrome",
		}[f], Href: href})
	}
	return out
}
