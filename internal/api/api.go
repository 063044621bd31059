package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"memplan/internal/auth"
	"memplan/internal/estimator"
	"memplan/internal/obs"
	"memplan/internal/planner"
	"memplan/internal/wire"
)

// prefix is where version 1 of the interface is mounted.
const prefix = "/api/v1"

// Config is what the door is made of. Planner, Log and Metrics are needed.
type Config struct {
	Planner           *planner.Planner
	Log               *slog.Logger
	Metrics           *obs.Metrics
	Version           string          // of the build, for the OpenAPI document
	Pages             http.Handler    // everything that is not the interface; nil: nothing is
	RequestsPerMinute int             // per client address, on the interface; 0: no limit
	Stopping          <-chan struct{} // closed when the service is to stop: streams end; nil: they end with their readers
	Refresh           time.Duration   // how often streams look for what is new; 0: 2 s
}

// server holds what the operations share.
type server struct {
	planner *planner.Planner
	log     *slog.Logger
	version string

	stopping <-chan struct{}
	refresh  time.Duration
}

// New returns the handler of the whole service: the REST interface, its
// document, health, readiness and metrics, and the pages beside them.
func New(c Config) http.Handler {
	s := &server{
		planner: c.Planner, log: c.Log, version: cmp.Or(c.Version, "dev"),
		stopping: c.Stopping, refresh: cmp.Or(c.Refresh, 2*time.Second),
	}
	r := chi.NewRouter()
	r.Use(obs.Requests(c.Log, c.Metrics, routePattern), auth.Headers, s.recoverPanics,
		auth.SameOrigin(refuse(http.StatusForbidden, "A browser sent this write from another site.")),
		middleware.Compress(5, append(traceTypes(), problemType)...), middleware.GetHead)
	r.NotFound(refuse(http.StatusNotFound, "There is nothing at this address."))
	r.MethodNotAllowed(methodNotAllowed)

	r.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok\n") })
	r.Get("/readyz", s.ready)
	r.Method(http.MethodGet, "/metrics", c.Metrics.Handler())

	v1, document := s.version1(c.RequestsPerMinute)
	r.Mount(prefix, v1)
	r.Handle("/api/*", refuse(http.StatusNotFound, "There is nothing at this address. The interface is described in "+prefix+"/openapi.json."))
	r.Get("/openapi.json", document)
	if c.Pages != nil {
		r.Mount("/", c.Pages)
	}
	return r
}

// version1 returns the interface's routes, and the handler of its document.
func (s *server) version1(requestsPerMinute int) (http.Handler, http.HandlerFunc) {
	r := chi.NewRouter()
	r.Use(auth.RateLimit(requestsPerMinute, refuse(http.StatusTooManyRequests, "Too many requests from this address; try again in a minute.")))
	api := humachi.New(r, s.humaConfig())
	s.registerEstimates(api)
	s.registerTraces(api)
	s.registerChecks(api)
	s.registerColocations(api)
	s.registerRuns(api)
	s.registerCalibrations(api)
	s.registerWatch(api)
	s.registerRecommendations(api)
	s.registerCatalog(api)
	s.registerDevices(api)
	document := serveDocument(api.OpenAPI())
	r.Get("/openapi.json", document)
	return r, document
}

// humaConfig is huma without its own documentation pages, which load scripts
// from other hosts, and without links to schemas in every answer.
func (s *server) humaConfig() huma.Config {
	c := huma.DefaultConfig("memplan", s.version)
	c.CreateHooks = nil
	c.OpenAPIPath, c.DocsPath, c.SchemasPath = "", "", ""
	c.RejectUnknownQueryParameters = true
	asJSON := huma.Format{Marshal: encode, Unmarshal: json.Unmarshal}
	c.Formats = map[string]huma.Format{jsonType: asJSON, "json": asJSON}
	c.Transformers = []huma.Transformer{s.transform}
	describe(c.OpenAPI)
	return c
}

// encode writes a body. Estimates are the wire's to write.
func encode(w io.Writer, v any) error {
	est, ok := v.(*estimator.Estimate)
	if !ok {
		return huma.DefaultJSONFormat.Marshal(w, v)
	}
	text, err := wire.EncodeEstimate(est)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// ready answers whether the store can be reached.
func (s *server) ready(w http.ResponseWriter, r *http.Request) {
	if err := s.planner.ReadyCheck(r.Context()); err != nil {
		writeProblem(w, s.problemOf(r.Context(), err))
		return
	}
	writeText(w, "ready\n")
}

// writeText answers with a line of plain text.
func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(text)) // the reader is gone when this fails
}

// recoverPanics turns a defect into an answer and a log line.
func (s *server) recoverPanics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch v := recover(); v {
			case nil:
			case http.ErrAbortHandler:
				panic(v)
			default:
				s.panicked(w, r, v)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// panicked logs what a handler panicked with. huma panics when it cannot
// write: a reader who left is no defect.
func (s *server) panicked(w http.ResponseWriter, r *http.Request, v any) {
	if r.Context().Err() != nil {
		s.log.LogAttrs(context.WithoutCancel(r.Context()), slog.LevelInfo, "the reader left", slog.String("id", obs.RequestID(r.Context())))
		return
	}
	s.log.LogAttrs(r.Context(), slog.LevelError, "panic", slog.String("id", obs.RequestID(r.Context())),
		slog.String("error", fmt.Sprint(v)), slog.String("stack", string(debug.Stack())))
	writeProblem(w, newProblem(r.Context(), http.StatusInternalServerError, statuses[0].text))
}

// routePattern is the pattern of the route that served r.
func routePattern(r *http.Request) string {
	if c := chi.RouteContext(r.Context()); c != nil && c.RoutePattern() != "" {
		return c.RoutePattern()
	}
	return "none"
}

// methodNotAllowed says which methods the address knows.
func methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	routes := chi.RouteContext(r.Context()).Routes
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if routes.Match(chi.NewRouteContext(), m, r.URL.Path) {
			allowed = append(allowed, m)
		}
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	refuse(http.StatusMethodNotAllowed, "This address answers "+strings.Join(allowed, " and ")+" only.")(w, r)
}
