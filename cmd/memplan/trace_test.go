package main

import (
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/api"
	"memplan/internal/catalog"
	"memplan/internal/obs"
	"memplan/internal/planner"
	"memplan/internal/store"
)

// traced is a job that the real engine traces quickly.
const traced = "{model: {id: Qwen/Qwen2.5-0.5B}, training: {precision: bf16, micro_batch_size: 1, sequence_length: 128, optimizer: {name: adamw, implementation: foreach}}, target: {gpu: A10G}}"

// keeping is a service on a free port that keeps estimates.
func keeping(t *testing.T) (string, *store.Store) {
	t.Helper()
	tables, err := catalog.Open()
	require.NoError(t, err)
	kept, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "memplan.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, kept.Close()) })
	srv := httptest.NewServer(api.New(api.Config{
		Planner: planner.New(planner.Config{Catalog: tables, Store: kept, Engine: engine}),
		Log:     slog.New(slog.DiscardHandler), Metrics: obs.NewMetrics("test"),
	}))
	t.Cleanup(srv.Close)
	return srv.URL, kept
}

func TestTrace(t *testing.T) {
	server, kept := keeping(t)
	for _, test := range []struct{ name, format, begins string }{
		{"events", "events", `{"version":1,`},
		{"memory snapshot", "memory_viz", "\x80\x04}("},
		{"Chrome trace", "chrome", `{"displayTimeUnit"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			piped := memplan(t, traced, "trace", "-", "--format", test.format)
			require.Equal(t, 0, piped.code, piped.stderr)
			require.Equal(t, test.begins, piped.stdout[:len(test.begins)])

			path := filepath.Join(t.TempDir(), "trace")
			filed := memplan(t, traced, "trace", "-", "--format", test.format, "-o", path)
			require.Equal(t, 0, filed.code, filed.stderr)
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, piped.stdout, string(text))

			remote := memplan(t, traced, "trace", "-", "--format", test.format, "--server", server)
			require.Equal(t, 0, remote.code, remote.stderr)
			require.Equal(t, piped.stdout, remote.stdout, "the server's trace is the one made here")
		})
	}
	page, err := kept.ListEstimates(t.Context(), planner.Query{Filter: planner.Filter{Limit: 10}})
	require.NoError(t, err)
	require.Len(t, page, 1, "one job is kept once, however often it is traced")
}

func TestTraceFails(t *testing.T) {
	keeps, _ := keeping(t)
	older := filepath.Join(t.TempDir(), "trace")
	require.NoError(t, os.WriteFile(older, []byte("older"), 0o600))
	const unknown = "{model: {id: nobody/nothing}}"
	for _, test := range []struct {
		name, stdin string
		args        []string
		want        int
	}{
		{name: "unknown model", stdin: unknown, args: []string{"-o", older}, want: exitInvalid},
		{name: "unknown model, of a server", stdin: unknown, args: []string{"-o", older, "--server", keeps}, want: exitInvalid},
		{name: "unknown format", stdin: traced, args: []string{"--format", "svg"}, want: exitInvalid},
		{name: "no such folder", stdin: traced, args: []string{"-o", filepath.Join(older, "x")}, want: exitInvalid},
		{name: "nobody listens", stdin: traced, args: []string{"--server", "127.0.0.1:1"}, want: exitUnreachable},
		{name: "a server that keeps nothing", stdin: traced, args: []string{"--server", serve(t)}, want: exitUnreachable},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := memplan(t, test.stdin, append([]string{"trace", "-"}, test.args...)...)
			require.Equal(t, test.want, got.code, got.stderr)
			require.NotEmpty(t, got.stderr)
		})
	}
	text, err := os.ReadFile(older)
	require.NoError(t, err)
	require.Equal(t, "older", string(text), "a job that is refused leaves an older file as it was")
}
