package obs

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNewLogger(t *testing.T) {
	tests := []struct {
		name, format, want string
		fails              bool
	}{
		{name: "json", format: "json", want: `"msg":"hello"`},
		{name: "text", format: "text", want: "msg=hello"},
		{name: "other", format: "xml", fails: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			log, err := NewLogger(&out, tt.format)
			if tt.fails {
				require.ErrorContains(t, err, "json or text")
				return
			}
			require.NoError(t, err)
			log.Info("hello")
			require.Contains(t, out.String(), tt.want)
		})
	}
}

// serve runs one request through the middleware and returns the answer and
// the lines logged.
func serve(t *testing.T, h http.HandlerFunc, r *http.Request) (*httptest.ResponseRecorder, []map[string]any) {
	t.Helper()
	var out bytes.Buffer
	log, err := NewLogger(&out, "json")
	require.NoError(t, err)
	w := httptest.NewRecorder()
	Requests(log, NewMetrics("test"), func(*http.Request) string { return "/x/{id}" })(h).ServeHTTP(w, r)
	var lines []map[string]any
	for text := range strings.Lines(out.String()) {
		var line map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &line))
		lines = append(lines, line)
	}
	return w, lines
}

func TestRequestsLogsOneLine(t *testing.T) {
	var seen string
	w, lines := serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen = RequestID(r.Context())
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write([]byte("short"))
	}, httptest.NewRequest("GET", "/x/1?secret=y", nil))

	require.Len(t, lines, 1)
	require.Equal(t, "/x/1", lines[0]["path"], "the query, which may hold a job, stays out of the log")
	require.Equal(t, "/x/{id}", lines[0]["route"])
	require.EqualValues(t, http.StatusTeapot, lines[0]["status"])
	require.EqualValues(t, 5, lines[0]["bytes"])
	require.Equal(t, seen, lines[0]["id"])
	require.Equal(t, seen, w.Header().Get(requestIDHeader))
}

func TestRequestIDKeepsAPlainOne(t *testing.T) {
	tests := []struct {
		name, given string
		kept        bool
	}{
		{name: "plain", given: "abc-123_x.y", kept: true},
		{name: "none", given: ""},
		{name: "line break", given: "a\nb"},
		{name: "too long", given: strings.Repeat("a", 65)},
		{name: "markup", given: "<b>"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set(requestIDHeader, tt.given)
			w, _ := serve(t, func(http.ResponseWriter, *http.Request) {}, r)
			got := w.Header().Get(requestIDHeader)
			require.NotEmpty(t, got)
			require.Equal(t, tt.kept, got == tt.given)
		})
	}
}

func TestMetrics(t *testing.T) {
	m := NewMetrics("1.2.3")
	m.Estimated("fits", 3*time.Millisecond, 20<<30)
	m.Estimated("error", time.Millisecond, 0)
	log, err := NewLogger(&bytes.Buffer{}, "text")
	require.NoError(t, err)
	h := Requests(log, m, func(*http.Request) string { return "/metrics" })(m.Handler())
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("BREW", "/metrics", nil))

	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`memplan_build_info{version="1.2.3"} 1`,
		`memplan_estimates_total{verdict="fits"} 1`,
		`memplan_estimates_total{verdict="error"} 1`,
		`memplan_estimate_seconds_count 2`,
		`memplan_estimate_required_bytes_count 1`,
		`memplan_http_request_seconds_count{method="other",route="/metrics",status="200"} 1`,
		`go_goroutines`,
	} {
		require.Contains(t, w.Body.String(), want)
	}
}
