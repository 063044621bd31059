package main

import (
	"fmt"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/planner"
	"memplan/internal/wire"
)

// targeted is a job, and the card it is asked about.
type targeted struct {
	jobInput
	GPU string `placeholder:"CARD" help:"Ask about this card instead of the job's target: short for --set target.gpu=CARD."`
}

// read reads the job, with the card asked about.
func (t targeted) read(s *session) (spec.Job, error) {
	if t.GPU != "" {
		t.Set = append(t.Set, "target.gpu="+t.GPU)
	}
	return t.job(s)
}

// estimateCommand prints an estimate.
type estimateCommand struct {
	targeted
}

// Run answers with the estimate; its verdict does not touch the exit code.
func (c *estimateCommand) Run(s *session) error {
	job, err := c.read(s)
	if err != nil {
		return err
	}
	est, err := s.back.Estimate(s.ctx, job)
	if err != nil {
		return err
	}
	if s.json {
		return s.printJSON(wire.NonNull(*est))
	}
	return s.printEstimate(est)
}

// checkCommand decides for a launcher.
type checkCommand struct {
	targeted
	Strict bool `help:"Exit with 1 when the job is tight: it fits only if memplan's interval is kind."`
}

// Run prints the sentence and the changes that would make the job fit, and
// sets the exit code.
func (c *checkCommand) Run(s *session) error {
	job, err := c.read(s)
	if err != nil {
		return err
	}
	check, err := s.back.Check(s.ctx, job)
	if err != nil {
		return err
	}
	s.code = exitOf(check, c.Strict)
	if check.Verdict == estimator.Tight {
		fmt.Fprintf(s.stderr, "memplan: warning: %s\n", check.Summary)
	}
	if s.json {
		if check.Estimate != nil {
			whole := wire.NonNull(*check.Estimate)
			check.Estimate = &whole
		}
		return s.printJSON(check)
	}
	return s.printCheck(check)
}

// fitsCommand finds the largest micro batches.
type fitsCommand struct {
	jobInput
	GPU []string `sep:"," placeholder:"CARD" help:"Cards to try, by key or alias, separated by commas. Without any: the usual ones."`
}

// Run prints a line for each card.
func (c *fitsCommand) Run(s *session) error {
	job, err := c.job(s)
	if err != nil {
		return err
	}
	fits, err := s.back.Fits(s.ctx, job, c.GPU)
	if err != nil {
		return err
	}
	if s.json {
		return s.printJSON(map[string][]planner.Fit{"items": fits})
	}
	return s.printFits(fits)
}

// modelsCommand searches the catalogue.
type modelsCommand struct {
	Query string `arg:"" optional:"" help:"Part of an id, a name or a family."`
	Limit int    `default:"20" help:"The most models to show."`
}

// Run prints a line for each model.
func (c *modelsCommand) Run(s *session) error {
	models, err := s.back.Models(s.ctx, c.Query, c.Limit)
	if err != nil {
		return err
	}
	if s.json {
		return s.printJSON(map[string]any{"items": models})
	}
	return s.printModels(models)
}

// gpusCommand lists the catalogue's cards.
type gpusCommand struct{}

// Run prints a line for each card.
func (c *gpusCommand) Run(s *session) error {
	gpus, err := s.back.GPUs(s.ctx)
	if err != nil {
		return err
	}
	if s.json {
		return s.printJSON(map[string]any{"items": gpus})
	}
	return s.printGPUs(gpus)
}
