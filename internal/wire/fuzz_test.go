package wire

import (
	"bytes"
	"net/url"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// seed adds the bad jobs, and the jobs that people ran in some notation.
func seed(f *testing.F, write func(spec.Job) ([]byte, error)) {
	for _, b := range badJobs {
		f.Add([]byte(b.job))
	}
	rows, err := os.ReadFile("testdata/jobs.jsonl")
	require.NoError(f, err)
	for line := range bytes.Lines(rows) {
		run, err := DecodeRow(line)
		require.NoError(f, err)
		data, err := write(run.Job)
		require.NoError(f, err)
		f.Add(data)
	}
}

// requireSound: whatever the text, the decoder gives a job that every notation
// carries, or says what is wrong with the input.
func requireSound(t *testing.T, job spec.Job, err error) {
	if err == nil {
		requireRoundTrips(t, job)
		Warnings(job)
		return
	}
	require.Contains(t, []fault.Kind{fault.Invalid, fault.TooLarge}, fault.KindOf(err), err)
	require.NotEmpty(t, err.Error())
}

func FuzzDecodeJSON(f *testing.F) {
	seed(f, Encode)
	f.Fuzz(func(t *testing.T, data []byte) {
		job, err := DecodeJSON(data)
		requireSound(t, job, err)
	})
}

func FuzzDecodeYAML(f *testing.F) {
	seed(f, EncodeYAML)
	f.Fuzz(func(t *testing.T, data []byte) {
		job, err := DecodeYAML(data)
		requireSound(t, job, err)
	})
}

func FuzzDecodeValues(f *testing.F) {
	seed(f, func(job spec.Job) ([]byte, error) {
		query, err := EncodeQuery(job)
		return []byte(query), err
	})
	f.Fuzz(func(t *testing.T, data []byte) {
		values, err := url.ParseQuery(string(data))
		if err != nil {
			t.Skip("not a query")
		}
		job, err := DecodeValues(values)
		requireSound(t, job, err)
	})
}

func FuzzDecodeRuns(f *testing.F) {
	rows, err := os.ReadFile("testdata/jobs.jsonl")
	require.NoError(f, err)
	for line := range bytes.Lines(rows) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		runs, err := DecodeRuns(data)
		if err != nil {
			require.Contains(t, []fault.Kind{fault.Invalid, fault.TooLarge}, fault.KindOf(err), err)
			return
		}
		for _, run := range runs {
			require.NotEmpty(t, run.Measured)
		}
	})
}
