package main

import (
	"cmp"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/fault"
	"memplan/internal/gpu"
	"memplan/internal/microbench"
	"memplan/internal/planner"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// benchmarkCommand runs probes on a card of this host.
type benchmarkCommand struct {
	Device  string   `placeholder:"UUID" help:"The card; the first one without it."`
	Probes  []string `placeholder:"NAME" help:"Only these probes, separated by commas; --list names them."`
	List    bool     `help:"Name the probes, and stop."`
	Python  string   `default:"${python}" placeholder:"FILE" help:"Python with PyTorch (MEMPLAN_PYTHON)."`
	Seconds int      `default:"900" help:"The most time that all probes may take."`
	Force   bool     `help:"Also while others use the card."`
}

// comparison is one measured size beside its prediction.
type comparison struct {
	Probe     string      `json:"probe"`
	Phase     string      `json:"phase"`
	Metric    string      `json:"metric"`
	Predicted units.Bytes `json:"predicted_bytes"`
	Measured  units.Bytes `json:"measured_bytes"`
}

// benchmarkReport is what the command prints as JSON.
type benchmarkReport struct {
	Device   planner.Device        `json:"device"`
	Results  []planner.ProbeResult `json:"results"`
	Compared []comparison          `json:"compared"`
}

// Run runs the probes one after another, and lays what the training jobs took
// beside what is predicted for them.
func (c *benchmarkCommand) Run(s *session) error {
	if c.List {
		return c.list(s)
	}
	names, err := c.chosen()
	if err != nil {
		return err
	}
	cards := gpu.New(gpu.Config{})
	report := benchmarkReport{Results: []planner.ProbeResult{}, Compared: []comparison{}}
	if report.Device, err = c.card(s, cards); err != nil {
		return err
	}
	if !s.json {
		fmt.Fprintf(s.stdout, "%s, %s (%s)\n", report.Device.Name, report.Device.Memory.Total, report.Device.ID)
	}
	bench := microbench.New(microbench.Config{Python: c.Python, Devices: cards})
	begin := time.Now()
	for _, name := range names {
		rest := time.Duration(c.Seconds)*time.Second - time.Since(begin)
		r, err := bench.Run(s.ctx, report.Device, name, planner.ProbeOptions{Force: c.Force, Limit: max(rest, time.Millisecond)})
		if err != nil {
			return err
		}
		if err := s.ctx.Err(); err != nil {
			return err
		}
		report.Results = append(report.Results, r)
		found, err := s.compare(r)
		if err != nil {
			return err
		}
		report.Compared = append(report.Compared, found...)
		if !s.json {
			printProbe(s, r)
		}
	}
	if s.json {
		return s.printJSON(report)
	}
	return printCompared(s, report.Compared, time.Since(begin))
}

// list names the probes.
func (c *benchmarkCommand) list(s *session) error {
	w := tabwriter.NewWriter(s.stdout, 0, 0, 2, ' ', 0)
	for _, p := range microbench.Probes() {
		fmt.Fprintf(w, "%s\t%s\n", p.Name, p.Text)
	}
	return w.Flush()
}

// chosen is the probes to run, in their order.
func (c *benchmarkCommand) chosen() ([]string, error) {
	var all []string
	for _, p := range microbench.Probes() {
		all = append(all, p.Name)
	}
	if len(c.Probes) == 0 {
		return all, nil
	}
	for _, name := range c.Probes {
		if !slices.Contains(all, name) {
			return nil, fault.New(fault.Invalid, "there is no probe %q: memplan benchmark --list names them", name)
		}
	}
	return slices.DeleteFunc(all, func(name string) bool { return !slices.Contains(c.Probes, name) }), nil
}

// card is the card that was asked for, with its key in the catalogue.
func (c *benchmarkCommand) card(s *session, cards planner.Devices) (planner.Device, error) {
	tables, err := catalog.Open()
	if err != nil {
		return planner.Device{}, err
	}
	here, err := cards.List(s.ctx)
	if err != nil {
		return planner.Device{}, err
	}
	here = slices.DeleteFunc(here, func(d planner.Device) bool { return d.Unsupported != "" })
	for _, d := range here {
		if cmp.Or(c.Device, d.ID) != d.ID {
			continue
		}
		if g, err := tables.GPU(d.Name); err == nil {
			d.GPU = g.Key
		}
		return d, nil
	}
	return planner.Device{}, fault.New(fault.Invalid, "no NVIDIA card %q is attached", c.Device)
}

// compare lays the runs of a probe beside their predictions. A job that the
// engine does not model has none.
func (s *session) compare(r planner.ProbeResult) ([]comparison, error) {
	var out []comparison
	for _, text := range r.Runs {
		run, err := wire.DecodeRun(text)
		if err != nil {
			return nil, err
		}
		est, err := s.back.Estimate(s.ctx, run.Job)
		if err != nil {
			fmt.Fprintf(s.stderr, "memplan: %s is not predicted: %v\n", r.Probe, err)
			continue
		}
		for _, m := range run.Measured {
			if predicted, ok := predictedIn(est, m); ok {
				out = append(out, comparison{r.Probe, m.Phase, m.Metric, predicted, m.Bytes})
			}
		}
	}
	return out, nil
}

// predictedIn is what an answer says of a measured size.
func predictedIn(est *estimator.Estimate, m wire.Measurement) (units.Bytes, bool) {
	for _, p := range est.Phases {
		if p.Name != m.Phase {
			continue
		}
		switch m.Metric {
		case "requested":
			return p.PeakRequested, true
		case "allocated":
			return p.PeakAllocated, true
		case "reserved":
			return p.PeakReserved, true
		case "process":
			return p.PeakProcess, true
		}
	}
	return 0, false
}

// printProbe prints the outcome of a probe, and of its figures the largest few.
func printProbe(s *session, r planner.ProbeResult) {
	what := r.Error
	if what == "" && len(r.Figures) > 0 {
		what = fmt.Sprintf("%d figures, first %s: %s", len(r.Figures), r.Figures[0].Name, figureText(r.Figures[0]))
	}
	fmt.Fprintf(s.stdout, "%-26s%-15s%6.1f s  %s\n", r.Probe, r.State, r.Seconds, what)
}

func figureText(f planner.Figure) string {
	if f.Unit == "bytes" {
		return units.Bytes(f.Value).String()
	}
	return fmt.Sprintf("%.4g %s", f.Value, f.Unit)
}

// printCompared prints predicted against measured.
func printCompared(s *session, all []comparison, took time.Duration) error {
	if len(all) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(s.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\nPREDICTED AGAINST MEASURED\tphase\tmetric\tpredicted\tmeasured\toff\t")
	trained := map[string]bool{}
	for _, c := range all {
		trained[c.Probe] = true
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%+.2f %%\t\n", c.Probe, c.Phase, c.Metric, c.Predicted, c.Measured, 100*(float64(c.Predicted)/float64(c.Measured)-1))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.stdout, "\n%d training steps of %d jobs; %.0f s in all\n", len(trained)*microbench.Steps, len(trained), took.Seconds())
	return err
}
