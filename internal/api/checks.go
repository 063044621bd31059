package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"memplan/internal/planner"
	"memplan/internal/wire"
)

// checkInput is the job a launcher asks about.
type checkInput struct {
	JobBody
}

// checkOutput is what the launcher should do.
type checkOutput struct {
	Body planner.Check
}

// fitsInput is a job, and the cards to try.
type fitsInput struct {
	JobBody
	GPUs []string `query:"gpu,explode" maxItems:"64" doc:"Cards to try, by key or alias; once for each. Without any: the usual ones."`
}

// fitsOutput is the table of largest micro batches.
type fitsOutput struct {
	Body wire.Page[fit]
}

// fit is the largest micro batch on one card, or why there is none.
type fit struct {
	planner.Fit
	Problem *Problem `json:"problem,omitempty" doc:"Why the job cannot run on this card at all."`
}

// registerChecks adds the operations that answer a yes or no.
func (s *server) registerChecks(api huma.API) {
	register(s, api, huma.Operation{
		OperationID: "createCheck", Method: http.MethodPost, Path: "/checks", Tags: []string{"checks"},
		Summary:     "Check a job before it is submitted",
		Description: "Answers whether a launcher should let the job start: allow, warn or deny, and changes that would make it fit.",
		RequestBody: jobRequest(), MaxBodyBytes: maxJobBytes,
	}, s.createCheck)
	register(s, api, huma.Operation{
		OperationID: "createFits", Method: http.MethodPost, Path: "/fits", Tags: []string{"checks"},
		Summary:     "The largest micro batch on each card",
		Description: "Searches for the largest micro batch of the job that fits each card. Zero means that not even one sample does.",
		RequestBody: jobRequest(), MaxBodyBytes: maxJobBytes,
	}, s.createFits)
}

func (s *server) createCheck(ctx context.Context, in *checkInput) (*checkOutput, error) {
	job, err := s.job(ctx, &in.JobBody)
	if err != nil {
		return nil, err
	}
	check, err := s.planner.Check(ctx, job)
	if check.Estimate != nil {
		est := wire.NonNull(*check.Estimate)
		check.Estimate = &est
	}
	return &checkOutput{Body: check}, err
}

func (s *server) createFits(ctx context.Context, in *fitsInput) (*fitsOutput, error) {
	job, err := s.job(ctx, &in.JobBody)
	if err != nil {
		return nil, err
	}
	fits, err := s.planner.Fits(ctx, job, in.GPUs)
	if err != nil {
		return nil, err
	}
	rows := make([]fit, len(fits))
	for i, f := range fits {
		rows[i].Fit = f
		if f.Err != nil {
			rows[i].Problem = s.problemOf(ctx, f.Err)
		}
	}
	return &fitsOutput{wire.NewPage(rows, "")}, nil
}
