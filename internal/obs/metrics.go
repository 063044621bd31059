package obs

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics is what /metrics shows, in a registry of its own.
type Metrics struct {
	registry  *prometheus.Registry
	requests  *prometheus.HistogramVec
	estimates *prometheus.CounterVec
	engine    prometheus.Histogram
	required  prometheus.Histogram
}

// NewMetrics registers memplan's metrics and the Go runtime's.
func NewMetrics(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "memplan_http_request_seconds", Help: "Time to answer a request.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"method", "route", "status"}),
		estimates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "memplan_estimates_total", Help: "Estimates the engine computed, by verdict; error where it refused the job.",
		}, []string{"verdict"}),
		engine: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "memplan_estimate_seconds", Help: "Time the engine took for one estimate.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5},
		}),
		required: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "memplan_estimate_required_bytes", Help: "Required memory of the jobs asked about.",
			Buckets: prometheus.ExponentialBuckets(1<<30, 2, 10),
		}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "memplan_build_info", Help: "Always 1; the label is the version.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(m.requests, m.estimates, m.engine, m.required, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Estimated counts one run of the engine: its verdict ("error" where it
// refused the job), how long it took, and the bytes the job requires.
func (m *Metrics) Estimated(verdict string, took time.Duration, requiredBytes int64) {
	m.estimates.WithLabelValues(verdict).Inc()
	m.engine.Observe(took.Seconds())
	if requiredBytes > 0 {
		m.required.Observe(float64(requiredBytes))
	}
}

// Handler serves the metrics in Prometheus' text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}
