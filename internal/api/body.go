package api

import (
	"context"
	"encoding/json"
	"mime"
	"net/http"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/wire"
)

// Limits on what is read. huma refuses a body as long as its limit.
const (
	maxJobBytes   = 1<<20 + 1
	maxBatchBytes = 16<<20 + 1
)

// The media types a job may come in.
const (
	jsonType = "application/json"
	yamlType = "application/yaml"
)

// JobBody is an input that is a job, in either spelling. It is exported for
// huma, which sets no parameter of an embedded type that is not.
type JobBody struct {
	ContentType string `header:"Content-Type" hidden:"true"` // OpenAPI says it with the body
	RawBody     []byte `contentType:"application/json"`
}

// job decodes the body. Its error tells every wrong field.
func (s *server) job(ctx context.Context, b *JobBody) (spec.Job, error) {
	kind, err := bodyType(ctx, b.ContentType)
	if err != nil {
		return spec.Job{}, err
	}
	decode := wire.DecodeJSON
	if kind == yamlType {
		decode = wire.DecodeYAML
	}
	job, err := decode(b.RawBody)
	return job, s.planner.AllWrong(ctx, job, err)
}

// bodyType is jsonType or yamlType, whichever the header means.
func bodyType(ctx context.Context, header string) (string, error) {
	if header == "" {
		return jsonType, nil
	}
	kind, _, _ := mime.ParseMediaType(header) // what cannot be parsed is no type we know
	switch kind {
	case jsonType, "text/json":
		return jsonType, nil
	case yamlType, "application/x-yaml", "text/yaml", "text/x-yaml":
		return yamlType, nil
	}
	return "", newProblem(ctx, http.StatusUnsupportedMediaType, "A job comes as "+jsonType+" or "+yamlType+", not as "+short(header)+`. With curl: -H "Content-Type: `+jsonType+`".`)
}

// BatchBody is an input that is a list of jobs, in JSON; exported as JobBody is.
type BatchBody struct {
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

// jobs splits the list; its items are decoded one by one, so that a wrong one
// does not spoil the rest.
func (b *BatchBody) jobs(ctx context.Context) ([]json.RawMessage, error) {
	kind, err := bodyType(ctx, b.ContentType)
	if err != nil {
		return nil, err
	}
	if kind != jsonType {
		return nil, newProblem(ctx, http.StatusUnsupportedMediaType, "A list of jobs comes as "+jsonType+".")
	}
	var jobs []json.RawMessage
	if err := json.Unmarshal(b.RawBody, &jobs); err != nil {
		return nil, fault.New(fault.Invalid, "The body is not a list of jobs: %v.", err)
	}
	return jobs, nil
}
