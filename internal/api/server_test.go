package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/obs"
	"memplan/internal/planner"
	"memplan/internal/units"
)

var update = flag.Bool("update", false, "write the golden files anew")

// memory is a planner.Store for tests of the door.
type memory struct {
	planner.Store // the methods that are not needed here
	records       []planner.Record
	keys          map[string]planner.Record
	down          error
}

func (m *memory) SaveEstimate(_ context.Context, r planner.Record, key string) (string, error) {
	m.records = append(m.records, r)
	if key != "" {
		m.keys[key] = r
	}
	return r.ID, nil
}

func (m *memory) KeyedEstimate(_ context.Context, key, hash string) (string, error) {
	r, ok := m.keys[key]
	switch {
	case !ok:
		return "", fault.New(fault.NotFound, "new key")
	case r.JobHash != hash:
		return "", fault.New(fault.Conflict, "The key was used for another job.")
	}
	return r.ID, nil
}

func (m *memory) LoadEstimate(_ context.Context, id string) (planner.Record, error) {
	i := slices.IndexFunc(m.records, func(r planner.Record) bool { return r.ID == id })
	if i < 0 {
		return planner.Record{}, fault.New(fault.NotFound, "No estimate %s is kept here.", id)
	}
	return m.records[i], nil
}

func (m *memory) ListEstimates(_ context.Context, q planner.Query) ([]planner.Summary, error) {
	var items []planner.Summary
	for _, r := range slices.Backward(m.records) {
		if cmp.Or(q.GPU, r.GPU) == r.GPU && cmp.Or(q.Verdict, r.Verdict) == r.Verdict && hasAll(r.Labels, q.Labels) && len(items) < q.Limit {
			items = append(items, r.Summary)
		}
	}
	return items, nil
}

func (m *memory) ReadyCheck(context.Context) error { return m.down }

func hasAll(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}

// engine is an estimator that wants 10 GiB a sample. It breaks, in both ways
// there are, for jobs of these names.
func engine(job spec.Job, d spec.Device, _ spec.Coefficients) (*estimator.Estimate, error) {
	switch job.Name {
	case "broken":
		return nil, errors.New("secret: the disk is on fire")
	case "panics":
		panic("secret: a nil map")
	}
	required := units.Bytes(max(1, job.Training.MicroBatchSize)) * 10 * units.GiB
	verdict := estimator.Fits
	if required > d.Usable() {
		verdict = estimator.Exceeds
	}
	return &estimator.Estimate{
		Version: 1, Summary: "Needs " + required.String() + ".", Job: job,
		Peak:   estimator.Peak{Required: required, Interval: estimator.Interval{High: required}},
		Target: estimator.TargetAnswer{GPU: d.Key, Usable: d.Usable(), Verdict: verdict},
	}, nil
}

// door is a service under test.
type door struct {
	http.Handler
	store *memory
	log   *bytes.Buffer
}

// open returns the door of a planner with the engine above.
func open(t *testing.T, change func(*Config)) door {
	t.Helper()
	tables, err := catalog.Open()
	require.NoError(t, err)
	d := door{store: &memory{keys: map[string]planner.Record{}}, log: &bytes.Buffer{}}
	c := Config{
		Planner: planner.New(planner.Config{
			Catalog: tables, Store: d.store, Engine: engine,
			Now: func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) },
		}),
		Log: slog.New(slog.NewTextHandler(d.log, nil)), Metrics: obs.NewMetrics("test"), Version: "1.0.0",
	}
	if change != nil {
		change(&c)
	}
	d.Handler = New(c)
	return d
}

// ask sends a request; a body is JSON unless a header says otherwise.
func (d door) ask(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w
}

// read decodes an answer.
func read[T any](t *testing.T, w *httptest.ResponseRecorder) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &v), w.Body.String())
	return v
}

// job is a job of so many samples on an H100 80 GB: seven fit.
func job(micro string) string {
	return `{"model":{"id":"meta-llama/Llama-3.1-8B"},"training":{"micro_batch_size":` + micro + `,"sequence_length":2048},"target":{"gpu":"H100-SXM5-80GB"}}`
}

func (m *memory) ListCalibrations(context.Context, planner.CalibrationQuery) ([]planner.CalibrationRecord, error) {
	return nil, nil
}
