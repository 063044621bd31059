package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/planner"
	"memplan/internal/units"
)

// Colours of the verdicts, on terminals only.
var verdictColours = map[estimator.Verdict]string{
	estimator.Fits: "\x1b[32m", estimator.Tight: "\x1b[33m", estimator.Exceeds: "\x1b[31m",
}

// printEstimate writes the sentence first, then what it stands on.
func (s *session) printEstimate(est *estimator.Estimate) error {
	p := &printer{w: s.stdout}
	p.line("%s", s.coloured(est.Target.Verdict, est.Summary))
	p.breakdown(est)
	p.counts(est)
	p.phases(est.Phases)
	p.assumptions(est.Assumptions)
	p.warnings(est.Warnings)
	return p.err
}

// printCheck writes the sentence, and what would make the job fit.
func (s *session) printCheck(c planner.Check) error {
	p := &printer{w: s.stdout}
	p.line("%s", s.coloured(c.Verdict, c.Summary))
	if len(c.Fixes) > 0 {
		p.line("\nWhat would make it fit")
	}
	for _, f := range c.Fixes {
		p.line("  %s", f.Text)
		for _, change := range f.Patch {
			p.line("    --set %s=%s", change.Path, shell(value(change.To)))
		}
	}
	if c.Estimate != nil {
		p.warnings(c.Estimate.Warnings)
	}
	return p.err
}

// printFits writes the table of largest micro batches.
func (s *session) printFits(fits []planner.Fit) error {
	p := &printer{w: s.stdout}
	p.table("CARD\tMICRO BATCH\tREQUIRED GiB\tUP TO GiB\tUSABLE GiB\tONE MORE GiB", func(row func(...any)) {
		for _, f := range fits {
			if f.Err != nil {
				row(f.GPU, "-", text(f.Err))
				continue
			}
			most := fmt.Sprint(f.MicroBatch)
			if f.AtLeast {
				most += " or more"
			}
			above := "-"
			if f.Above > 0 {
				above = gib(f.Above)
			}
			row(cmp.Or(f.Name, f.GPU), most, gib(f.Required), gib(f.High), gib(f.Usable), above)
		}
	})
	return p.err
}

// printModels writes a line for each model.
func (s *session) printModels(models []catalog.Model) error {
	p := &printer{w: s.stdout}
	p.table("MODEL\tFAMILY\tPARAMETERS", func(row func(...any)) {
		for _, m := range models {
			row(m.ID, m.Family, units.FormatCount(float64(m.Parameters)))
		}
	})
	return p.err
}

// printGPUs writes a line for each card.
func (s *session) printGPUs(gpus []catalog.GPU) error {
	p := &printer{w: s.stdout}
	p.table("CARD\tNAME\tARCHITECTURE\tSOLD AS GB\tUSABLE GiB\tUSABLE IS", func(row func(...any)) {
		for _, g := range gpus {
			row(g.Key, g.Name, g.Arch, g.NominalGB, gib(g.Usable), g.UsableStatus)
		}
	})
	return p.err
}

// coloured marks a sentence with its verdict's colour where a person looks at
// a terminal and has not asked for none.
func (s *session) coloured(v estimator.Verdict, sentence string) string {
	f, ok := s.stdout.(*os.File)
	if !ok || s.getenv("NO_COLOR") != "" || s.getenv("TERM") == "dumb" {
		return sentence
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return sentence
	}
	return verdictColours[v] + sentence + "\x1b[0m"
}

// printer writes until it fails, and keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// table writes aligned columns under a heading.
func (p *printer) table(heading string, fill func(row func(...any))) {
	if p.err != nil {
		return
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, heading)
	fill(func(cells ...any) {
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, c)
		}
		fmt.Fprintln(t)
	})
	_ = t.Flush() // into memory
	for row := range strings.Lines(b.String()) {
		p.line("%s", strings.TrimRight(row, " \n"))
	}
}

// breakdown writes what the peak is made of. The sizes shown add up to the
// total shown.
func (p *printer) breakdown(est *estimator.Estimate) {
	shares := slices.DeleteFunc(slices.Clone(est.Breakdown), func(s estimator.Share) bool { return s.Bytes == 0 })
	if len(shares) == 0 {
		return
	}
	sizes := make([]units.Bytes, len(shares))
	for i, s := range shares {
		sizes[i] = s.Bytes
	}
	hundredths, total := roundTogether(sizes)
	p.line("")
	p.table("AT THE PEAK\tGiB", func(row func(...any)) {
		for i, s := range shares {
			row(strings.ReplaceAll(s.Category, "_", " "), right(hundredths[i]))
		}
		row("total of the process", right(total))
	})
}

// counts writes the peak by every way of counting it.
func (p *printer) counts(est *estimator.Estimate) {
	k := est.Peak
	p.line("")
	p.table("COUNTED AS\tGiB\tMEANING", func(row func(...any)) {
		row("allocated", gib(k.Allocated), "torch.cuda.max_memory_allocated")
		row("reserved", gib(k.Reserved), "torch.cuda.max_memory_reserved")
		row("process", gib(k.Process), "what nvidia-smi shows for the process")
		row("required", gib(k.Required), fmt.Sprintf("smallest that completes; %.0f %% between %s and %s (%s)",
			100*k.Interval.Level, strings.TrimSpace(gib(k.Interval.Low)), strings.TrimSpace(gib(k.Interval.High)), k.Interval.Source))
		row("usable", gib(est.Target.Usable), "on "+cmp.Or(est.Target.GPU, "the card"))
	})
}

// phases writes the peak of every phase.
func (p *printer) phases(phases []estimator.Phase) {
	if len(phases) == 0 {
		return
	}
	p.line("")
	p.table("PHASE\tPEAK ALLOCATED GiB\tPEAK RESERVED GiB\tLEFT ALLOCATED GiB", func(row func(...any)) {
		for _, f := range phases {
			row(strings.ReplaceAll(f.Name, "_", " "), gib(f.PeakAllocated), gib(f.PeakReserved), gib(f.EndAllocated))
		}
	})
}

// assumptions writes those that decide, and how many more there are.
func (p *printer) assumptions(all []estimator.Assumption) {
	deciding := slices.DeleteFunc(slices.Clone(all), func(a estimator.Assumption) bool { return !a.Decides })
	if len(deciding) > 0 {
		p.line("\nAssumed, and it decides")
	}
	for _, a := range deciding {
		p.line("  %s = %s: %s", a.Path, value(a.Value), a.Why)
	}
	if rest := len(all) - len(deciding); rest > 0 {
		p.line("\nDefaults filled in beside these: %d; --json lists them.", rest)
	}
}

// warnings writes every doubt.
func (p *printer) warnings(all []estimator.Warning) {
	if len(all) > 0 {
		p.line("\nWarnings")
	}
	for _, w := range all {
		p.line("  %s: %s", w.Code, w.Text)
	}
}
