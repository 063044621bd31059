package api

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/wire"
)

// devicesOutput is the attached cards.
type devicesOutput struct {
	Body planner.DeviceList
}

// benchmarkInput asks for a benchmark.
type benchmarkInput struct {
	RawBody []byte `contentType:"application/json"`
	Key     string `header:"Idempotency-Key" maxLength:"200" doc:"The same request under the same key is queued once."`
}

// benchmarkOutput is one benchmark.
type benchmarkOutput struct {
	Location string `header:"Location" doc:"Where it can be watched."`
	Body     planner.Benchmark
}

// benchmarkID names a benchmark.
type benchmarkID struct {
	ID string `path:"id" doc:"The id that a benchmark was given." example:"bm_mfzw6ylunbqxe2lp"`
}

// benchmarksInput pages through the benchmarks.
type benchmarksInput struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"The most items of a page."`
	Cursor string `query:"cursor" doc:"next_cursor of the page before."`
}

// benchmarksOutput is a page of benchmarks, without their results.
type benchmarksOutput struct {
	Body wire.Page[planner.Benchmark]
}

// registerDevices adds the operations on cards and what is measured on them.
func (s *server) registerDevices(api huma.API) {
	register(s, api, huma.Operation{
		OperationID: "listDevices", Method: http.MethodGet, Path: "/devices", Tags: []string{"devices"},
		Summary: "Attached cards, with what holds their memory now",
	}, func(ctx context.Context, _ *struct{}) (*devicesOutput, error) {
		list, err := s.planner.ListDevices(ctx)
		return &devicesOutput{list}, err
	})
	register(s, api, huma.Operation{
		OperationID: "watchDevices", Method: http.MethodGet, Path: "/devices/events", Tags: []string{"devices"},
		Summary: "The same as server-sent events, one whenever something changed", Responses: eventResponses(),
	}, func(context.Context, *struct{}) (*huma.StreamResponse, error) {
		return s.stream(func(ctx context.Context) (any, bool, error) {
			list, err := s.planner.ListDevices(ctx)
			return list, false, err
		}), nil
	})
	register(s, api, huma.Operation{
		OperationID: "createBenchmark", Method: http.MethodPost, Path: "/benchmarks", Tags: []string{"devices"},
		Summary:     "Queue micro-benchmarks of a card",
		Description: "A card runs one benchmark at a time. A probe that runs out of memory or time is a result, and the others go on.",
		RequestBody: benchmarkBody(), MaxBodyBytes: maxJobBytes, DefaultStatus: http.StatusAccepted,
	}, s.createBenchmark)
	register(s, api, huma.Operation{
		OperationID: "listBenchmarks", Method: http.MethodGet, Path: "/benchmarks", Tags: []string{"devices"},
		Summary: "Benchmarks without their results, newest first",
	}, func(ctx context.Context, in *benchmarksInput) (*benchmarksOutput, error) {
		page, err := s.planner.Benchmarks(ctx, in.Limit, in.Cursor)
		if err != nil {
			return nil, inQuery(s.problemOf(ctx, err))
		}
		return &benchmarksOutput{page}, nil
	})
	s.registerBenchmark(api)
}

// registerBenchmark adds the operations on one benchmark.
func (s *server) registerBenchmark(api huma.API) {
	one := func(op huma.Operation, answer func(context.Context, string) (planner.Benchmark, error)) {
		op.Tags = []string{"devices"}
		register(s, api, op, func(ctx context.Context, in *benchmarkID) (*benchmarkOutput, error) {
			b, err := answer(ctx, in.ID)
			return &benchmarkOutput{Body: b}, err
		})
	}
	one(huma.Operation{
		OperationID: "getBenchmark", Method: http.MethodGet, Path: "/benchmarks/{id}",
		Summary: "One benchmark, with the results so far",
	}, s.planner.Benchmark)
	one(huma.Operation{
		OperationID: "cancelBenchmark", Method: http.MethodDelete, Path: "/benchmarks/{id}",
		Summary: "Cancel a benchmark; its results so far are kept", DefaultStatus: http.StatusOK,
	}, s.planner.CancelBenchmark)
	one(huma.Operation{
		OperationID: "retryBenchmark", Method: http.MethodPost, Path: "/benchmarks/{id}/retry",
		Summary: "Run again what is missing or failed of a benchmark that has ended", DefaultStatus: http.StatusOK,
	}, s.planner.RetryBenchmark)
	register(s, api, huma.Operation{
		OperationID: "watchBenchmark", Method: http.MethodGet, Path: "/benchmarks/{id}/events", Tags: []string{"devices"},
		Summary: "One benchmark as server-sent events, until it has ended", Responses: eventResponses(),
	}, func(ctx context.Context, in *benchmarkID) (*huma.StreamResponse, error) {
		if _, err := s.planner.Benchmark(ctx, in.ID); err != nil {
			return nil, err
		}
		return s.stream(func(ctx context.Context) (any, bool, error) {
			b, err := s.planner.Benchmark(ctx, in.ID)
			return b, b.State.Ended(), err
		}), nil
	})
}

func (s *server) createBenchmark(ctx context.Context, in *benchmarkInput) (*benchmarkOutput, error) {
	request, err := decodeBenchmark(in.RawBody)
	if err != nil {
		return nil, err
	}
	b, err := s.planner.StartBenchmark(ctx, request, in.Key)
	return &benchmarkOutput{Location: prefix + "/benchmarks/" + b.ID, Body: b}, err
}

// decodeBenchmark reads the body of a request; every wrong field is reported.
func decodeBenchmark(raw []byte) (planner.BenchRequest, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		return planner.BenchRequest{}, fault.New(fault.Invalid, "The body is not a JSON object: %v.", err)
	}
	var r planner.BenchRequest
	var wrong fault.Fields
	field := func(name, want string, into any) {
		if text, ok := keys[name]; ok && json.Unmarshal(text, into) != nil {
			wrong.Add(name, short(text), want, "")
		}
		delete(keys, name)
	}
	field("device", "the id of an attached card", &r.Device)
	field("max_seconds", "a whole number of seconds", &r.MaxSeconds)
	field("force", "true or false", &r.Force)
	if string(keys["probes"]) == `"default"` {
		delete(keys, "probes")
	}
	field("probes", `"default" or a list of names`, &r.Probes)
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		wrong.Add(name, "", "one of device, probes, max_seconds, force", "")
	}
	return r, wrong.Err()
}

// benchmarkBody documents the body of createBenchmark.
func benchmarkBody() *huma.RequestBody {
	least, most := 1.0, 14400.0
	return &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{jsonType: {Schema: &huma.Schema{
		Type: huma.TypeObject, Required: []string{"device"},
		Properties: map[string]*huma.Schema{
			"device": {Type: huma.TypeString, Description: "The id of an attached card, or of a slice of one."},
			"probes": {Description: "Names of probes, or default: all.", AnyOf: []*huma.Schema{
				{Type: huma.TypeString, Enum: []any{"default"}},
				{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString}},
			}},
			"max_seconds": {Type: huma.TypeInteger, Minimum: &least, Maximum: &most, Default: 900},
			"force":       {Type: huma.TypeBoolean, Default: false, Description: "Also where others use the card."},
		},
	}}}}
}
