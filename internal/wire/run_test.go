package wire

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

func TestDecodeRun(t *testing.T) {
	gpt2 := spec.Job{Version: 1, Model: spec.Model{ID: "gpt2"}}
	tests := []struct {
		name, data string
		want       Run
	}{
		{
			"as reported", `{"source": "callback", "job": {"model": {"id": "gpt2"}}, "environment": {"gpu": "A100", "driver": "550.1", "cuda": null},
			"measured": [{"metric": "allocated", "phase": "first_step", "rank": 0, "bytes": 10, "rounding_bytes": 2}, {"metric": "process", "bytes": 20, "relation": "at_most", "method": "nvml"}], "tags": ["lab"]}`,
			Run{Source: "callback", Job: gpt2, Environment: Environment{GPU: "A100", Driver: "550.1"}, Tags: []string{"lab"}, Measured: []Measurement{
				{Metric: "allocated", Phase: "first_step", Rank: "0", Bytes: 10, Rounding: 2, Relation: "equals"},
				{Metric: "process", Bytes: 20, Relation: "at_most", Method: "nvml"},
			}},
		},
		{
			"as a row", `{"id": "r1", "source": "a paper", "gpu": "A100 80GB", "job": {"model": {"id": "gpt2"}}, "measured": {"metric": "reserved", "bytes": 7, "relation": "equals", "rounding_bytes": 0, "phase": null},
			"also_measured": [{"metric": "allocated", "bytes": 5, "relation": "equals", "rounding_bytes": 0}], "trust": "A", "tolerance": 0.05, "notes": ""}`,
			Run{ID: "r1", Source: "a paper", Job: gpt2, Environment: Environment{GPU: "A100 80GB"}, Tags: []string{}, Trust: "A", Tolerance: 0.05, Measured: []Measurement{
				{Metric: "reserved", Bytes: 7, Relation: "equals"}, {Metric: "allocated", Bytes: 5, Relation: "equals"},
			}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := DecodeRun([]byte(tt.data))
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(tt.want, got))
			data, err := json.Marshal(got)
			require.NoError(t, err)
			again, err := DecodeRun(data)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(got, again))
		})
	}
}

// TestMetricsOfFilesOnly: figures that only inform are left out of a row, and
// refused in a report.
func TestMetricsOfFilesOnly(t *testing.T) {
	data := []byte(`{"job": {"model": {"id": "gpt2"}}, "measured": {"metric": "allocated", "bytes": 1}, "also_measured": [{"metric": "context", "bytes": 2}]}`)
	run, err := DecodeRow(data)
	require.NoError(t, err)
	require.Len(t, run.Measured, 1)
	_, err = DecodeRun(data)
	require.ErrorContains(t, err, `also_measured[0].metric: got "context"`)
}

func TestBadRuns(t *testing.T) {
	_, err := DecodeRuns([]byte(`[
		{"job": {"model": {"id": "gpt2"}}, "measured": [{"metric": "allocated", "bytes": 1}]},
		{"job": {"model": {}, "training": {"precison": "fp32"}}, "measured": [{"metric": "alocated", "bytes": -1}], "soruce": "x"},
		{"job": 3, "measured": []},
		{"measured": [{"metric": "process"}]}
	]`))
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	var got []string
	for _, f := range fault.FieldsOf(err) {
		got = append(got, f.Path)
	}
	require.Equal(t, []string{
		"[1].measured[0].metric", "[1].measured[0].bytes", "[1].soruce", "[1].job.model", "[1].job.training.precison",
		"[2].measured", "[2].job",
		"[3].measured[0].bytes", "[3].job",
	}, got)
}

func TestAnswersHaveNoNullLists(t *testing.T) {
	data, err := EncodeEstimate(&estimator.Estimate{Phases: []estimator.Phase{{}}, Tensors: []estimator.Tensor{{}}, Timeline: []estimator.Moment{{}}})
	require.NoError(t, err)
	require.False(t, strings.Contains(string(data), "null"), "%s", data)
	page, err := json.Marshal(NewPage[estimator.Warning](nil, ""))
	require.NoError(t, err)
	require.JSONEq(t, `{"items": [], "next_cursor": ""}`, string(page))
}
