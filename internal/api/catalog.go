package api

import (
	"context"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"memplan/internal/catalog"
	"memplan/internal/fault"
	"memplan/internal/wire"
)

// modelsInput searches the catalogue's models.
type modelsInput struct {
	Query  string `query:"q" doc:"Part of an id, a name or a family. Without it: all."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"The most items of a page."`
	Cursor string `query:"cursor" doc:"next_cursor of the page before."`
}

// modelsOutput is the models found, best first.
type modelsOutput struct {
	Body wire.Page[catalog.Model]
}

// gpusInput pages through the catalogue's cards.
type gpusInput struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"1000" doc:"The most items of a page."`
	Cursor string `query:"cursor" doc:"next_cursor of the page before."`
}

// gpusOutput is the catalogue's cards.
type gpusOutput struct {
	Body wire.Page[catalog.GPU]
}

// registerCatalog adds the operations that read the embedded tables.
func (s *server) registerCatalog(api huma.API) {
	register(s, api, huma.Operation{
		OperationID: "listModels", Method: http.MethodGet, Path: "/models", Tags: []string{"catalogue"},
		Summary: "Models known by id, best match first",
	}, func(ctx context.Context, in *modelsInput) (*modelsOutput, error) {
		page, err := pageOf(s.planner.Models(in.Query, 0), in.Limit, in.Cursor)
		if err != nil {
			return nil, inQuery(s.problemOf(ctx, err))
		}
		return &modelsOutput{page}, nil
	})
	register(s, api, huma.Operation{
		OperationID: "listGPUs", Method: http.MethodGet, Path: "/gpus", Tags: []string{"catalogue"},
		Summary: "Cards known by key, with the memory a process can get",
	}, func(ctx context.Context, in *gpusInput) (*gpusOutput, error) {
		page, err := pageOf(s.planner.GPUs(), in.Limit, in.Cursor)
		if err != nil {
			return nil, inQuery(s.problemOf(ctx, err))
		}
		return &gpusOutput{page}, nil
	})
}

// pageOf cuts a page out of a table that does not change while the service
// runs: its cursor is how many items were given before.
func pageOf[T any](all []T, limit int, cursor string) (wire.Page[T], error) {
	from := 0
	if cursor != "" {
		n, err := strconv.Atoi(cursor)
		if err != nil || n < 0 || n > len(all) {
			return wire.Page[T]{}, fault.Fields{{Path: "cursor", Got: cursor, Want: "next_cursor of the page before"}}
		}
		from = n
	}
	to, next := min(from+limit, len(all)), ""
	if to < len(all) {
		next = strconv.Itoa(to)
	}
	return wire.NewPage(all[from:to], next), nil
}
