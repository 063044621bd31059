package web

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/planner"
	"memplan/internal/recommend"
	"memplan/internal/wire"
)

// Planner is what the pages ask of the use cases; *planner.Planner is one.
type Planner interface {
	Estimate(ctx context.Context, job spec.Job) (*estimator.Estimate, error)
	Save(ctx context.Context, job spec.Job, key string) (*estimator.Estimate, error)
	Saved(ctx context.Context, id string) (*estimator.Estimate, error)
	Check(ctx context.Context, job spec.Job) (planner.Check, error)
	Fits(ctx context.Context, job spec.Job, gpus []string) ([]planner.Fit, error)
	Recommend(ctx context.Context, asked planner.Advice, progress func(recommend.Progress)) (*recommend.Recommendation, error)
	WithEffects(ctx context.Context, job spec.Job, est *estimator.Estimate) *estimator.Estimate
	AllWrong(ctx context.Context, job spec.Job, found error) error
	Models(query string, limit int) []catalog.Model
	GPUs() []catalog.GPU
	Bench
	Accuracy(ctx context.Context, f planner.RunFilter) (planner.Accuracy, error)
	Calibrations(ctx context.Context, f planner.CalibrationFilter) (wire.Page[*planner.Calibration], error)
	Calibration(ctx context.Context, id string) (*planner.Calibration, error)
	Activate(ctx context.Context, id string) (*planner.Calibration, error)
	Retire(ctx context.Context, id string) (*planner.Calibration, error)
}

// Config is what the pages need.
type Config struct {
	Planner Planner
	Version string       // of the build, shown at the foot
	Log     *slog.Logger // nil: slog.Default

	Stopping <-chan struct{} // closed when the service is to stop: live pages end; nil: they end with their readers
}

// site answers the page requests.
type site struct {
	planner Planner
	version string
	log     *slog.Logger
	assets  assets
	form    form

	stopping <-chan struct{}
}

// New returns the handler of every page and static file. It sets its own
// security headers, refuses cross-site writes, and compresses.
func New(c Config) http.Handler {
	s := &site{planner: c.Planner, version: c.Version, log: c.Log, assets: embedded(), stopping: c.Stopping}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.form = newForm(s.planner.GPUs(), s.planner.Models("", suggestions))

	r := chi.NewRouter()
	r.Use(identify, secure, middleware.Compress(5, "text/html", "text/css", "text/javascript", "image/svg+xml"), middleware.GetHead)
	r.NotFound(s.notFound)
	r.Get("/", s.page(s.plan))
	r.Get("/plan", s.page(s.plan))
	r.Get("/plan/result", s.page(s.planResult))
	r.Get("/plan/fixes", s.page(s.planFixes))
	r.Get("/plan/fits", s.page(s.planFits))
	r.Get("/fit", s.page(s.fit))
	r.Get("/import", s.page(s.importForm))
	r.Post("/import", s.page(s.importFile))
	r.Get("/models", s.page(s.models))
	r.Post("/estimates", s.page(s.save))
	r.Get("/e/{id}", s.page(s.saved))
	r.Get("/accuracy", s.page(s.accuracy))
	r.Get("/accuracy.csv", s.page(s.accuracyCSV))
	r.Get("/calibrations", http.RedirectHandler("/accuracy", http.StatusSeeOther).ServeHTTP)
	r.Get("/benchmarks", http.RedirectHandler("/devices", http.StatusSeeOther).ServeHTTP)
	r.Get("/calibrations/{id}", s.page(s.calibration))
	r.Post("/calibrations/{id}/activate", s.page(s.setCalibration))
	r.Post("/calibrations/{id}/retire", s.page(s.setCalibration))
	r.Get("/docs/method", s.page(s.method))
	r.Get("/devices", s.page(s.devices))
	r.Get("/devices/live", s.page(s.devicesLive))
	r.Post("/benchmarks", s.page(s.startBenchmark))
	r.Get("/benchmarks/{id}", s.page(s.benchmark))
	r.Get("/benchmarks/{id}/live", s.page(s.benchmarkLive))
	r.Post("/benchmarks/{id}/cancel", s.page(s.cancelBenchmark))
	r.Post("/benchmarks/{id}/retry", s.page(s.retryBenchmark))
	r.Get("/static/{hash}/{name}", s.static)
	return http.NewCrossOriginProtection().Handler(r)
}
