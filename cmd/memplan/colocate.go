package main

import (
	"fmt"
	"strings"

	"memplan/internal/estimator/spec"
	"memplan/internal/planner"
)

// colocateCommand asks whether jobs fit on one card together.
type colocateCommand struct {
	Files []string `arg:"" name:"files" help:"The jobs, in YAML or JSON, each a process of its own on the same card; from 2 to 32."`
	GPU   string   `placeholder:"CARD" help:"Ask about this card instead of the jobs' targets."`
}

// Run prints the sentence, each job, every pair, and how few cards would do. The
// verdict does not touch the exit code.
func (c *colocateCommand) Run(s *session) error {
	jobs := make([]spec.Job, len(c.Files))
	for i, file := range c.Files {
		job, err := (targeted{jobInput: jobInput{File: file}, GPU: c.GPU}).read(s)
		if err != nil {
			return err
		}
		if job.Name == "" {
			job.Name = file
		}
		jobs[i] = job
	}
	answer, err := s.back.Colocate(s.ctx, jobs)
	if err != nil {
		return err
	}
	if s.json {
		return s.printJSON(answer)
	}
	return s.printColocation(answer)
}

// printColocation writes the answer as tables.
func (s *session) printColocation(c *planner.Colocation) error {
	p := &printer{w: s.stdout}
	p.line("%s", c.Summary)
	p.line("")
	p.table("JOB\tREQUIRED GiB\tUP TO GiB\tALONE", func(row func(...any)) {
		for _, j := range c.Jobs {
			row(j.Name, gib(j.Required), gib(j.Interval.High), j.Verdict)
		}
	})
	p.line("")
	p.table("PAIR\tREQUIRED GiB\tUP TO GiB\tTOGETHER\tPROBABILITY", func(row func(...any)) {
		for _, pair := range c.Pairs {
			row(jobNames(c, pair.Jobs...), gib(pair.Required), gib(pair.High), pair.Verdict, fmt.Sprintf("%.0f %%", 100*pair.Probability))
		}
	})
	p.line("\nCards that would hold them")
	for i, card := range c.Cards {
		p.line("  %d: %s", i+1, jobNames(c, card...))
	}
	return p.err
}

// jobNames joins the names of some of the jobs.
func jobNames(c *planner.Colocation, places ...int) string {
	names := make([]string, len(places))
	for i, place := range places {
		names[i] = c.Jobs[place].Name
	}
	return strings.Join(names, " + ")
}
