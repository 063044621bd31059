package api

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/planner"
	"memplan/internal/wire"
)

// schemas is where the document keeps its schemas.
const schemas = "#/components/schemas/"

// refTo is a reference to a schema of the document.
func refTo(name string) *huma.Schema { return &huma.Schema{Ref: schemas + name} }

// jobSchema stands for spec.Job in the document: the schema of the public
// format in place of one read off the Go type.
type jobSchema struct{}

// Schema implements huma.SchemaProvider.
func (jobSchema) Schema(huma.Registry) *huma.Schema { return refTo("Job") }

// verdictSchema stands for estimator.Verdict.
type verdictSchema struct{}

// Schema implements huma.SchemaProvider.
func (verdictSchema) Schema(huma.Registry) *huma.Schema {
	return oneOf(estimator.Fits, estimator.Tight, estimator.Exceeds)
}

// decisionSchema stands for planner.Decision.
type decisionSchema struct{}

// Schema implements huma.SchemaProvider.
func (decisionSchema) Schema(huma.Registry) *huma.Schema {
	return oneOf(planner.Allow, planner.Warn, planner.Deny)
}

// oneOf is the schema of a few words.
func oneOf(words ...any) *huma.Schema { return &huma.Schema{Type: huma.TypeString, Enum: words} }

// batchItem is an estimate or a problem.
type batchItem struct {
	estimate *estimator.Estimate
	problem  *Problem
}

// MarshalJSON writes whichever it is.
func (b batchItem) MarshalJSON() ([]byte, error) {
	if b.problem != nil {
		return json.Marshal(b.problem)
	}
	return wire.EncodeEstimate(b.estimate)
}

// Schema implements huma.SchemaProvider.
func (batchItem) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{AnyOf: []*huma.Schema{
		r.Schema(reflect.TypeFor[estimator.Estimate](), true, ""),
		r.Schema(reflect.TypeFor[Problem](), true, ""),
	}}
}

// describe fills in what huma cannot read off the operations.
func describe(o *huma.OpenAPI) {
	o.Info.Description = "How much GPU memory a training job needs at its peak, whether it fits the GPU it is meant for, and what to change if it does not. " +
		"All sizes are whole bytes. Failures are application/problem+json with one entry for every wrong field."
	o.Info.License = &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"}
	o.Servers = []*huma.Server{{URL: prefix, Description: "this server"}}
	o.Tags = []*huma.Tag{
		{Name: "estimates", Description: "What a job needs, phase by phase."},
		{Name: "checks", Description: "Whether it may run, and where."},
		{Name: "runs", Description: "Jobs as they were measured, beside what was predicted."},
		{Name: "watch", Description: "Whether a running process leaks."},
		{Name: "calibrations", Description: "Fits of measured runs: what answers are made by."},
		{Name: "recommendations", Description: "What to change."},
		{Name: "catalogue", Description: "The models and cards known by name."},
		{Name: "devices", Description: "Attached cards, and what is measured on them."},
	}
	r := o.Components.Schemas
	r.RegisterTypeAlias(reflect.TypeFor[spec.Job](), reflect.TypeFor[jobSchema]())
	r.RegisterTypeAlias(reflect.TypeFor[huma.ErrorModel](), reflect.TypeFor[Problem]())
	r.RegisterTypeAlias(reflect.TypeFor[estimator.Verdict](), reflect.TypeFor[verdictSchema]())
	r.RegisterTypeAlias(reflect.TypeFor[planner.Decision](), reflect.TypeFor[decisionSchema]())
	for name, s := range jobSchemas(wire.Schema) {
		r.Map()[name] = s
	}
	r.Map()["Run"] = runSchema()
}

// jobSchemas are the schemas of a job for the document: Job itself, and each of
// its definitions, which in OpenAPI stand beside it, under a name that begins
// with Job. It panics when the embedded schema is broken.
func jobSchemas(raw []byte) map[string]*huma.Schema {
	var job map[string]any
	if err := json.Unmarshal(raw, &job); err != nil {
		panic(fmt.Sprintf("api: the job's schema: %v", err))
	}
	definitions, _ := job["$defs"].(map[string]any)
	delete(job, "$defs")
	delete(job, "$schema")
	delete(job, "$id")
	out := map[string]*huma.Schema{"Job": {Extensions: job}}
	adapt(job)
	for name, d := range definitions {
		adapt(d)
		out[definitionName(name)] = &huma.Schema{Extensions: d.(map[string]any)}
	}
	return out
}

// runSchema is the schema of a run for the document. It panics when the embedded
// schema is broken.
func runSchema() *huma.Schema {
	var run map[string]any
	if err := json.Unmarshal(wire.RunSchema, &run); err != nil {
		panic(fmt.Sprintf("api: the run's schema: %v", err))
	}
	definitions, _ := run["$defs"].(map[string]any)
	delete(run, "$defs")
	delete(run, "$schema")
	properties := run["properties"].(map[string]any)
	properties["job"] = map[string]any{"$ref": schemas + "Job"}
	for name, p := range properties {
		if p == true { // in OpenAPI's readers a schema is an object
			properties[name] = map[string]any{}
		}
	}
	inline(run, definitions)
	adapt(run)
	return &huma.Schema{Extensions: run}
}

// inline puts definitions in the place of references to them.
func inline(v any, definitions map[string]any) {
	switch v := v.(type) {
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok && strings.HasPrefix(ref, "#/$defs/") {
			delete(v, "$ref")
			maps.Copy(v, definitions[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any))
		}
		for _, x := range v {
			inline(x, definitions)
		}
	case []any:
		for _, x := range v {
			inline(x, definitions)
		}
	}
}

// definitionName is the name of a definition of the job's schema beside it:
// quantization_type becomes JobQuantizationType.
func definitionName(name string) string {
	var b strings.Builder
	b.WriteString("Job")
	for word := range strings.SplitSeq(name, "_") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

// adapt makes what stands in v fit for the document: references point to where
// definitions stand there, and a list of types is spelt anyOf, which generators
// of clients read and lists of types they do not.
func adapt(v any) {
	switch v := v.(type) {
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok && !strings.HasPrefix(ref, schemas) {
			v["$ref"] = schemas + definitionName(strings.TrimPrefix(ref, "#/$defs/"))
		}
		if types, ok := v["type"].([]any); ok && (len(types) > 2 || len(types) == 2 && !slices.Contains(types, any("null"))) {
			delete(v, "type")
			v["anyOf"] = alternatives(types)
		}
		for _, x := range v {
			adapt(x)
		}
	case []any:
		for _, x := range v {
			adapt(x)
		}
	}
}

// alternatives is a schema for each type.
func alternatives(types []any) []any {
	out := make([]any, len(types))
	for i, t := range types {
		out[i] = map[string]any{"type": t}
	}
	return out
}

// jobRequest documents a body that is a job.
func jobRequest() *huma.RequestBody {
	return &huma.RequestBody{
		Required:    true,
		Description: "A job. Synonyms of keys and values are accepted and normalised.",
		Content:     map[string]*huma.MediaType{jsonType: {Schema: refTo("Job")}, yamlType: {Schema: refTo("Job")}},
	}
}

// batchRequest documents a body that is a list of jobs.
func batchRequest() *huma.RequestBody {
	most := planner.MaxBatch
	return &huma.RequestBody{
		Required: true,
		Content: map[string]*huma.MediaType{jsonType: {
			Schema: &huma.Schema{Type: huma.TypeArray, Items: refTo("Job"), MaxItems: &most},
		}},
	}
}

// estimateResponse documents an answer that is an estimate.
func estimateResponse(description string) *huma.Response {
	return &huma.Response{Description: description, Content: map[string]*huma.MediaType{jsonType: {Schema: refTo("Estimate")}}}
}

// tidy makes the document say what the answers keep to: lists are never null,
// and an answer may grow keys that an older client does not know.
func tidy(o *huma.OpenAPI) {
	for _, s := range o.Components.Schemas.Map() {
		tidySchema(s)
	}
	for _, path := range o.Paths {
		for _, op := range []*huma.Operation{path.Get, path.Post, path.Delete} {
			if op == nil {
				continue
			}
			for _, p := range op.Parameters {
				tidySchema(p.Schema)
			}
			for _, r := range op.Responses {
				for _, m := range r.Content {
					tidySchema(m.Schema)
				}
			}
		}
	}
}

// tidySchema is tidy for one schema and what stands in it.
func tidySchema(s *huma.Schema) {
	if s == nil {
		return
	}
	if s.Type == huma.TypeArray {
		s.Nullable = false
	}
	if closed, ok := s.AdditionalProperties.(bool); ok && !closed {
		s.AdditionalProperties = nil
	}
	if m, ok := s.AdditionalProperties.(*huma.Schema); ok {
		tidySchema(m)
	}
	tidySchema(s.Items)
	for _, p := range s.Properties {
		tidySchema(p)
	}
}

// register adds an operation whose errors become problems. A body is decoded by
// package wire, so that every door reads a job alike: huma only carries its
// bytes, and the document shows the schema given with the operation.
func register[I, O any](s *server, api huma.API, op huma.Operation, answer func(context.Context, *I) (*O, error)) {
	op.SkipValidateBody = true
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	op.Responses["default"] = &huma.Response{
		Description: "What was wrong.", Content: map[string]*huma.MediaType{problemType: {Schema: refTo("Problem")}},
	}
	body := op.RequestBody
	var content map[string]*huma.MediaType
	if body != nil {
		content = maps.Clone(body.Content) // huma puts "binary" in its place
	}
	huma.Register(api, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := answer(ctx, in)
		if err != nil {
			return nil, s.problemOf(ctx, err)
		}
		return out, nil
	})
	if body != nil {
		body.Content = content
	}
}

// serveDocument tidies the document, encodes it once and serves it.
func serveDocument(o *huma.OpenAPI) http.HandlerFunc {
	tidy(o)
	text, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("api: the OpenAPI document: %v", err))
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		_, _ = w.Write(append(text, '\n')) // the reader is gone when this fails
	}
}
