package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/wire"
)

// calibrationBody is what to fit.
type calibrationBody struct {
	GPU       string           `json:"gpu" doc:"Catalogue key or alias of a card, or an architecture." example:"A100-SXM4-80GB"`
	Framework planner.Software `json:"framework,omitempty" doc:"pytorch of the newest known version where nothing is said; patches do not matter."`
	Runs      runChoice        `json:"runs,omitempty"`
}

// runChoice is all, or the ids of runs.
type runChoice struct{ ids []string }

// UnmarshalJSON reads "all" or a list.
func (c *runChoice) UnmarshalJSON(text []byte) error {
	if bytes.Equal(text, []byte(`"all"`)) || bytes.Equal(text, []byte("null")) {
		return nil
	}
	return json.Unmarshal(text, &c.ids)
}

// Schema implements huma.SchemaProvider.
func (runChoice) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Description: "all, or the ids of runs; a flagged run is never used.",
		AnyOf:       []*huma.Schema{oneOf("all"), {Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString}}},
	}
}

// calibrationsInput asks for a fit.
type calibrationsInput struct {
	RawBody []byte `contentType:"application/json"`
	Key     string `header:"Idempotency-Key" maxLength:"200" doc:"The same request under the same key is fitted once."`
}

// calibrationOutput is one fit.
type calibrationOutput struct {
	Body *planner.Calibration
}

// calibrationInput names a fit.
type calibrationInput struct {
	ID string `path:"id" doc:"The id of a calibration." example:"cal_mfzw6ylunbqxe2lp"`
}

// calibrationListInput narrows the list of fits.
type calibrationListInput struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"The most items of a page."`
	Cursor string `query:"cursor" doc:"next_cursor of the page before."`
	GPU    string `query:"gpu" doc:"Catalogue key or alias of the card, or an architecture."`
	State  string `query:"state" enum:"candidate,active,retired" doc:"The state."`
}

// calibrationListOutput is one page of fits.
type calibrationListOutput struct {
	Body wire.Page[*planner.Calibration]
}

// registerCalibrations adds the operations on fits.
func (s *server) registerCalibrations(api huma.API) {
	op := func(id, method, path, summary, description string) huma.Operation {
		return huma.Operation{OperationID: id, Method: method, Path: path, Tags: []string{"calibrations"}, Summary: summary, Description: description}
	}
	create := op("createCalibration", http.MethodPost, "/calibrations", "Fit coefficients to measured runs",
		"The fit is a candidate, with its errors on runs held out. Nothing is answered by it until it is activated.")
	create.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		jsonType: {Schema: api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[calibrationBody](), true, "")},
	}}
	create.DefaultStatus = http.StatusCreated
	register(s, api, create, s.createCalibration)
	register(s, api, op("listCalibrations", http.MethodGet, "/calibrations", "List fits, newest first", ""),
		func(ctx context.Context, in *calibrationListInput) (*calibrationListOutput, error) {
			page, err := s.planner.Calibrations(ctx, planner.CalibrationFilter{GPU: in.GPU, State: in.State, Limit: in.Limit, Cursor: in.Cursor})
			if err != nil {
				return nil, inQuery(s.problemOf(ctx, err))
			}
			return &calibrationListOutput{page}, nil
		})
	for _, x := range []struct {
		op  huma.Operation
		ask func(context.Context, string) (*planner.Calibration, error)
	}{
		{op("getCalibration", http.MethodGet, "/calibrations/{id}", "One fit", ""), s.planner.Calibration},
		{op("activateCalibration", http.MethodPost, "/calibrations/{id}/activate", "Put a fit in force", "It takes the place of the one for the same card and framework; activating an older one goes back to it."), s.planner.Activate},
		{op("retireCalibration", http.MethodPost, "/calibrations/{id}/retire", "Take a fit out of force", "Answers are by the priors again."), s.planner.Retire},
	} {
		register(s, api, x.op, func(ctx context.Context, in *calibrationInput) (*calibrationOutput, error) {
			c, err := x.ask(ctx, in.ID)
			return &calibrationOutput{c}, err
		})
	}
}

func (s *server) createCalibration(ctx context.Context, in *calibrationsInput) (*calibrationOutput, error) {
	var body calibrationBody
	d := json.NewDecoder(bytes.NewReader(in.RawBody))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return nil, fault.Fields{{Path: wrong.Field, Got: wrong.Value, Want: "gpu: text; framework: {name, version}; runs: all, or a list of ids"}}
		}
		return nil, fault.New(fault.Invalid, "The body is not a request to calibrate: %v.", err)
	}
	c, err := s.planner.Calibrate(ctx, planner.CalibrationRequest{GPU: body.GPU, Framework: body.Framework, Runs: body.Runs.ids}, in.Key)
	return &calibrationOutput{c}, err
}
