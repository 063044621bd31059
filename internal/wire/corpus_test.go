package wire

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// corpusJobs calls visit with every job of the JSONL files in folder.
func corpusJobs(t *testing.T, folder string, visit func(id string, job json.RawMessage)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	require.NoError(t, err)
	require.NotEmpty(t, files, "no JSONL files in %s", folder)
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, MaxBytes)
		for lines.Scan() {
			var row struct {
				ID  string
				Job json.RawMessage
			}
			require.NoError(t, json.Unmarshal(lines.Bytes(), &row))
			visit(row.ID, row.Job)
		}
		require.NoError(t, lines.Err())
		require.NoError(t, f.Close())
	}
}

// requireRoundTrips decodes a job and requires every notation to carry it.
func requireRoundTrips(t *testing.T, id string, data []byte) {
	t.Helper()
	job, err := DecodeJSON(data)
	require.NoError(t, err, id)
	encoded, err := Encode(job)
	require.NoError(t, err, id)
	again, err := DecodeJSON(encoded)
	require.NoError(t, err, id)
	require.Equal(t, job, again, id)
	asYAML, err := EncodeYAML(job)
	require.NoError(t, err, id)
	fromYAML, err := DecodeYAML(asYAML)
	require.NoError(t, err, "%s\n%s", id, asYAML)
	require.Equal(t, job, fromYAML, id)
}

func TestCorpus(t *testing.T) {
	folder := os.Getenv("CORPUS")
	if folder == "" {
		t.Skip("CORPUS names no folder of measured jobs; testdata has some of them")
	}
	jobs := 0
	corpusJobs(t, folder, func(id string, job json.RawMessage) {
		requireRoundTrips(t, id, job)
		jobs++
	})
	t.Logf("%d jobs", jobs)
}
