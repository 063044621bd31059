package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"memplan/internal/catalog"
)

// items is a list that has no pages.
type items[T any] struct {
	Items []T `json:"items"`
}

// modelsInput searches the catalogue's models.
type modelsInput struct {
	Query string `query:"q" doc:"Part of an id, a name or a family. Without it: all."`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"The most items."`
}

// modelsOutput is the models found, best first.
type modelsOutput struct {
	Body items[catalog.Model]
}

// gpusOutput is the catalogue's cards.
type gpusOutput struct {
	Body items[catalog.GPU]
}

// registerCatalog adds the operations that read the embedded tables.
func (s *server) registerCatalog(api huma.API) {
	register(s, api, huma.Operation{
		OperationID: "listModels", Method: http.MethodGet, Path: "/models", Tags: []string{"catalogue"},
		Summary: "Models known by id, best match first",
	}, func(_ context.Context, in *modelsInput) (*modelsOutput, error) {
		out := &modelsOutput{}
		out.Body.Items = s.planner.Models(in.Query, in.Limit)
		return out, nil
	})
	register(s, api, huma.Operation{
		OperationID: "listGPUs", Method: http.MethodGet, Path: "/gpus", Tags: []string{"catalogue"},
		Summary: "Cards known by key, with the memory a process can get",
	}, func(context.Context, *struct{}) (*gpusOutput, error) {
		out := &gpusOutput{}
		out.Body.Items = s.planner.GPUs()
		return out, nil
	})
}
