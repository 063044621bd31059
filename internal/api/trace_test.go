package api

import (
	"compress/gzip"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
)

// traceable is a job the engine knows, kept.
func traceable(t *testing.T, d door) string {
	t.Helper()
	w := d.ask("POST", "/api/v1/estimates", `{"model":{"id":"Qwen/Qwen2.5-0.5B"},"training":{"precision":"bf16","micro_batch_size":1,"sequence_length":128,"optimizer":{"name":"adamw","implementation":"foreach"}},"target":{"gpu":"A10G"}}`)
	require.Equal(t, http.StatusCreated, w.Code, w.Body.String())
	return w.Header().Get("Location")
}

func TestTrace(t *testing.T) {
	d := open(t, nil)
	kept := traceable(t, d)
	id := kept[strings.LastIndexByte(kept, '/')+1:]
	for _, test := range []struct {
		name, query, accept string
		kind, file, begins  string
	}{
		{name: "events unless asked otherwise", kind: "application/json", file: ".trace.json", begins: `{"version":1,"engine":{"version":"` + estimator.Version},
		{name: "events for browsers", accept: "text/html,application/xhtml+xml,*/*;q=0.8", kind: "application/json", file: ".trace.json", begins: "{"},
		{name: "memory_viz", query: "?format=memory_viz", kind: "application/x-python-pickle", file: ".snapshot.pickle", begins: "\x80\x04}("},
		{name: "memory_viz by Accept", accept: "application/json;q=0.5, application/x-python-pickle", kind: "application/x-python-pickle", file: ".snapshot.pickle", begins: "\x80\x04"},
		{name: "chrome", query: "?format=chrome", kind: "application/vnd.chrome.trace+json", file: ".chrome.json", begins: `{"displayTimeUnit"`},
		{name: "the query rules over Accept", query: "?format=events", accept: "application/x-python-pickle", kind: "application/json", file: ".trace.json", begins: "{"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := d.ask("GET", kept+"/trace"+test.query, "", "Accept", test.accept)
			require.Equal(t, http.StatusOK, w.Code, w.Body.String())
			require.Equal(t, test.kind, w.Header().Get("Content-Type"))
			require.Equal(t, `attachment; filename="`+id+test.file+`"`, w.Header().Get("Content-Disposition"))
			require.Contains(t, w.Header().Values("Vary"), "Accept")
			require.True(t, strings.HasPrefix(w.Body.String(), test.begins), "%.80q", w.Body.String())
			if strings.HasSuffix(test.kind, "json") {
				require.True(t, json.Valid(w.Body.Bytes()))
			}
		})
	}
}

func TestTraceIsPacked(t *testing.T) {
	d := open(t, nil)
	kept := traceable(t, d)
	plain := d.ask("GET", kept+"/trace?format=memory_viz", "").Body.Len()
	w := d.ask("GET", kept+"/trace?format=memory_viz", "", "Accept-Encoding", "gzip")
	require.Equal(t, "gzip", w.Header().Get("Content-Encoding"))
	require.Less(t, w.Body.Len(), plain/4)
	r, err := gzip.NewReader(w.Body)
	require.NoError(t, err)
	start := make([]byte, 2)
	_, err = r.Read(start)
	require.NoError(t, err)
	require.Equal(t, "\x80\x04", string(start))
}

func TestTraceFails(t *testing.T) {
	d := open(t, nil)
	kept := traceable(t, d)
	// The engine of these tests answers this job, and the one that traces cannot.
	unknown := d.ask("POST", "/api/v1/estimates", `{"model":{"config":{"model_type":"unheard-of"}},"target":{"gpu":"A10G"}}`).Header().Get("Location")
	require.NotEmpty(t, unknown)
	for _, test := range []struct {
		name, path string
		status     int
		location   string
	}{
		{name: "nothing kept", path: "/api/v1/estimates/est_aaaaaaaaaaaaaaaa/trace", status: http.StatusNotFound},
		{name: "no id", path: "/api/v1/estimates/1/trace", status: http.StatusNotFound},
		{name: "unknown format", path: kept + "/trace?format=svg", status: http.StatusUnprocessableEntity, location: "query.format"},
		{name: "a job the engine refuses now", path: unknown + "/trace", status: http.StatusUnprocessableEntity, location: "body.model.config.model_type"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := d.ask("GET", test.path, "")
			require.Equal(t, test.status, w.Code, w.Body.String())
			require.Equal(t, problemType, w.Header().Get("Content-Type"))
			p := read[Problem](t, w)
			if test.location != "" {
				require.Equal(t, test.location, p.Errors[0].Location)
			}
		})
	}
}
