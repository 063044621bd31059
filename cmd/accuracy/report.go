package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// worstShown is how many of the worst rows are printed with their breakdown.
const worstShown = 10

// report prints the comparison with a corpus.
func report(w io.Writer, folder, tag string, every bool) error {
	rows, answering, err := load(folder, tag)
	if err != nil {
		return err
	}
	var all []outcome
	unanswered := map[string]int{}
	for _, r := range rows {
		all = append(all, r.outcomes()...)
		if r.err != nil {
			unanswered[r.err.Error()]++
		}
	}
	equals := slices.DeleteFunc(slices.Clone(all), func(o outcome) bool { return o.relation != "equals" })
	if every {
		printRows(w, equals)
	}
	table(w, "by source and metric", equals, func(o outcome) []string { return []string{o.row.source()} })
	table(w, "by tag and metric", equals, func(o outcome) []string { return o.row.Tags })
	verdicts(w, all)
	if err := pairs(w, rows); err != nil {
		return err
	}
	headline(w, equals)
	if err := calibration(w, rows, answering.cards); err != nil {
		return err
	}
	worst(w, equals)
	missing(w, rows, unanswered)
	return nil
}

// table prints count, median and 90th and 95th percentile of the absolute
// relative error, and its bias, by a key and the metric.
func table(w io.Writer, title string, all []outcome, keys func(outcome) []string) {
	type cell struct{ key, metric string }
	groups := map[cell][]float64{}
	for _, o := range all {
		for _, k := range keys(o) {
			groups[cell{k, o.metric}] = append(groups[cell{k, o.metric}], o.relative())
		}
	}
	fmt.Fprintf(w, "\n%s\n", title)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tmetric\tn\tmedian\tp90\tp95\tbias")
	for _, c := range slices.SortedFunc(maps.Keys(groups), func(a, b cell) int {
		return cmp.Or(strings.Compare(a.key, b.key), strings.Compare(a.metric, b.metric))
	}) {
		errs := groups[c]
		size := absolute(errs)
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%+.3f %%\n", clip(c.key), c.metric, len(errs),
			percent(quantile(size, 0.5)), percent(quantile(size, 0.9)), percent(quantile(size, 0.95)), 100*mean(errs))
	}
	t.Flush()
}

func clip(s string) string {
	if len(s) > 60 {
		return s[:57] + "..."
	}
	return s
}

func percent(x float64) string { return fmt.Sprintf("%.3f %%", 100*x) }

func absolute(errs []float64) []float64 {
	out := make([]float64, len(errs))
	for i, e := range errs {
		out[i] = math.Abs(e)
	}
	slices.Sort(out)
	return out
}

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(max(len(xs), 1))
}

// headline is the median over sources of the per-source medians.
func headline(w io.Writer, all []outcome) {
	by := map[string]map[string][]float64{}
	for _, o := range all {
		if by[o.metric] == nil {
			by[o.metric] = map[string][]float64{}
		}
		by[o.metric][o.row.source()] = append(by[o.metric][o.row.source()], o.relative())
	}
	fmt.Fprintln(w, "\nheadline: median over sources of the sources' median absolute error")
	for _, metric := range slices.Sorted(maps.Keys(by)) {
		var medians []float64
		for _, errs := range by[metric] {
			medians = append(medians, quantile(absolute(errs), 0.5))
		}
		slices.Sort(medians)
		fmt.Fprintf(w, "  %-24s %s over %d sources\n", metric, percent(quantile(medians, 0.5)), len(medians))
	}
}

// verdicts says how often rows that ran out were called fits, and rows that
// fitted exceeds.
func verdicts(w io.Writer, all []outcome) {
	var ranOut, ranOutFits, fitted, fittedExceeds int
	seen := map[*row]bool{}
	for _, o := range all {
		if seen[o.row] {
			continue
		}
		seen[o.row] = true
		switch v := o.row.estimate.Target.Verdict; o.relation {
		case "more_than":
			ranOut++
			if v == "fits" {
				ranOutFits++
			}
		default:
			fitted++
			if v == "exceeds" {
				fittedExceeds++
			}
		}
	}
	fmt.Fprintf(w, "\nof %d jobs that ran out of memory %d were said to fit; of %d that ran %d were said not to\n", ranOut, ranOutFits, fitted, fittedExceeds)
}

// worst prints the rows furthest off with the predicted breakdown.
func worst(w io.Writer, all []outcome) {
	sorted := slices.DeleteFunc(slices.Clone(all), func(o outcome) bool { return strings.Contains(o.metric, "/") })
	slices.SortStableFunc(sorted, func(a, b outcome) int { return cmp.Compare(math.Abs(b.relative()), math.Abs(a.relative())) })
	fmt.Fprintln(w, "\nworst")
	for _, o := range sorted[:min(worstShown, len(sorted))] {
		fmt.Fprintf(w, "  %+.2f %%  %s  %s: measured %s, predicted %s; peak in %s/%s of %s\n   ", 100*o.relative(), o.row.ID, o.metric,
			o.measured, o.predicted, o.row.estimate.Peak.At.Phase, o.row.estimate.Peak.At.Part, o.row.estimate.Peak.At.Module)
		for _, s := range o.row.estimate.Breakdown {
			fmt.Fprintf(w, " %s %s;", s.Category, s.Bytes)
		}
		fmt.Fprintln(w)
	}
}

// missing lists why rows have no answer.
func missing(w io.Writer, rows []*row, reasons map[string]int) {
	n := 0
	for _, c := range reasons {
		n += c
	}
	fmt.Fprintf(w, "\n%d of %d rows answered\n", len(rows)-n, len(rows))
	sorted := slices.SortedFunc(maps.Keys(reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(reasons[b], reasons[a]), strings.Compare(a, b))
	})
	for _, text := range sorted[:min(len(sorted), 12)] {
		fmt.Fprintf(w, "  %4d  %.160s\n", reasons[text], text)
	}
}

func printRows(w io.Writer, all []outcome) {
	for _, o := range all {
		fmt.Fprintf(w, "%+9.4f %%  %-44s %-24s measured %15d predicted %15d\n", 100*o.relative(), o.row.ID, o.metric, o.measured, o.predicted)
	}
}
