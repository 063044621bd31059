package api

import (
	"cmp"
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/negotiation"

	"memplan/internal/estimator"
	"memplan/internal/snapshot"
)

// traceInput asks for the events of a kept estimate.
type traceInput struct {
	ID     string `path:"id" doc:"The id an estimate was given when it was kept." example:"est_mfzw6ylunbqxe2lp"`
	Format string `query:"format" enum:"events,memory_viz,chrome" doc:"events: JSON, an event a line. memory_viz: the pickle that torch.cuda.memory._dump_snapshot writes, for https://pytorch.org/memory_viz. chrome: for chrome://tracing and https://ui.perfetto.dev. Without it, Accept decides, and else it is events."`
	Accept string `header:"Accept" hidden:"true"` // OpenAPI says it with the responses
}

// format is what is asked for.
func (in *traceInput) format() snapshot.Format {
	var types []string
	byType := map[string]snapshot.Format{}
	for _, f := range snapshot.Formats() {
		types = append(types, f.MediaType())
		byType[f.MediaType()] = f
	}
	accepted := byType[negotiation.SelectQValueFast(in.Accept, types)]
	return cmp.Or(snapshot.Format(in.Format), accepted, snapshot.Events)
}

// trace is the events format, for the OpenAPI document.
type trace struct {
	Version int                    `json:"version" doc:"Of the format."`
	Engine  estimator.Engine       `json:"engine" doc:"What made the trace: the engine that runs now."`
	Events  []estimator.TraceEvent `json:"events" doc:"In order."`
}

// traceTypes are the media types of traces, JSON among them: all compress well.
func traceTypes() []string {
	var types []string
	for _, f := range snapshot.Formats() {
		types = append(types, f.MediaType())
	}
	return types
}

// registerTraces adds the operation on traces.
func (s *server) registerTraces(api huma.API) {
	document := api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[trace](), true, "Trace")
	register(s, api, huma.Operation{
		OperationID: "getTrace", Method: http.MethodGet, Path: "/estimates/{id}/trace", Tags: []string{"estimates"},
		Summary: "Every event of a kept estimate's job",
		Description: "Runs the job again and answers with all it asks of the allocator, and the allocator of the driver, from the first weight to the end of the first steady step. " +
			"Micro batches that would leave the allocator as they found it are told once.",
		Responses: map[string]*huma.Response{"200": {
			Description: "The events, as a file.",
			Headers: map[string]*huma.Header{
				"Content-Disposition": {Description: "A name for the file.", Schema: &huma.Schema{Type: huma.TypeString}},
			},
			Content: map[string]*huma.MediaType{
				snapshot.Events.MediaType():    {Schema: document},
				snapshot.MemoryViz.MediaType(): {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
				snapshot.Chrome.MediaType():    {Schema: &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}},
			},
		}},
	}, s.getTrace)
}

func (s *server) getTrace(ctx context.Context, in *traceInput) (*huma.StreamResponse, error) {
	recording, err := s.planner.Trace(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	f := in.format()
	return &huma.StreamResponse{Body: func(out huma.Context) {
		out.SetHeader("Content-Type", f.MediaType())
		out.SetHeader("Content-Disposition", `attachment; filename="`+f.File(in.ID)+`"`)
		out.SetHeader("Vary", "Accept")
		_ = snapshot.Write(out.BodyWriter(), recording, f) // the reader is gone when this fails
	}}, nil
}
