package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRecord(t *testing.T) {
	server, _ := keeping(t)
	stats := filepath.Join(t.TempDir(), "stats.txt")
	require.NoError(t, os.WriteFile(stats, []byte("{'allocated_bytes.all.peak': 7000000000, 'reserved_bytes.all.peak': 7500000000}"), 0o600))
	for _, test := range []struct {
		name string
		args []string
		want []string
	}{
		{"here", nil, []string{"allocated", "6.52", "reserved", "6.98", "%"}},
		{"at a server", []string{"--server", server}, []string{"Kept as run_", "allocated", "6.52"}},
		{"as JSON", []string{"--json"}, []string{`"metric": "reserved"`, `"predicted": {`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := memplan(t, traced, append([]string{"record", "-", stats}, test.args...)...)
			require.Equal(t, 0, got.code, got.stderr)
			for _, want := range test.want {
				require.Contains(t, got.stdout, want)
			}
		})
	}
	got := memplan(t, traced, "record", "-", "nowhere.pickle")
	require.Equal(t, 2, got.code)
	require.NoError(t, os.WriteFile(stats, []byte("about 7 GB"), 0o600))
	got = memplan(t, traced, "record", "-", stats, "--server", server)
	require.Equal(t, 2, got.code)
	require.Contains(t, got.stderr, "known are")
}
