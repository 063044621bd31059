package web_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/planner"
	"memplan/web"
	"memplan/web/webtest"
)

func TestDevicesPage(t *testing.T) {
	p := open(t, &webtest.Planner{}, "GET", "/devices")
	require.Equal(t, 200, p.Code)
	for _, want := range []string{
		"NVIDIA A100-SXM4-80GB", "40.0 of 80.0 GiB used, 40.0 free", "driver 580.95", "ECC on", "busy 97 %", "not seen on this host", "4711",
		`data-live="/devices/live"`, `href="/benchmarks/` + webtest.BenchmarkID, "A process that is not seen on this host holds memory.",
	} {
		require.Contains(t, p.Body, want)
	}
	require.Len(t, p.all("form[action=/benchmarks] input[name=device][value="+webtest.CardID+"]"), 1)
	require.Contains(t, open(t, &webtest.Planner{}, "GET", "/devices?u=gb").Body, "42.9 of 85.9 GB used")
}

func TestDevicesPageWithoutADriver(t *testing.T) {
	p := open(t, &webtest.Planner{NoDriver: "No NVIDIA driver was found on this host."}, "GET", "/devices")
	require.Equal(t, 200, p.Code)
	require.Contains(t, p.Body, "No NVIDIA driver was found on this host.")
	require.Empty(t, p.all("meter"))
}

func TestBenchmarkPages(t *testing.T) {
	tests := []struct {
		name     string
		state    planner.BenchState
		method   string
		path     string
		form     url.Values
		code     int
		want     string
		location string
	}{
		{name: "start", method: "POST", path: "/benchmarks", form: url.Values{"device": {webtest.CardID}}, code: 303, location: "/benchmarks/" + webtest.BenchmarkID},
		{name: "start on no card", method: "POST", path: "/benchmarks", form: url.Values{"device": {"x"}}, code: 422},
		{name: "running", method: "GET", path: "/benchmarks/" + webtest.BenchmarkID, code: 200, want: "about 12s left"},
		{name: "running can be cancelled", method: "GET", path: "/benchmarks/" + webtest.BenchmarkID, code: 200, want: "/cancel"},
		{name: "its figures", method: "GET", path: "/benchmarks/" + webtest.BenchmarkID, code: 200, want: "0.50 GiB"},
		{name: "failed can be tried again", state: planner.Failed, method: "GET", path: "/benchmarks/" + webtest.BenchmarkID, code: 200, want: "/retry"},
		{name: "cancel", method: "POST", path: "/benchmarks/" + webtest.BenchmarkID + "/cancel", form: url.Values{}, code: 303, location: "/benchmarks/" + webtest.BenchmarkID},
		{name: "retry", method: "POST", path: "/benchmarks/" + webtest.BenchmarkID + "/retry", form: url.Values{}, code: 303, location: "/benchmarks/" + webtest.BenchmarkID},
		{name: "unknown", method: "GET", path: "/benchmarks/bm_x", code: 404, want: "no benchmark"},
		{name: "unknown, live", method: "GET", path: "/benchmarks/bm_x/live", code: 404},
		{name: "live until it has ended", state: planner.Done, method: "GET", path: "/benchmarks/" + webtest.BenchmarkID + "/live", code: 200, want: "event: end"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := web.New(web.Config{Planner: &webtest.Planner{BenchState: tt.state}})
			p := serve(t, h, tt.method, tt.path, tt.form)
			require.Equal(t, tt.code, p.Code, p.Body)
			require.Contains(t, p.Body, tt.want)
			require.Equal(t, tt.location, p.Header.Get("Location"))
		})
	}
}

func TestLiveDevicesEndWithTheService(t *testing.T) {
	stopping := make(chan struct{})
	close(stopping)
	h := web.New(web.Config{Planner: &webtest.Planner{}, Stopping: stopping})
	p := serve(t, h, http.MethodGet, "/devices/live", nil)
	require.Equal(t, "text/event-stream", p.Header.Get("Content-Type"))
	require.Equal(t, 1, strings.Count(p.Body, "\n\n"))
	for line := range strings.SplitSeq(strings.TrimSpace(p.Body), "\n") {
		require.True(t, strings.HasPrefix(line, "data: "), line)
	}
}
