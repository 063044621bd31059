package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/snapshot"
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

	Compared []planner.ComparedCategory `json:"compared,omitempty" doc:"Of a memory snapshot: what it held at its peak beside the prediction, the largest difference first."`
}

// formType is how files are sent.
const formType = "multipart/form-data"

// maxMeasuredBytes is the most that is read of a report: a memory snapshot has
// some hundred megabytes.
const maxMeasuredBytes = 256<<20 + 1

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

// accuracyInput narrows the runs that are compared.
type accuracyInput struct {
	GPU     string `query:"gpu" doc:"Catalogue key or alias of the card, or an architecture."`
	Version string `query:"framework_version" doc:"Of the framework, as major.minor."`
	Model   string `query:"model" doc:"Model id, or the name shown for a model without one."`
}

// accuracyOutput is the comparison.
type accuracyOutput struct {
	Body planner.Accuracy
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
		Description: "Takes a run or a list of them, or a job with files of other tools that measure it, and answers each with what was predicted for its job. A run that contradicts itself or is wildly off is kept, flagged, and feeds no calibration.",
		RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{jsonType: {Schema: &huma.Schema{AnyOf: []*huma.Schema{
			refTo("Run"), {Type: huma.TypeArray, Items: refTo("Run"), MaxItems: &most},
		}}}, formType: {Schema: formOfFiles()}}},
		MaxBodyBytes: maxMeasuredBytes, DefaultStatus: http.StatusCreated,
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
		OperationID: "getAccuracy", Method: http.MethodGet, Path: "/accuracy", Tags: []string{"runs"},
		Summary:     "How right the answers are",
		Description: "Compares the newest runs that are not flagged with what is answered for their jobs now, by the calibrations in force and by the priors alone.",
	}, func(ctx context.Context, in *accuracyInput) (*accuracyOutput, error) {
		a, err := s.planner.Accuracy(ctx, planner.RunFilter{GPU: in.GPU, Version: in.Version, Model: in.Model})
		return &accuracyOutput{a}, err
	})
	register(s, api, huma.Operation{
		OperationID: "getRun", Method: http.MethodGet, Path: "/runs/{id}", Tags: []string{"runs"},
		Summary: "One measured run with its prediction",
	}, func(ctx context.Context, in *runInput) (*runOutput, error) {
		r, err := s.planner.Run(ctx, in.ID)
		return &runOutput{r}, err
	})
}

// formOfFiles documents a form with a job and files that measure it.
func formOfFiles() *huma.Schema {
	file := &huma.Schema{Type: huma.TypeString, Format: "binary"}
	return &huma.Schema{Type: huma.TypeObject, Required: []string{"job", "measured"}, Properties: map[string]*huma.Schema{
		"job":      {Type: huma.TypeString, Description: "The job, in JSON or YAML."},
		"measured": {Type: huma.TypeArray, Items: file, Description: "Files that measure it: " + strings.Join(snapshot.Kinds(), "; ") + "."},
	}}
}

func (s *server) createRuns(ctx context.Context, in *runsInput) (*runsOutput, error) {
	kind, params, _ := mime.ParseMediaType(in.ContentType) // what cannot be parsed is no type we know
	switch {
	case kind == formType:
		return s.createRunOfFiles(ctx, in, params["boundary"])
	case kind != "" && kind != jsonType:
		return nil, newProblem(ctx, http.StatusUnsupportedMediaType, "Runs come as "+jsonType+", or as "+formType+" with a job and files that measure it.")
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
		out[i] = reported{r.ID, r.Flagged, r.Predicted, r.Compared}
	}
	return &runsOutput{out}, nil
}

// createRunOfFiles keeps a run that files of other tools measure.
func (s *server) createRunOfFiles(ctx context.Context, in *runsInput, boundary string) (*runsOutput, error) {
	text, files, err := parts(multipart.NewReader(bytes.NewReader(in.RawBody), boundary))
	if err != nil {
		return nil, fault.New(fault.Invalid, "The form cannot be read: %v.", err)
	}
	if text == nil {
		return nil, fault.Fields{{Path: "job", Want: "the job that was measured, in JSON or YAML"}}
	}
	job, err := wire.Decode(text)
	if err = s.planner.AllWrong(ctx, job, err); err != nil {
		return nil, err
	}
	r, err := s.planner.ReportFiles(ctx, job, files, in.Key)
	if err != nil {
		return nil, err
	}
	return &runsOutput{[]reported{{r.ID, r.Flagged, r.Predicted, r.Compared}}}, nil
}

// parts splits a form into the job's text and the files.
func parts(form *multipart.Reader) (job []byte, files []planner.MeasuredFile, err error) {
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return job, files, nil
		}
		if err != nil {
			return nil, nil, err
		}
		data, err := io.ReadAll(part)
		if err != nil {
			return nil, nil, err
		}
		switch part.FormName() {
		case "job":
			job = data
		case "measured":
			files = append(files, planner.MeasuredFile{Name: part.FileName(), Data: data})
		}
	}
}
