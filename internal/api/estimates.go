package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/wire"
)

// estimateInput asks for one estimate.
type estimateInput struct {
	JobBody
	Save bool   `query:"save" default:"true" doc:"Whether the estimate is kept and gets an id. Without a store nothing is kept."`
	Key  string `header:"Idempotency-Key" maxLength:"200" doc:"The same job under the same key is kept once."`
	ByCalibration
}

// ByCalibration asks to be answered by one calibration.
type ByCalibration struct {
	Calibration string `query:"calibration" doc:"The id of the calibration to answer by, whatever its state, or prior for none; without it those in force." example:"cal_mfzw6ylunbqxe2lp"`
}

// estimateOutput is one estimate.
type estimateOutput struct {
	Status   int
	Location string `header:"Location" doc:"Where the estimate is kept."`
	Body     *estimator.Estimate
}

// batchInput asks for many estimates.
type batchInput struct {
	BatchBody
	Save bool   `query:"save" default:"true" doc:"Whether the estimates are kept and get ids."`
	Key  string `header:"Idempotency-Key" maxLength:"200" doc:"The same list under the same key is kept once; a job that differs from the one at its place then is a conflict."`
	ByCalibration
}

// keyAt is the key of the job at a place of the list, none without a key of
// the whole.
func (in *batchInput) keyAt(place int) string {
	if in.Key == "" {
		return ""
	}
	return in.Key + " #" + strconv.Itoa(place)
}

// batchOutput is estimates and problems, in the order of the jobs.
type batchOutput struct {
	Body []batchItem
}

// listInput narrows the list of kept estimates.
type listInput struct {
	Limit   int      `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"The most items of a page."`
	Cursor  string   `query:"cursor" doc:"next_cursor of the page before."`
	GPU     string   `query:"gpu" doc:"Catalogue key or alias of the card."`
	Verdict string   `query:"verdict" enum:"fits,tight,exceeds" doc:"The verdict."`
	Model   string   `query:"model" doc:"Model id, or the name shown for a model without one."`
	Label   []string `query:"label,explode" doc:"key:value, once for every label that must be there."`
	Query   string   `query:"q" doc:"Part of name, model or card, ignoring case."`
}

// listOutput is one page of kept estimates.
type listOutput struct {
	Body planner.Page
}

// savedOutput is a kept estimate.
type savedOutput struct {
	Body *estimator.Estimate
}

// savedInput names a kept estimate.
type savedInput struct {
	ID string `path:"id" doc:"The id an estimate was given when it was kept." example:"est_mfzw6ylunbqxe2lp"`
}

// registerEstimates adds the operations on estimates.
func (s *server) registerEstimates(api huma.API) {
	register(s, api, huma.Operation{
		OperationID: "createEstimate", Method: http.MethodPost, Path: "/estimates", Tags: []string{"estimates"},
		Summary:     "Estimate a job",
		Description: "Answers how much GPU memory the job needs at its peak, and whether it fits its target. Kept unless save=false.",
		RequestBody: jobRequest(), MaxBodyBytes: maxJobBytes, DefaultStatus: http.StatusCreated,
		Responses: map[string]*huma.Response{"200": estimateResponse("The estimate, which is not kept.")},
	}, s.createEstimate)
	register(s, api, huma.Operation{
		OperationID: "createEstimates", Method: http.MethodPost, Path: "/estimates:batch", Tags: []string{"estimates"},
		Summary:     "Estimate many jobs",
		Description: "Takes up to 1,000 jobs and answers a list in the same order, each an estimate or a problem.",
		RequestBody: batchRequest(), MaxBodyBytes: maxBatchBytes,
	}, s.createEstimates)
	register(s, api, huma.Operation{
		OperationID: "listEstimates", Method: http.MethodGet, Path: "/estimates", Tags: []string{"estimates"},
		Summary: "List kept estimates, newest first",
	}, s.listEstimates)
	register(s, api, huma.Operation{
		OperationID: "getEstimate", Method: http.MethodGet, Path: "/estimates/{id}", Tags: []string{"estimates"},
		Summary: "One kept estimate, exactly as it was given",
	}, s.getEstimate)
}

func (s *server) createEstimate(ctx context.Context, in *estimateInput) (*estimateOutput, error) {
	job, err := s.job(ctx, &in.JobBody)
	if err != nil {
		return nil, err
	}
	by, err := s.planner.By(ctx, in.Calibration)
	if err != nil {
		return nil, inQuery(s.problemOf(ctx, err))
	}
	if !in.Save {
		est, err := by.Estimate(ctx, job)
		return &estimateOutput{Status: http.StatusOK, Body: est}, err
	}
	est, err := by.Save(ctx, job, in.Key)
	if err != nil {
		return nil, err
	}
	return &estimateOutput{Status: http.StatusCreated, Location: prefix + "/estimates/" + est.ID, Body: est}, nil
}

func (s *server) createEstimates(ctx context.Context, in *batchInput) (*batchOutput, error) {
	raw, err := in.jobs(ctx)
	if err != nil {
		return nil, err
	}
	if len(raw) > planner.MaxBatch {
		return nil, fault.New(fault.TooLarge, "%d jobs in one batch: at most %d.", len(raw), planner.MaxBatch)
	}
	items := make([]batchItem, len(raw))
	var jobs []spec.Job
	var place []int   // of each job in items
	var keys []string // of each job
	for i, text := range raw {
		job, err := wire.DecodeJSON(text)
		if err != nil {
			items[i].problem = s.problemOf(ctx, s.planner.AllWrong(ctx, job, err))
			continue
		}
		jobs, place, keys = append(jobs, job), append(place, i), append(keys, in.keyAt(i))
	}
	by, err := s.planner.By(ctx, in.Calibration)
	if err != nil {
		return nil, inQuery(s.problemOf(ctx, err))
	}
	for i, o := range by.EstimateBatch(ctx, jobs, in.Save, keys...) {
		items[place[i]].estimate = o.Estimate
		if o.Err != nil {
			items[place[i]].problem = s.problemOf(ctx, o.Err)
		}
	}
	return &batchOutput{Body: items}, nil
}

func (s *server) listEstimates(ctx context.Context, in *listInput) (*listOutput, error) {
	f := planner.Filter{
		GPU: in.GPU, Verdict: estimator.Verdict(in.Verdict), Model: in.Model, Text: in.Query,
		Limit: in.Limit, Cursor: in.Cursor, Labels: map[string]string{},
	}
	var wrong fault.Fields
	for _, label := range in.Label {
		key, value, ok := strings.Cut(label, ":")
		if !ok {
			wrong.Add("label", label, "key:value", "")
		}
		f.Labels[key] = value
	}
	if err := wrong.Err(); err != nil {
		return nil, inQuery(s.problemOf(ctx, err))
	}
	page, err := s.planner.List(ctx, f)
	if err != nil {
		return nil, inQuery(s.problemOf(ctx, err))
	}
	return &listOutput{Body: page}, nil
}

func (s *server) getEstimate(ctx context.Context, in *savedInput) (*savedOutput, error) {
	est, err := s.planner.Saved(ctx, in.ID)
	return &savedOutput{Body: est}, err
}
