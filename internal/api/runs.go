package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"memplan/internal/planner"
	"memplan/internal/wire"
)

// runsInput reports measured runs.
type runsInput struct {
	BatchBody
	Key string `header:"Idempotency-Key" maxLength:"200" doc:"The same runs under the same key are kept once."`
}

// runsOutput is the runs as they were kept, in the order they came in.
type runsOutput struct {
	Body []reported
}

// reported is what a report of a run is answered with.
type reported struct {
	ID        string             `json:"id"`
	Flagged   *string            `json:"flagged" doc:"Why the run feeds no calibration, or null."`
	Predicted *planner.Predicted `json:"predicted" doc:"Null where the engine has no answer for the job."`
}

// runListInput narrows the list of runs.
type runListInput struct {
	Limit   int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"The most items of a page."`
	Cursor  string `query:"cursor" doc:"next_cursor of the page before."`
	GPU     string `query:"gpu" doc:"Catalogue key or alias of the card, or an architecture."`
	Version string `query:"framework_version" doc:"Of the framework, as major.minor."`
	Model   string `query:"model" doc:"Model id, or the name shown for a model without one."`
	Flagged string `query:"flagged" enum:"true,false" doc:"Only those that feed no calibration, or only those that do."`
	Query   string `query:"q" doc:"Part of name, model, card or source, ignoring case."`
}

// runListOutput is one page of runs.
type runListOutput struct {
	Body wire.Page[planner.ReportedRun]
}

// runInput names a run.
type runInput struct {
	ID string `path:"id" doc:"The id a run was given when it was reported." example:"run_mfzw6ylunbqxe2lp"`
}

// runOutput is one run.
type runOutput struct {
	Body planner.ReportedRun
}

// registerRuns adds the operations on measured runs.
func (s *server) registerRuns(api huma.API) {
	most := planner.MaxRuns
	register(s, api, huma.Operation{
		OperationID: "createRuns", Method: http.MethodPost, Path: "/runs", Tags: []string{"runs"},
		Summary:     "Report measured runs",
		Description: "Takes a run or a list of them, and answers each with what was predicted for its job. A run that contradicts itself or is wildly off is kept, flagged, and feeds no calibration.",
		RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{jsonType: {Schema: &huma.Schema{AnyOf: []*huma.Schema{
			refTo("Run"), {Type: huma.TypeArray, Items: refTo("Run"), MaxItems: &most},
		}}}}},
		MaxBodyBytes: maxBatchBytes, DefaultStatus: http.StatusCreated,
	}, s.createRuns)
	register(s, api, huma.Operation{
		OperationID: "listRuns", Method: http.MethodGet, Path: "/runs", Tags: []string{"runs"},
		Summary: "List measured runs, newest first",
	}, func(ctx context.Context, in *runListInput) (*runListOutput, error) {
		page, err := s.planner.Runs(ctx, planner.RunFilter{
			GPU: in.GPU, Version: in.Version, Model: in.Model, Flagged: in.Flagged, Text: in.Query, Limit: in.Limit, Cursor: in.Cursor,
		})
		if err != nil {
			return nil, inQuery(s.problemOf(ctx, err))
		}
		return &runListOutput{page}, nil
	})
	register(s, api, huma.Operation{
		OperationID: "getRun", Method: http.MethodGet, Path: "/runs/{id}", Tags: []string{"runs"},
		Summary: "One measured run with its prediction",
	}, func(ctx context.Context, in *runInput) (*runOutput, error) {
		r, err := s.planner.Run(ctx, in.ID)
		return &runOutput{r}, err
	})
}

func (s *server) createRuns(ctx context.Context, in *runsInput) (*runsOutput, error) {
	if kind, err := bodyType(ctx, in.ContentType); err != nil || kind != jsonType {
		return nil, newProblem(ctx, http.StatusUnsupportedMediaType, "Runs come as "+jsonType+".")
	}
	runs, err := wire.DecodeRuns(in.RawBody)
	if err != nil {
		return nil, err
	}
	kept, err := s.planner.ReportRuns(ctx, runs, in.Key)
	if err != nil {
		return nil, err
	}
	out := make([]reported, len(kept))
	for i, r := range kept {
		out[i] = reported{r.ID, r.Flagged, r.Predicted}
	}
	return &runsOutput{out}, nil
}
