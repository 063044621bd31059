package planner

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"memplan/internal/calibrate"
	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/wire"
)

// States of a calibration.
const (
	Candidate = "candidate"
	Active    = "active"
	Retired   = "retired"
)

// calibrationPrefix marks the id of a kept fit.
const calibrationPrefix = "cal_"

// mostFitted is how many of the newest runs a fit takes.
const mostFitted = 2000

// Calibration is a fit of measured runs: section 6 of the public formats. It is
// immutable but for its state.
type Calibration struct {
	ID           string                  `json:"id"`
	GPU          string                  `json:"gpu"` // catalogue key, or an architecture
	Framework    Software                `json:"framework"`
	State        string                  `json:"state" enum:"candidate,active,retired"`
	RunsUsed     int                     `json:"runs_used"`
	Excluded     []Excluded              `json:"excluded"`
	Coefficients []calibrate.Coefficient `json:"coefficients"`
	EngineError  []calibrate.GroupError  `json:"engine_error"`
	Validation   calibrate.Validation    `json:"validation"`
	Before       calibrate.Validation    `json:"validation_before" doc:"The same runs by the priors alone."`
	Residuals    []calibrate.Residual    `json:"residuals" doc:"Each run predicted without those that differ from it only in size."`
	Covariance   [][]float64             `json:"covariance" doc:"Of the coefficients, in their order."`
	Relative     string                  `json:"relative,omitempty" doc:"The calibration of a card of the same architecture whose posterior was the prior here."`
	CreatedAt    time.Time               `json:"created_at"`
	NotOffered   *string                 `json:"reason_not_offered" doc:"Why it may not be activated."`
}

// Excluded is a run that a fit did not use.
type Excluded struct {
	Run    string `json:"run"`
	Reason string `json:"reason"`
}

func (c *Calibration) fit() *calibrate.Fit {
	return calibrate.Restore(c.Coefficients, c.Covariance, c.EngineError)
}

// CalibrationRequest says what to fit.
type CalibrationRequest struct {
	GPU       string   `json:"gpu"` // catalogue key or alias, or an architecture
	Framework Software `json:"framework"`
	Runs      []string `json:"runs"` // ids; none: all that are not flagged
}

// Calibrate fits runs of one card, or of one architecture, and one version of a
// framework. The fit is a candidate: nothing is answered by it until it is
// activated.
func (p *Planner) Calibrate(ctx context.Context, ask CalibrationRequest, key string) (*Calibration, error) {
	if p.store == nil {
		return nil, errNothingKept
	}
	if err := p.normalise(&ask); err != nil {
		return nil, err
	}
	runs, excluded, err := p.runsFor(ctx, ask)
	if err != nil {
		return nil, err
	}
	c := &Calibration{
		ID: newIDOf(calibrationPrefix), GPU: ask.GPU, Framework: ask.Framework, State: Candidate,
		CreatedAt: p.now().UTC().Truncate(time.Microsecond), Excluded: excluded,
	}
	if err := p.fitInto(ctx, c, runs); err != nil {
		return nil, err
	}
	document, err := json.Marshal(c)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "planner: encode calibration", err)
	}
	name, err := keyFor(key, ask)
	if err != nil {
		return nil, err
	}
	id, err := p.store.SaveCalibration(ctx, CalibrationRecord{
		ID: c.ID, CreatedAt: c.CreatedAt, GPU: c.GPU, Framework: c.Framework, State: c.State, Document: document,
	}, name)
	if err != nil {
		return nil, err
	}
	if id != c.ID {
		return p.Calibration(ctx, id)
	}
	return c, nil
}

// normalise writes the request in the catalogue's spelling; every wrong field is
// reported.
func (p *Planner) normalise(ask *CalibrationRequest) error {
	var wrong fault.Fields
	ask.Framework = softwareOf(spec.Runtime{Framework: ask.Framework.Name, FrameworkVersion: ask.Framework.Version}, p.newestTorch())
	arch := slices.IndexFunc(p.catalog.GPUs(), func(g catalog.GPU) bool { return strings.EqualFold(g.Arch, ask.GPU) })
	switch g, err := p.catalog.GPU(ask.GPU); {
	case ask.GPU == "":
		wrong.Add("gpu", "", "a card of the catalogue, or an architecture", "")
	case arch >= 0:
		ask.GPU = p.catalog.GPUs()[arch].Arch
	case err == nil:
		ask.GPU = g.Key
	default:
		wrong.Add("gpu", ask.GPU, "a card of the catalogue, or an architecture", fault.FieldsOf(err)[0].Nearest)
	}
	for i, id := range ask.Runs {
		if !validIDOf(runPrefix, id) {
			wrong.Add(fmt.Sprintf("runs[%d]", i), id, "the id of a reported run", "")
		}
	}
	return wrong.Err()
}

// runsFor are the runs that a request means, and those of them left out.
func (p *Planner) runsFor(ctx context.Context, ask CalibrationRequest) ([]ReportedRun, []Excluded, error) {
	excluded := []Excluded{}
	records, err := p.store.ListRuns(ctx, RunQuery{Framework: ask.Framework.Name, RunFilter: RunFilter{
		GPU: ask.GPU, Version: ask.Framework.Version, Limit: mostFitted,
	}})
	if err != nil {
		return nil, nil, err
	}
	var runs []ReportedRun
	for _, r := range records {
		chosen := slices.Contains(ask.Runs, r.ID)
		switch {
		case len(ask.Runs) > 0 && !chosen:
			continue
		case r.Flagged != "":
			excluded = append(excluded, Excluded{r.ID, r.Flagged})
			continue
		}
		x, err := decodeRun(r)
		if err != nil {
			return nil, nil, err
		}
		runs = append(runs, x)
	}
	for i, id := range ask.Runs {
		if !slices.ContainsFunc(records, func(r RunRecord) bool { return r.ID == id }) {
			var wrong fault.Fields
			wrong.Add(fmt.Sprintf("runs[%d]", i), id, fmt.Sprintf("a run on %s with %s %s", ask.GPU, ask.Framework.Name, ask.Framework.Version), "")
			return nil, nil, wrong
		}
	}
	return runs, excluded, nil
}

// fitInto observes the runs, fits them and judges the fit.
func (p *Planner) fitInto(ctx context.Context, c *Calibration, runs []ReportedRun) error {
	var observed []calibrate.Observation
	var priors []calibrate.Coefficient
	for _, r := range runs {
		o, err := p.Observe(ctx, r.Run)
		if fault.KindOf(err) == fault.Invalid && err != nil {
			c.Excluded = append(c.Excluded, Excluded{r.ID, "the engine has no answer for this job: " + err.Error()})
			continue
		}
		if err != nil {
			return err
		}
		observed = append(observed, o.Observations...)
		priors = o.Priors
	}
	if len(observed) == 0 {
		return fault.New(fault.Invalid, "no run of %s with %s %s that says what its process held or its allocator reserved is kept here", c.GPU, c.Framework.Name, c.Framework.Version)
	}
	if err := p.startFromRelative(ctx, c, priors); err != nil {
		return err
	}
	fit := calibrate.New(observed, priors)
	c.RunsUsed = len(fit.Used)
	for _, o := range fit.Wild {
		c.Excluded = append(c.Excluded, Excluded{o.Run, "it lies wildly off what the other runs say"})
	}
	c.Coefficients, c.Covariance, c.EngineError = fit.Coefficients, fit.Covariance, fit.Errors
	c.Validation, c.Residuals = calibrate.Validate(observed, priors)
	c.Before = calibrate.Summarise(calibrate.Compare(calibrate.Prior(priors), observed))
	if reason := calibrate.Objection(observed, c.Validation, c.Before); reason != "" {
		c.NotOffered = &reason
	}
	return p.countVerdicts(ctx, c, runs)
}

// startFromRelative takes the posterior of another card of the architecture for
// the prior, with half of the old spread added: cards of one architecture are
// alike, not the same.
func (p *Planner) startFromRelative(ctx context.Context, c *Calibration, priors []calibrate.Coefficient) error {
	g, err := p.catalog.GPU(c.GPU)
	if err != nil {
		return nil // an architecture has no relative
	}
	all, err := p.inForce(ctx)
	if err != nil {
		return err
	}
	for _, relative := range all.fits {
		of, err := p.catalog.GPU(relative.GPU)
		kin := relative.GPU == g.Arch || err == nil && of.Arch == g.Arch && of.Key != g.Key
		if !kin || relative.Framework.Name != c.Framework.Name {
			continue
		}
		c.Relative = relative.ID
		for i, prior := range priors {
			for _, k := range relative.Coefficients {
				if k.Name == prior.Name {
					priors[i].Prior = calibrate.Belief{
						Mean: k.Posterior.Mean, SD: math.Hypot(k.Posterior.SD, prior.Prior.SD/2),
						Source: "calibration " + relative.ID + " of " + relative.GPU + ", with half of the prior's spread",
					}
				}
			}
		}
		return nil
	}
	return nil
}

// countVerdicts counts the jobs that ran out and are said to fit, and those that
// ran and are said not to.
func (p *Planner) countVerdicts(ctx context.Context, c *Calibration, runs []ReportedRun) error {
	view := *p
	view.by, view.force = c.ID, &force{last: inForce{key: c.ID, fits: []*Calibration{c}}}
	for _, r := range runs {
		est, err := view.Estimate(ctx, r.Job)
		if err != nil {
			if fault.KindOf(err) == fault.Invalid {
				continue
			}
			return err
		}
		switch v := est.Target.Verdict; {
		case ranOut(r.Run) && v == estimator.Fits:
			c.Validation.FitsRanOut++
		case !ranOut(r.Run) && v == estimator.Exceeds:
			c.Validation.NoWouldFit++
		}
	}
	return nil
}

// ranOut says whether a run ended for want of memory.
func ranOut(run wire.Run) bool {
	return slices.ContainsFunc(run.Measured, func(m wire.Measurement) bool { return m.Relation == "more_than" })
}

// Calibration returns a kept fit, or fault.NotFound.
func (p *Planner) Calibration(ctx context.Context, id string) (*Calibration, error) {
	if p.store == nil || !validIDOf(calibrationPrefix, id) {
		return nil, fault.New(fault.NotFound, "no calibration %q is kept here", id)
	}
	r, err := p.store.LoadCalibration(ctx, id)
	if err != nil {
		return nil, err
	}
	return decodeCalibration(r)
}

// Calibrations returns kept fits, newest first. Without a store the list is
// empty.
func (p *Planner) Calibrations(ctx context.Context, f CalibrationFilter) (wire.Page[*Calibration], error) {
	q := CalibrationQuery{CalibrationFilter: f}
	after, limit, wrong := paging(f.Limit, f.Cursor)
	if f.State != "" && !slices.Contains([]string{Candidate, Active, Retired}, f.State) {
		wrong.Add("state", f.State, "candidate, active or retired", "")
	}
	if err := wrong.Err(); err != nil || p.store == nil {
		return wire.NewPage[*Calibration](nil, ""), err
	}
	if g, err := p.catalog.GPU(f.GPU); f.GPU != "" && err == nil {
		q.GPU = g.Key
	}
	q.After, q.Limit = after, limit+1
	records, err := p.store.ListCalibrations(ctx, q)
	if err != nil {
		return wire.Page[*Calibration]{}, err
	}
	next := ""
	if len(records) > limit {
		records = records[:limit]
		next = cursorOf(Position{records[limit-1].CreatedAt, records[limit-1].ID})
	}
	var items []*Calibration
	for _, r := range records {
		c, err := decodeCalibration(r)
		if err != nil {
			return wire.Page[*Calibration]{}, err
		}
		items = append(items, c)
	}
	return wire.NewPage(items, next), nil
}

// Activate puts a fit in force, in the place of the one that is for the same
// card and framework; that is also how to go back to an older one. It fails with
// fault.Conflict for a fit that is not offered.
func (p *Planner) Activate(ctx context.Context, id string) (*Calibration, error) {
	c, err := p.Calibration(ctx, id)
	if err != nil {
		return nil, err
	}
	if c.NotOffered != nil {
		return nil, fault.New(fault.Conflict, "calibration %s may not be activated: %s", id, *c.NotOffered)
	}
	return p.setState(ctx, c, Active)
}

// Retire takes a fit out of force: answers are by the priors again.
func (p *Planner) Retire(ctx context.Context, id string) (*Calibration, error) {
	c, err := p.Calibration(ctx, id)
	if err != nil {
		return nil, err
	}
	return p.setState(ctx, c, Retired)
}

func (p *Planner) setState(ctx context.Context, c *Calibration, state string) (*Calibration, error) {
	if err := p.store.SetCalibrationState(ctx, c.ID, state); err != nil {
		return nil, err
	}
	p.changed()
	c.State = state
	return c, nil
}
