package api

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"memplan/internal/fault"
	"memplan/internal/units"
	"memplan/internal/watch"
)

// watchBody is samples of one process.
type watchBody struct {
	Capacity units.Bytes    `json:"capacity_bytes,omitempty" doc:"What the process may hold; without it no time of running out is given."`
	Samples  []watch.Sample `json:"samples" doc:"In the order they were taken, at the same point of each step."`
}

// watchInput asks for a judgement.
type watchInput struct {
	RawBody []byte `contentType:"application/json"`
}

// watchOutput is the judgement.
type watchOutput struct {
	Body watch.Judgement
}

// registerWatch adds the operation on samples of a running process.
func (s *server) registerWatch(api huma.API) {
	register(s, api, huma.Operation{
		OperationID: "watch", Method: http.MethodPost, Path: "/watch", Tags: []string{"watch"},
		Summary:     "Judge samples of a running process",
		Description: "Says by how much its memory grows a step, how sure that is, when it runs out, and how much is fragmentation. Nothing is kept.",
		RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			jsonType: {Schema: api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[watchBody](), true, "")},
		}},
		MaxBodyBytes: maxBatchBytes,
	}, func(_ context.Context, in *watchInput) (*watchOutput, error) {
		var body watchBody
		if err := json.Unmarshal(in.RawBody, &body); err != nil {
			return nil, fault.New(fault.Invalid, "The body is no samples: %v.", err)
		}
		j, err := watch.Judge(body.Samples, body.Capacity)
		return &watchOutput{j}, err
	})
}
