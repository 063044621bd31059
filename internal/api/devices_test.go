package api

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/units"
)

const cardID = "GPU-11111111-0000-0000-0000-000000000000"

// cards is a host with these cards, or without a driver.
type cards []planner.Device

func (c cards) List(context.Context) ([]planner.Device, error) {
	if c == nil {
		return nil, fault.New(fault.Unavailable, "No NVIDIA driver was found.")
	}
	return c, nil
}

// unheard is a queue whose work nobody takes.
type unheard struct{ woken []string }

func (q *unheard) Enqueue(_ context.Context, device, benchmark string, _ int) error {
	q.woken = append(q.woken, device+" "+benchmark)
	return nil
}

// bench is a door with cards, a real store and a queue that nobody hears.
func bench(t *testing.T, attached cards) (door, *unheard, planner.Store) {
	t.Helper()
	tables, err := catalog.Open()
	require.NoError(t, err)
	q, kept := &unheard{}, keep(t)
	stopping := make(chan struct{})
	close(stopping) // a stream ends after its first event
	return open(t, func(c *Config) {
		c.Stopping = stopping
		c.Planner = planner.New(planner.Config{
			Catalog: tables, Store: kept, Engine: engine, Devices: attached, Queue: q,
			Probes: []planner.Probe{{Name: "driver", Seconds: time.Second}, {Name: "rates", Seconds: 2 * time.Second}},
		})
	}), q, kept
}

func oneCard() cards {
	used := 30 * units.GiB
	return cards{{
		ID: cardID, Name: "NVIDIA A100-SXM4-80GB", Host: "node1", Memory: planner.DeviceMemory{Total: 80 * units.GiB, Used: 40 * units.GiB, Free: 40 * units.GiB},
		Processes: []planner.Process{{PID: 7, Used: &used}},
	}}
}

func TestDevices(t *testing.T) {
	d, _, kept := bench(t, oneCard())
	require.NoError(t, kept.SaveDevices(t.Context(), []planner.Device{
		{ID: "GPU-elsewhere", Host: "node2", Worker: "node2/1", SeenAt: time.Now()},
		{ID: "GPU-long-gone", Host: "node3", SeenAt: time.Now().Add(-48 * time.Hour)},
	}))
	list := read[planner.DeviceList](t, d.ask("GET", "/api/v1/devices", ""))
	require.Len(t, list.Items, 2)
	require.Equal(t, "A100-SXM4-80GB", list.Items[0].GPU, "the catalogue's key")
	require.Equal(t, "dead_process", list.Items[0].Advice[0].Code)
	require.Equal(t, "unaccounted_memory", list.Items[0].Advice[1].Code)
	require.Equal(t, 10*units.GiB, list.Items[0].Advice[1].Bytes)
	require.Equal(t, "node2/1", list.Items[1].Worker)

	w := d.ask("GET", "/api/v1/devices/events", "")
	require.Equal(t, "text/event-stream", w.Header().Get("Content-Type"))
	text, ok := strings.CutPrefix(strings.TrimSpace(w.Body.String()), "data: ")
	require.True(t, ok)
	var event planner.DeviceList
	require.NoError(t, json.Unmarshal([]byte(text), &event))
	require.Len(t, event.Items, 2)
}

func TestDevicesWithoutADriver(t *testing.T) {
	d, _, _ := bench(t, nil)
	w := d.ask("GET", "/api/v1/devices", "")
	require.Equal(t, 200, w.Code)
	require.JSONEq(t, `{"items":[],"next_cursor":"","driver_note":"No NVIDIA driver was found."}`, w.Body.String())
}

func TestBenchmarks(t *testing.T) {
	d, q, _ := bench(t, oneCard())
	body := `{"device":"` + cardID + `","probes":["rates"],"max_seconds":60,"force":true}`
	w := d.ask("POST", "/api/v1/benchmarks", body, "Idempotency-Key", "k")
	require.Equal(t, 202, w.Code, w.Body.String())
	b := read[planner.Benchmark](t, w)
	require.Equal(t, "/api/v1/benchmarks/"+b.ID, w.Header().Get("Location"))
	require.Equal(t, planner.Queued, b.State)
	require.Equal(t, planner.BenchProgress{Total: 1, SecondsLeft: 2}, b.Progress)
	require.Equal(t, []string{cardID + " " + b.ID}, q.woken)

	again := read[planner.Benchmark](t, d.ask("POST", "/api/v1/benchmarks", body, "Idempotency-Key", "k"))
	require.Equal(t, b.ID, again.ID)
	require.Len(t, q.woken, 1)
	require.Equal(t, 409, d.ask("POST", "/api/v1/benchmarks", `{"device":"`+cardID+`"}`, "Idempotency-Key", "k").Code)

	all := read[struct{ Items []planner.Benchmark }](t, d.ask("GET", "/api/v1/benchmarks", ""))
	require.Len(t, all.Items, 1)
	require.Equal(t, 409, d.ask("POST", "/api/v1/benchmarks/"+b.ID+"/retry", "").Code)
	require.Equal(t, planner.Cancelled, read[planner.Benchmark](t, d.ask("DELETE", "/api/v1/benchmarks/"+b.ID, "")).State)
	require.Contains(t, d.ask("GET", "/api/v1/benchmarks/"+b.ID+"/events", "").Body.String(), `"state":"cancelled"`)
	require.Equal(t, planner.Queued, read[planner.Benchmark](t, d.ask("POST", "/api/v1/benchmarks/"+b.ID+"/retry", "")).State)
	require.Len(t, q.woken, 2)
}

func TestBenchmarkRefusals(t *testing.T) {
	tests := []struct {
		name, body string
		attached   cards
		code       int
		fields     []string
	}{
		{name: "everything wrong", attached: oneCard(), body: `{"device":"GPU-x","probes":["rates","speed"],"max_seconds":-1,"colour":1}`, code: 422, fields: []string{"colour"}},
		{name: "values", attached: oneCard(), body: `{"device":"GPU-x","probes":["rates","speed"],"max_seconds":-1}`, code: 422, fields: []string{"device", "max_seconds", "probes.1"}},
		{name: "types", attached: oneCard(), body: `{"device":1,"probes":"all","max_seconds":"1","force":0}`, code: 422, fields: []string{"device", "max_seconds", "force", "probes"}},
		{name: "no object", attached: oneCard(), body: `[]`, code: 422},
		{name: "no card", body: `{"device":"GPU-x","probes":"default"}`, code: 422, fields: []string{"device"}},
		{name: "an AMD card", attached: cards{{ID: "AMD-1", Unsupported: "probes run on NVIDIA cards"}}, body: `{"device":"AMD-1"}`, code: 422, fields: []string{"device"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, q, _ := bench(t, tt.attached)
			w := d.ask("POST", "/api/v1/benchmarks", tt.body)
			require.Equal(t, tt.code, w.Code, w.Body.String())
			var paths []string
			for _, f := range read[Problem](t, w).Errors {
				paths = append(paths, f.Path)
			}
			require.Equal(t, tt.fields, paths)
			require.Empty(t, q.woken)
		})
	}
	d, _, _ := bench(t, oneCard())
	for _, path := range []string{"/api/v1/benchmarks/bm_x", "/api/v1/benchmarks/bm_aaaaaaaaaaaaaaaa", "/api/v1/benchmarks/bm_aaaaaaaaaaaaaaaa/events"} {
		require.Equal(t, 404, d.ask("GET", path, "").Code)
	}
}
