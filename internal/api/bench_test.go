package api

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/obs"
	"memplan/internal/planner"
	"memplan/internal/store"
)

// mix is 500 distinct jobs: eleven models from 0.1B to 70B, full and LoRA,
// 512 to 8192 tokens, with and without checkpointing.
func mix(t testing.TB) []string {
	t.Helper()
	text, err := os.ReadFile("testdata/mix.jsonl")
	require.NoError(t, err)
	jobs := strings.Split(strings.TrimSpace(string(text)), "\n")
	require.Len(t, jobs, 500)
	return jobs
}

// real is the service with the real engine. Cached answers are as the planner
// has it: -1 for none.
func real(t testing.TB, kept planner.Store, cached int) http.Handler {
	t.Helper()
	tables, err := catalog.Open()
	require.NoError(t, err)
	return New(Config{
		Planner: planner.New(planner.Config{Catalog: tables, Store: kept, CacheEntries: cached}),
		Log:     slog.New(slog.DiscardHandler), Metrics: obs.NewMetrics("test"),
	})
}

// keep is an SQLite store in a folder of the test.
func keep(t testing.TB) planner.Store {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "memplan.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func post(h http.Handler, path, job string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(job))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestRealJobs sends one in 25 jobs of the mix through the real engine.
func TestRealJobs(t *testing.T) {
	h, jobs := real(t, nil, -1), mix(t)
	for i := 0; i < len(jobs); i += 25 {
		job := jobs[i]
		w := post(h, prefix+"/estimates?save=false", job)
		require.Equal(t, http.StatusOK, w.Code, "%s\n%s", job, w.Body.String())
		require.NotContains(t, w.Body.String(), ":null", job)
		est := read[estimator.Estimate](t, w)
		sum := est.Breakdown[0].Bytes
		for _, s := range est.Breakdown[1:] {
			sum += s.Bytes
		}
		require.Equal(t, est.Peak.Process, sum, "the breakdown adds up: %s", job)
		require.GreaterOrEqual(t, est.Peak.Reserved, est.Peak.Allocated, job)
		require.GreaterOrEqual(t, est.Peak.Interval.High, est.Peak.Required, job)
	}
}

// TestRealJobIsKeptAsAnswered stores one and reads it back.
func TestRealJobIsKeptAsAnswered(t *testing.T) {
	h := real(t, keep(t), 0)
	made := post(h, prefix+"/estimates", mix(t)[0])
	require.Equal(t, http.StatusCreated, made.Code, made.Body.String())
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, made.Header().Get("Location"), nil))
	require.Equal(t, http.StatusOK, w.Code)
	require.JSONEq(t, made.Body.String(), w.Body.String())
}

// BenchmarkEstimates answers the mix over and over, on all processors and
// without the network: with the engine, with the store beside it, and from the
// answer cache, which is what all but the engine costs.
func BenchmarkEstimates(b *testing.B) {
	for _, bb := range []struct {
		name, path   string
		kept         bool
		cached, jobs int
	}{
		{name: "not-kept", path: prefix + "/estimates?save=false", cached: -1, jobs: 500},
		{name: "kept-in-SQLite", path: prefix + "/estimates", kept: true, cached: -1, jobs: 500},
		{name: "from-the-cache", path: prefix + "/estimates?save=false", jobs: 1},
	} {
		b.Run(bb.name, func(b *testing.B) {
			var kept planner.Store
			if bb.kept {
				kept = keep(b)
			}
			h, jobs := real(b, kept, bb.cached), mix(b)
			require.Less(b, post(h, bb.path, jobs[0]).Code, 300)
			var n atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if w := post(h, bb.path, jobs[int(n.Add(1))%bb.jobs]); w.Code >= 300 {
						b.Error(w.Code, w.Body.String())
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
