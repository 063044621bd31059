package wire

import (
	"bufio"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/spec"
)

// eachRow calls visit with every line of the JSONL files in folder.
func eachRow(t *testing.T, folder string, visit func(id string, job json.RawMessage, row []byte)) {
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
			visit(row.ID, row.Job, lines.Bytes())
		}
		require.NoError(t, lines.Err())
		require.NoError(t, f.Close())
	}
}

// requireSame fails with the difference between two jobs.
func requireSame(t require.TestingT, want, got spec.Job, about string, args ...any) {
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable()); diff != "" {
		require.Failf(t, "jobs differ", about+"\n%s", append(args, diff)...)
	}
}

// requireRoundTrips writes a job in every notation and reads it back.
func requireRoundTrips(t require.TestingT, job spec.Job) {
	asJSON, err := Encode(job)
	require.NoError(t, err)
	fromJSON, err := DecodeJSON(asJSON)
	require.NoError(t, err, "%s", asJSON)
	requireSame(t, job, fromJSON, "JSON %s", asJSON)

	asYAML, err := EncodeYAML(job)
	require.NoError(t, err)
	fromYAML, err := DecodeYAML(asYAML)
	require.NoError(t, err, "%s", asYAML)
	requireSame(t, job, fromYAML, "YAML %s", asYAML)

	values, err := EncodeValues(job)
	require.NoError(t, err)
	fromValues, err := DecodeValues(values)
	require.NoError(t, err, "%v", values)
	requireSame(t, job, fromValues, "form %v", values)

	query, err := EncodeQuery(job)
	require.NoError(t, err)
	parsed, err := url.ParseQuery(query)
	require.NoError(t, err, query)
	require.Equal(t, values, parsed)
}

// TestMeasuredJobs reads jobs as people ran them, in every notation.
func TestMeasuredJobs(t *testing.T) {
	eachRow(t, "testdata", func(id string, job json.RawMessage, row []byte) {
		t.Run(id, func(t *testing.T) {
			decoded, err := DecodeJSON(job)
			require.NoError(t, err)
			requireRoundTrips(t, decoded)
			run, err := DecodeRow(row)
			require.NoError(t, err)
			requireSame(t, decoded, run.Job, "run")
			require.NotEmpty(t, run.Measured)
		})
	})
}

// TestCorpus does the same with a folder of measured jobs that is not part of
// this repository.
func TestCorpus(t *testing.T) {
	folder := os.Getenv("CORPUS")
	if folder == "" {
		t.Skip("CORPUS names no folder of measured jobs; TestMeasuredJobs reads those in testdata")
	}
	jobs := 0
	eachRow(t, folder, func(id string, job json.RawMessage, _ []byte) {
		decoded, err := DecodeJSON(job)
		require.NoError(t, err, id)
		requireRoundTrips(t, decoded)
		jobs++
	})
	t.Logf("%d jobs", jobs)
}
