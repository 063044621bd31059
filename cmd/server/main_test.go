package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"memplan/internal/store/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// env is an environment of these variables only.
func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i+1 < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// start runs the service until the test ends and returns its address.
func start(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, args, env(), w, io.Discard)
		_ = w.Close()
	}()
	t.Cleanup(func() {
		cancel()
		http.DefaultClient.CloseIdleConnections()
		require.NoError(t, <-ended)
	})
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	at, ok := strings.CutPrefix(strings.TrimSpace(line), "memplan is at ")
	require.True(t, ok, line)
	return at
}

// get returns the status and the body of an answer.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	res, err := http.Get(url)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(body)
}

func TestServes(t *testing.T) {
	data := filepath.Join(t.TempDir(), "made", "on", "demand")
	at := start(t, "--addr", "127.0.0.1:0", "--data", data)
	tests := []struct {
		name, path, want string
	}{
		{name: "health", path: "healthz", want: "ok"},
		{name: "readiness", path: "readyz", want: "ready"},
		{name: "catalogue", path: "api/v1/gpus", want: "H100-SXM5-80GB"},
		{name: "document", path: "openapi.json", want: `"openapi": "3.1.0"`},
		{name: "devices", path: "api/v1/devices", want: `"items":`},
		{name: "page of devices", path: "devices", want: "Devices"},
		{name: "kept estimates", path: "api/v1/estimates", want: `{"items":[],`},
		{name: "page", path: "docs/method", want: "<!doctype html>"},
		{name: "metrics", path: "metrics", want: "memplan_build_info"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, body := get(t, at+tt.path)
			require.Equal(t, 200, status, body)
			require.Contains(t, body, tt.want)
		})
	}
	_, err := os.Stat(filepath.Join(data, "memplan.db"))
	require.NoError(t, err)
}

func TestServesFromPostgres(t *testing.T) {
	at := start(t, "--addr", "127.0.0.1:0", "--database-url", pgtest.Start(t).Database(t))
	status, body := get(t, at+"readyz")
	require.Equal(t, 200, status, body)
	status, body = get(t, at+"api/v1/estimates")
	require.Equal(t, 200, status, body)
}

func TestCheck(t *testing.T) {
	at := start(t, "--addr", "127.0.0.1:0", "--data", t.TempDir())
	u, err := url.Parse(at)
	require.NoError(t, err)
	tests := []struct {
		name, addr, want string
	}{
		{name: "ready", addr: u.Host},
		{name: "ready, told by the address it listens on", addr: ":" + u.Port()},
		{name: "nobody listens", addr: "127.0.0.1:1", want: "refused"},
		{name: "no address", addr: "x", want: "missing port"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := run(t.Context(), []string{"--check", "--addr", tt.addr}, env(), io.Discard, io.Discard)
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestFailsToStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	tests := []struct {
		name string
		args []string
		want string
	}{
		{name: "unknown flag", args: []string{"--colour"}, want: "unknown flag"},
		{name: "address taken", args: []string{"--addr", taken.Addr().String(), "--data", t.TempDir()}, want: "listen"},
		{name: "data is a file", args: []string{"--data", file}, want: "open the store"},
		{name: "log format", args: []string{"--log-format", "xml"}, want: "must be one of"},
		{name: "no home", want: "--data"},
		{name: "hub is no URL", args: []string{"--hf-endpoint", "hub", "--data", t.TempDir()}, want: "hub"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := run(t.Context(), tt.args, env(), io.Discard, io.Discard)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestPrintsAndStops(t *testing.T) {
	tests := []struct {
		name, arg, want string
	}{
		{name: "version", arg: "--version", want: "memplan dev"},
		{name: "help", arg: "--help", want: "MEMPLAN_ADDR"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), []string{tt.arg}, env(), &out, io.Discard))
			require.Contains(t, out.String(), tt.want)
		})
	}
}

func TestConfigure(t *testing.T) {
	tests := []struct {
		name     string
		args     []string
		getenv   func(string) string
		addr     string
		database string
		limit    int
	}{
		{name: "defaults", getenv: env("HOME", "/home/u"), addr: "127.0.0.1:8080", database: "/home/u/.local/share/memplan/memplan.db"},
		{name: "data home", getenv: env("HOME", "/home/u", "XDG_DATA_HOME", "/d"), addr: "127.0.0.1:8080", database: "/d/memplan/memplan.db"},
		{name: "environment", getenv: env("MEMPLAN_ADDR", ":80", "MEMPLAN_DATA", "/m"), addr: ":80", database: "/m/memplan.db", limit: 1200},
		{name: "flags win", args: []string{"--addr=localhost:9", "--data=/f"}, getenv: env("MEMPLAN_ADDR", ":80", "MEMPLAN_DATA", "/m"), addr: "localhost:9", database: "/f/memplan.db"},
		{name: "postgres", getenv: env("DATABASE_URL", "postgres://db/x"), addr: "127.0.0.1:8080", database: "postgres://db/x"},
		{name: "limit given", args: []string{"--requests-per-minute=5"}, getenv: env("HOME", "/h"), addr: "127.0.0.1:8080", database: "/h/.local/share/memplan/memplan.db", limit: 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := configure(tt.args, tt.getenv, "1", io.Discard, io.Discard)
			require.NoError(t, err)
			require.Equal(t, tt.addr, c.Addr)
			require.Equal(t, tt.database, filepath.ToSlash(c.database()))
			require.Equal(t, tt.limit, c.PerMinute)
		})
	}
}

func TestAddress(t *testing.T) {
	tests := []struct{ name, listens, want string }{
		{name: "all", listens: "0.0.0.0:8080", want: "http://localhost:8080/"},
		{name: "all, version 6", listens: "[::]:8080", want: "http://localhost:8080/"},
		{name: "one", listens: "10.1.2.3:80", want: "http://10.1.2.3:80/"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, err := net.ResolveTCPAddr("tcp", tt.listens)
			require.NoError(t, err)
			require.Equal(t, tt.want, address(a))
		})
	}
}
