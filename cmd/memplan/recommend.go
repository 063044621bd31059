package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"memplan/internal/fault"
	"memplan/internal/jobfile"
	"memplan/internal/planner"
	"memplan/internal/recommend"
	"memplan/internal/wire"
)

// recommendCommand says what to change.
type recommendCommand struct {
	targeted
	Goal        string   `default:"smallest_change" placeholder:"GOAL" enum:"smallest_change,fastest_step,largest_micro_batch,longest_sequence,fewest_gpus" help:"What is asked for: ${enum}."`
	Probability float64  `default:"0.95" placeholder:"P" help:"How likely what is recommended must be to fit."`
	Allow       []string `sep:"," placeholder:"PATH" help:"Job paths that may change, separated by commas. Without any: all but the method and the length of samples."`
	GPUs        []string `name:"gpus" sep:"," placeholder:"CARD" help:"Cards allowed, separated by commas. Without any: the job's own."`
	To          string   `placeholder:"FORMAT" help:"Print the best option as another tool's file, as memplan export writes them, and nothing else."`
	GlobalBatch int      `name:"global-batch" placeholder:"N" help:"Samples of an optimizer step, of all ranks. Without it: the job's own."`
}

// Run prints the options, each with what it costs and its patch.
func (c *recommendCommand) Run(s *session) error {
	if c.To != "" {
		if _, err := jobfile.Named(c.To); err != nil {
			return err
		}
	}
	job, err := c.read(s)
	if err != nil {
		return err
	}
	answer, err := s.back.Recommend(s.ctx, planner.Advice{
		Job: job, Goal: recommend.Goal(c.Goal), Probability: c.Probability, Allow: c.Allow, GPUs: c.GPUs, GlobalBatch: c.GlobalBatch,
	}, nil)
	if err != nil {
		return err
	}
	if c.To != "" {
		return s.printSnippet(answer, c.To)
	}
	if s.json {
		for i := range answer.Options {
			if est := answer.Options[i].Estimate; est != nil {
				whole := wire.NonNull(*est)
				answer.Options[i].Estimate = &whole
			}
		}
		return s.printJSON(answer)
	}
	return s.printRecommendation(answer)
}

// printSnippet prints the best option as a tool's file.
func (s *session) printSnippet(r *recommend.Recommendation, tool string) error {
	if len(r.Options) == 0 {
		return fault.New(fault.NotFound, "%s", cmp.Or(r.Note, "Nothing was found."))
	}
	best := r.Options[0]
	for _, x := range best.Snippets {
		if x.Tool == tool {
			fmt.Fprintf(s.stderr, "%s\n", best.Why)
			_, err := io.WriteString(s.stdout, x.Text)
			return err
		}
	}
	return fault.New(fault.Invalid, "%s has no words for the best option; it can be written for: %s", tool, strings.Join(toolsOf(best), ", "))
}

func toolsOf(o recommend.Option) []string {
	var all []string
	for _, x := range o.Snippets {
		all = append(all, x.Tool)
	}
	return all
}

// printRecommendation prints options, then the tables beside them.
func (s *session) printRecommendation(r *recommend.Recommendation) error {
	if r.Note != "" {
		fmt.Fprintln(s.stdout, r.Note)
	}
	for _, o := range r.Options {
		printOption(s.stdout, o)
	}
	t := tabwriter.NewWriter(s.stdout, 0, 0, 2, ' ', 0)
	if len(r.Singles) > 0 {
		fmt.Fprintln(t, "\nONE CHANGE ALONE\tSAVES")
		for _, x := range r.Singles {
			fmt.Fprintf(t, "%s\t%s\n", x.What, x.Saves)
		}
	}
	if len(r.Largest) > 0 {
		fmt.Fprintln(t, "\nCARD\tSEQUENCE LENGTH\tLARGEST MICRO BATCH, NOTHING ELSE CHANGED")
		for _, x := range r.Largest {
			least := ""
			if x.AtLeast {
				least = "at least "
			}
			fmt.Fprintf(t, "%s\t%d\t%s%d\n", x.GPU, x.Length, least, x.MicroBatch)
		}
	}
	return t.Flush()
}

func printOption(w io.Writer, o recommend.Option) {
	fmt.Fprintf(w, "%d. %s\n", o.Rank, o.Why)
	if o.Estimate != nil {
		fmt.Fprintf(w, "   %s\n", o.Estimate.Summary)
	}
	fmt.Fprintf(w, "   %.2f to %.2f times the speed, %.0f to %.0f tokens a second, MFU about %.0f %%\n",
		o.RelativeSpeed.Low, o.RelativeSpeed.High, o.TokensPerSecond.Low, o.TokensPerSecond.High, 100*o.MFU)
	for _, cost := range o.Costs {
		fmt.Fprintf(w, "   - %s\n", cost)
	}
	var sets []string
	for _, c := range o.Patch {
		sets = append(sets, fmt.Sprintf("--set %s=%s", c.Path, settingText(c.To)))
	}
	if len(sets) > 0 {
		fmt.Fprintf(w, "   %s\n", strings.Join(sets, " "))
	}
}

// settingText is a value as --set reads it.
func settingText(v any) string {
	switch x := v.(type) {
	case nil:
		return ""
	case []string:
		return strings.Join(x, ",")
	case []any:
		parts := make([]string, len(x))
		for i, p := range x {
			parts[i] = fmt.Sprint(p)
		}
		return strings.Join(parts, ",")
	}
	return fmt.Sprint(v)
}
