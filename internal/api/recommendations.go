package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"memplan/internal/planner"
	"memplan/internal/recommend"
	"memplan/internal/wire"
)

// eventType is the media type of an answer that comes in parts.
const eventType = "text/event-stream"

// adviceInput is a question about a job.
type adviceInput struct {
	JobBody
}

// adviceOutput is the recommendation.
type adviceOutput struct {
	Body *recommend.Recommendation
}

// registerRecommendations adds the operations that say what to change.
func (s *server) registerRecommendations(api huma.API) {
	request := adviceRequest(api.OpenAPI().Components.Schemas)
	register(s, api, huma.Operation{
		OperationID: "createRecommendation", Method: http.MethodPost, Path: "/recommendations", Tags: []string{"recommendations"},
		Summary:     "What to change in a job",
		Description: "Searches for what makes a job fit, or fast, or large. Every option was estimated as a whole and fits with the probability asked for.",
		RequestBody: request, MaxBodyBytes: maxJobBytes,
	}, s.createRecommendation)
	register(s, api, huma.Operation{
		OperationID: "createRecommendationEvents", Method: http.MethodPost, Path: "/recommendations/events", Tags: []string{"recommendations"},
		Summary:     "What to change in a job, with progress",
		Description: "Answers as server-sent events: any number of progress, then answer, or problem where the search failed.",
		RequestBody: request, MaxBodyBytes: maxJobBytes,
		Responses: map[string]*huma.Response{"200": {
			Description: "The search while it runs, and its answer.",
			Content:     map[string]*huma.MediaType{eventType: {Schema: &huma.Schema{Type: huma.TypeString}}},
		}},
	}, s.createRecommendationEvents)
}

// adviceRequest documents a body that asks about a job.
func adviceRequest(schemas huma.Registry) *huma.RequestBody {
	for name, schema := range jobSchemas(wire.AdviceSchema) {
		if name == "Job" {
			schema.Extensions["properties"].(map[string]any)["job"] = map[string]any{"$ref": refTo("Job").Ref}
			schemas.Map()["RecommendationRequest"] = schema
		}
	}
	schemas.RegisterTypeAlias(reflect.TypeFor[recommend.Goal](), reflect.TypeFor[goalSchema]())
	content := &huma.MediaType{Schema: refTo("RecommendationRequest")}
	return &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{jsonType: content, yamlType: content}}
}

// goalSchema stands for recommend.Goal in the document.
type goalSchema struct{}

// Schema implements huma.SchemaProvider.
func (goalSchema) Schema(huma.Registry) *huma.Schema {
	var words []any
	for _, g := range recommend.Goals() {
		words = append(words, g)
	}
	return oneOf(words...)
}

// advice decodes the question.
func (s *server) advice(ctx context.Context, in *adviceInput) (planner.Advice, error) {
	if _, err := bodyType(ctx, in.ContentType); err != nil {
		return planner.Advice{}, err
	}
	asked, err := wire.DecodeAdvice(in.RawBody)
	return planner.AdviceOf(asked), err
}

func (s *server) createRecommendation(ctx context.Context, in *adviceInput) (*adviceOutput, error) {
	asked, err := s.advice(ctx, in)
	if err != nil {
		return nil, err
	}
	answer, err := s.planner.Recommend(ctx, asked, nil)
	if err != nil {
		return nil, err
	}
	return &adviceOutput{nonNull(answer)}, nil
}

// nonNull makes every missing list of the options' estimates an empty one.
func nonNull(a *recommend.Recommendation) *recommend.Recommendation {
	for i := range a.Options {
		if o := &a.Options[i]; o.Estimate != nil {
			est := wire.NonNull(*o.Estimate)
			o.Estimate = &est
		}
	}
	return a
}

func (s *server) createRecommendationEvents(ctx context.Context, in *adviceInput) (*huma.StreamResponse, error) {
	asked, err := s.advice(ctx, in)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		c.SetHeader("Content-Type", eventType)
		c.SetHeader("Cache-Control", "no-store")
		events := &eventWriter{w: c.BodyWriter()}
		answer, err := s.planner.Recommend(c.Context(), asked, func(p recommend.Progress) { events.send("progress", p) })
		if err != nil {
			events.send("problem", s.problemOf(c.Context(), err))
			return
		}
		events.send("answer", nonNull(answer))
	}}, nil
}

// eventWriter writes server-sent events.
type eventWriter struct {
	mu sync.Mutex
	w  interface{ Write([]byte) (int, error) }
}

// send writes one event and hands it over at once.
func (e *eventWriter) send(name string, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("api: an event that is no JSON: %v", err))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	fmt.Fprintf(e.w, "event: %s\ndata: %s\n\n", name, text) // the reader is gone when this fails
	if f, ok := e.w.(http.Flusher); ok {
		f.Flush()
	}
}
