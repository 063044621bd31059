package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/wire"
)

// colocationInput is a list of jobs for one card.
type colocationInput struct {
	BatchBody
	ByCalibration
}

// colocationOutput is which of them fit together.
type colocationOutput struct {
	Body *planner.Colocation
}

// registerColocations adds the question whether jobs fit on a card together.
func (s *server) registerColocations(api huma.API) {
	register(s, api, huma.Operation{
		OperationID: "createColocation", Method: http.MethodPost, Path: "/colocations", Tags: []string{"checks"},
		Summary:     "Whether jobs fit on one card together",
		Description: "Takes from 2 to 32 jobs that name the same card, each a process of its own there, and answers whether all fit at once, which pairs do, and how few such cards would hold them.",
		RequestBody: batchRequest(), MaxBodyBytes: maxBatchBytes,
	}, s.createColocation)
}

func (s *server) createColocation(ctx context.Context, in *colocationInput) (*colocationOutput, error) {
	raw, err := in.jobs(ctx)
	if err != nil {
		return nil, err
	}
	if len(raw) > planner.MaxNeighbours {
		return nil, fault.New(fault.TooLarge, "%d jobs: at most %d on one card.", len(raw), planner.MaxNeighbours)
	}
	jobs := make([]spec.Job, len(raw))
	var wrong fault.Fields
	for i, text := range raw {
		job, err := wire.DecodeJSON(text)
		if err == nil {
			jobs[i] = job
			continue
		}
		fields := fault.FieldsOf(s.planner.AllWrong(ctx, job, err))
		if len(fields) == 0 {
			return nil, err
		}
		for _, f := range fields {
			f.Path = fmt.Sprintf("[%d].%s", i, f.Path)
			wrong = append(wrong, f)
		}
	}
	if len(wrong) > 0 {
		return nil, wrong
	}
	by, err := s.planner.By(ctx, in.Calibration)
	if err != nil {
		return nil, inQuery(s.problemOf(ctx, err))
	}
	c, err := by.Colocate(ctx, jobs)
	return &colocationOutput{Body: c}, err
}
