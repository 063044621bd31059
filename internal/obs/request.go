package obs

import (
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Requests returns the outermost middleware: it gives each request an id,
// logs one line when the answer has gone out, and measures it. Route names the
// pattern that served a request ("/api/v1/estimates/{id}"), so that metrics
// are not split by what users put into a path.
func Requests(log *slog.Logger, m *Metrics, route func(*http.Request) string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			begin := time.Now()
			r = withRequestID(w, r)
			rec := &recorder{ResponseWriter: w}
			defer func() {
				took := time.Since(begin)
				pattern := route(r)
				m.requests.With(prometheus.Labels{
					"method": knownMethod(r.Method), "route": pattern, "status": strconv.Itoa(rec.code()),
				}).Observe(took.Seconds())
				log.LogAttrs(r.Context(), level(rec.code()), "request",
					slog.String("id", RequestID(r.Context())),
					slog.String("method", r.Method),
					slog.String("path", r.URL.Path),
					slog.String("route", pattern),
					slog.Int("status", rec.code()),
					slog.Int64("bytes", rec.bytes),
					slog.Duration("took", took),
					slog.String("remote", r.RemoteAddr))
			}()
			next.ServeHTTP(rec, r)
		})
	}
}

// level makes a line about a server's own failure stand out.
func level(status int) slog.Level {
	if status >= 500 {
		return slog.LevelError
	}
	return slog.LevelInfo
}

// knownMethod bounds the values of the method label.
func knownMethod(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "other"
}

// recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

// WriteHeader remembers the first final status.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write counts the bytes of the body.
func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	n, err := r.ResponseWriter.Write(b)
	r.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach flushing and deadlines.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// code is the status answered; a handler that wrote nothing answered 200.
func (r *recorder) code() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}
