package api

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/wire"
)

func TestCreateEstimate(t *testing.T) {
	yaml := "model: {id: meta-llama/Llama-3.1-8B}\ntraining: {micro_batch_size: 2, sequence_length: 2048}\ntarget: {gpu: H100-SXM5-80GB}\n"
	tests := []struct {
		name, path, body string
		headers          []string
		status           int
		kept             bool
	}{
		{name: "kept", path: "/api/v1/estimates", body: job("2"), status: 201, kept: true},
		{name: "not kept", path: "/api/v1/estimates?save=false", body: job("2"), status: 200},
		{name: "yaml", path: "/api/v1/estimates", body: yaml, headers: []string{"Content-Type", "application/yaml; charset=utf-8"}, status: 201, kept: true},
		{name: "no content type", path: "/api/v1/estimates", body: job("2"), headers: []string{"Content-Type", ""}, status: 201, kept: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := open(t, nil)
			w := d.ask("POST", tt.path, tt.body, tt.headers...)
			require.Equal(t, tt.status, w.Code, w.Body.String())
			est := read[estimator.Estimate](t, w)
			require.Equal(t, "Needs 20.0 GiB.", est.Summary)
			require.Equal(t, estimator.Fits, est.Target.Verdict)
			require.NotContains(t, w.Body.String(), ":null", "lists are never null")
			if !tt.kept {
				require.Empty(t, w.Header().Get("Location"))
				require.Empty(t, d.store.records)
				return
			}
			again := d.ask("GET", w.Header().Get("Location"), "")
			require.Equal(t, 200, again.Code)
			require.Equal(t, est.ID, read[estimator.Estimate](t, again).ID)
			require.JSONEq(t, w.Body.String(), again.Body.String())
		})
	}
}

func TestIdempotencyKey(t *testing.T) {
	d := open(t, nil)
	first := d.ask("POST", "/api/v1/estimates", job("2"), "Idempotency-Key", "k1")
	again := d.ask("POST", "/api/v1/estimates", job("2"), "Idempotency-Key", "k1")
	require.Equal(t, first.Header().Get("Location"), again.Header().Get("Location"))
	require.Len(t, d.store.records, 1)

	other := d.ask("POST", "/api/v1/estimates", job("3"), "Idempotency-Key", "k1")
	require.Equal(t, 409, other.Code)
	require.Equal(t, "urn:memplan:problem:conflict", read[Problem](t, other).Type)
}

func TestBatchKeepsOrder(t *testing.T) {
	d := open(t, nil)
	body := "[" + job("2") + "," + job(`"many"`) + "," + job("9") + "]"
	w := d.ask("POST", "/api/v1/estimates:batch", body)
	require.Equal(t, 200, w.Code, w.Body.String())
	items := read[[]struct {
		ID, Summary string
		Status      int
		Errors      []FieldProblem
	}](t, w)
	require.Len(t, items, 3)
	require.Equal(t, "Needs 20.0 GiB.", items[0].Summary)
	require.Equal(t, 422, items[1].Status)
	require.Equal(t, "training.micro_batch_size", items[1].Errors[0].Path)
	require.Equal(t, "Needs 90.0 GiB.", items[2].Summary)
	require.Len(t, d.store.records, 2)

	w = d.ask("POST", "/api/v1/estimates:batch?save=false", body)
	require.Equal(t, 200, w.Code)
	require.Len(t, d.store.records, 2, "save=false keeps nothing")
}

func TestBatchUnderAnIdempotencyKey(t *testing.T) {
	d := open(t, nil)
	type item struct {
		ID     string `json:"id"`
		Status int    `json:"status"`
	}
	ask := func(list string) []item {
		w := d.ask("POST", "/api/v1/estimates:batch", list, "Idempotency-Key", "nightly")
		require.Equal(t, 200, w.Code, w.Body.String())
		return read[[]item](t, w)
	}
	first := ask("[" + job("2") + `,{"model":{}},` + job("2") + "]")
	require.NotEqual(t, first[0].ID, first[2].ID, "two places of one list are two estimates")
	require.Equal(t, first, ask("["+job("2")+`,{"model":{}},`+job("2")+"]"), "kept once")
	changed := ask("[" + job("3") + `,{"model":{}},` + job("2") + "]")
	require.Equal(t, 409, changed[0].Status, "another job at the first place")
	require.Equal(t, first[2], changed[2])
}

func TestBatchLimits(t *testing.T) {
	tests := []struct {
		name, body, kind string
		status           int
	}{
		{name: "none", body: "[]", status: 200},
		{name: "too many", body: "[" + strings.Repeat("{},", 1000) + "{}]", status: 413},
		{name: "no list", body: "{}", status: 422},
		{name: "yaml", body: "- {}", kind: "application/yaml", status: 415},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := open(t, nil)
			w := d.ask("POST", "/api/v1/estimates:batch", tt.body, "Content-Type", tt.kind)
			require.Equal(t, tt.status, w.Code, w.Body.String())
		})
	}
}

func TestListEstimates(t *testing.T) {
	d := open(t, nil)
	for _, micro := range []string{"1", "2", "9"} {
		labelled := strings.Replace(job(micro), "{", `{"labels":{"team":"t`+micro+`"},`, 1)
		require.Equal(t, 201, d.ask("POST", "/api/v1/estimates", labelled).Code)
	}
	tests := []struct {
		name, query string
		want        []string
		more        bool
	}{
		{name: "all", want: []string{"Needs 90.0 GiB.", "Needs 20.0 GiB.", "Needs 10.0 GiB."}},
		{name: "page", query: "?limit=2", want: []string{"Needs 90.0 GiB.", "Needs 20.0 GiB."}, more: true},
		{name: "verdict", query: "?verdict=exceeds", want: []string{"Needs 90.0 GiB."}},
		{name: "label", query: "?label=team:t2", want: []string{"Needs 20.0 GiB."}},
		{name: "two labels", query: "?label=team:t2&label=team:t9", want: []string{"Needs 90.0 GiB."}},
		{name: "card by alias", query: "?gpu=H100-80GB", want: []string{"Needs 90.0 GiB.", "Needs 20.0 GiB.", "Needs 10.0 GiB."}},
		{name: "another card", query: "?gpu=T4", want: nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := d.ask("GET", "/api/v1/estimates"+tt.query, "")
			require.Equal(t, 200, w.Code, w.Body.String())
			page := read[planner.Page](t, w)
			var got []string
			for _, item := range page.Items {
				got = append(got, item.Text)
			}
			require.Equal(t, tt.want, got)
			require.Equal(t, tt.more, page.NextCursor != "")
			require.Contains(t, w.Body.String(), `"items":[`, "a list, even when it is empty")
		})
	}
}

func TestListRefusesWrongParameters(t *testing.T) {
	tests := []struct {
		name, query, location, got string
	}{
		{name: "limit", query: "?limit=0", location: "query.limit", got: "0"},
		{name: "limit is no number", query: "?limit=ten", location: "query.limit", got: "ten"},
		{name: "verdict", query: "?verdict=maybe", location: "query.verdict", got: "maybe"},
		{name: "cursor", query: "?cursor=xyz", location: "query.cursor", got: "xyz"},
		{name: "label", query: "?label=team", location: "query.label", got: "team"},
		{name: "unknown", query: "?colour=red", location: "query.colour"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := open(t, nil).ask("GET", "/api/v1/estimates"+tt.query, "")
			require.Equal(t, 422, w.Code)
			p := read[Problem](t, w)
			require.Len(t, p.Errors, 1)
			require.Equal(t, tt.location, p.Errors[0].Location)
			require.Equal(t, tt.got, p.Errors[0].Got)
		})
	}
}

func TestCreateCheck(t *testing.T) {
	tests := []struct {
		name, micro string
		decision    planner.Decision
	}{
		{name: "fits", micro: "2", decision: planner.Allow},
		{name: "exceeds", micro: "9", decision: planner.Deny},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := open(t, nil).ask("POST", "/api/v1/checks", job(tt.micro))
			require.Equal(t, 200, w.Code, w.Body.String())
			check := read[planner.Check](t, w)
			require.Equal(t, tt.decision, check.Decision)
			require.NotNil(t, check.Estimate)
			require.NotNil(t, check.Fixes)
		})
	}
}

func TestCreateFits(t *testing.T) {
	d := open(t, nil)
	w := d.ask("POST", "/api/v1/fits?gpu=H100-80GB&gpu=T4", job("1"))
	require.Equal(t, 200, w.Code, w.Body.String())
	got := read[struct{ Items []planner.Fit }](t, w)
	require.Len(t, got.Items, 2)
	require.Equal(t, 7, got.Items[0].MicroBatch)
	require.Equal(t, 1, got.Items[1].MicroBatch)

	w = d.ask("POST", "/api/v1/fits?gpu=H999", job("1"))
	require.Equal(t, 422, w.Code)
	require.NotEmpty(t, read[Problem](t, w).Errors)
}

func TestCreateColocation(t *testing.T) {
	d := open(t, nil)
	w := d.ask("POST", "/api/v1/colocations", "["+job("1")+","+job("2")+"]")
	require.Equal(t, 200, w.Code, w.Body.String())
	got := read[planner.Colocation](t, w)
	require.Len(t, got.Jobs, 2)
	require.Len(t, got.Pairs, 1)
	require.Equal(t, got.Together, got.Pairs[0])

	w = d.ask("POST", "/api/v1/colocations", "["+job("1")+`,{"model":{"id":"gpt2"},"training":{"micro_batch":3}}]`)
	require.Equal(t, 422, w.Code)
	require.Equal(t, "[1].training.micro_batch", read[Problem](t, w).Errors[0].Path)

	w = d.ask("POST", "/api/v1/colocations", "["+job("1")+"]")
	require.GreaterOrEqual(t, w.Code, 400)
}

func TestCatalogLists(t *testing.T) {
	tests := []struct {
		name, path, want string
	}{
		{name: "models", path: "/api/v1/models?q=llama-3.1-8b&limit=1", want: `"id":"meta-llama/Llama-3.1-8B"`},
		{name: "gpus", path: "/api/v1/gpus", want: `"key":"H100-SXM5-80GB"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := open(t, nil).ask("GET", tt.path, "")
			require.Equal(t, 200, w.Code)
			require.Contains(t, w.Body.String(), tt.want)
		})
	}
}

func TestCatalogPages(t *testing.T) {
	d := open(t, nil)
	for _, path := range []string{"/api/v1/models", "/api/v1/gpus"} {
		t.Run(path, func(t *testing.T) {
			all := read[wire.Page[any]](t, d.ask("GET", path+"?limit=1000", ""))
			require.Empty(t, all.NextCursor)
			var got []any
			for cursor := ""; ; {
				page := read[wire.Page[any]](t, d.ask("GET", path+"?limit=7&cursor="+cursor, ""))
				got = append(got, page.Items...)
				if cursor = page.NextCursor; cursor == "" {
					break
				}
				require.Len(t, page.Items, 7)
			}
			require.Equal(t, all.Items, got)
			for _, wrong := range []string{"x", "-1", "100000"} {
				p := read[Problem](t, d.ask("GET", path+"?cursor="+wrong, ""))
				require.Equal(t, "query.cursor", p.Errors[0].Location)
			}
		})
	}
}

func TestEveryFailureIsAProblem(t *testing.T) {
	named := func(name string) string { return strings.Replace(job("1"), "{", `{"name":"`+name+`",`, 1) }
	tests := []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		detail                   string
	}{
		{name: "no such address", method: "GET", path: "/api/v1/nothing", status: 404},
		{name: "no such version", method: "GET", path: "/api/v2/estimates", status: 404},
		{name: "no such page", method: "GET", path: "/nothing", status: 404},
		{name: "no such estimate", method: "GET", path: "/api/v1/estimates/est_aaaaaaaaaaaaaaaa", status: 404},
		{name: "no id at all", method: "GET", path: "/api/v1/estimates/7", status: 404},
		{name: "method", method: "DELETE", path: "/api/v1/estimates", status: 405, detail: "This address answers GET and POST only."},
		{name: "method of health", method: "POST", path: "/healthz", status: 405, detail: "This address answers GET only."},
		{name: "a form's content type", method: "POST", path: "/api/v1/estimates", body: job("1"), headers: []string{"Content-Type", "application/x-www-form-urlencoded"}, status: 415},
		{name: "an unreadable content type", method: "POST", path: "/api/v1/checks", body: job("1"), headers: []string{"Content-Type", ";;"}, status: 415},
		{name: "too large", method: "POST", path: "/api/v1/estimates", body: strings.Repeat(" ", maxJobBytes), status: 413},
		{name: "no body", method: "POST", path: "/api/v1/estimates", status: 400},
		{name: "not JSON", method: "POST", path: "/api/v1/estimates", body: "{", status: 422},
		{name: "another site", method: "POST", path: "/api/v1/estimates", body: job("1"), headers: []string{"Sec-Fetch-Site", "cross-site"}, status: 403},
		{name: "a defect", method: "POST", path: "/api/v1/checks", body: named("broken"), status: 500},
		{name: "a panic", method: "POST", path: "/api/v1/estimates", body: named("panics"), status: 500},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := open(t, nil)
			w := d.ask(tt.method, tt.path, tt.body, tt.headers...)
			require.Equal(t, tt.status, w.Code, w.Body.String())
			require.Equal(t, problemType, w.Header().Get("Content-Type"))
			require.NotContains(t, w.Body.String(), "secret")
			p := read[Problem](t, w)
			require.Equal(t, tt.status, p.Status)
			require.Equal(t, http.StatusText(tt.status), p.Title)
			require.NotEmpty(t, p.Detail)
			require.Equal(t, w.Header().Get("X-Request-Id"), p.RequestID)
			if tt.detail != "" {
				require.Equal(t, tt.detail, p.Detail)
			}
			if tt.status == 500 {
				require.Contains(t, d.log.String(), "secret", "the reason is in the log")
				require.Contains(t, d.log.String(), p.RequestID)
			}
		})
	}
}

func TestAllowHeader(t *testing.T) {
	w := open(t, nil).ask("DELETE", "/api/v1/estimates", "")
	require.Equal(t, "GET, POST", w.Header().Get("Allow"))
}

func TestEveryKindHasAStatus(t *testing.T) {
	for kind := fault.Internal; kind <= fault.TooLarge; kind++ {
		require.NotZero(t, statuses[kind].code, kind.String())
		require.NotEmpty(t, statuses[kind].text, kind.String())
	}
	require.Len(t, statuses, int(fault.TooLarge)+1)
}

func TestHealth(t *testing.T) {
	d := open(t, nil)
	require.Equal(t, 200, d.ask("GET", "/healthz", "").Code)
	require.Equal(t, 200, d.ask("GET", "/readyz", "").Code)
	d.store.down = fault.Wrap(fault.Unavailable, "store: ping", context.DeadlineExceeded)
	require.Equal(t, 200, d.ask("GET", "/healthz", "").Code, "the process is alive")
	require.Equal(t, 503, d.ask("GET", "/readyz", "").Code, "and not ready")
}

func TestMetricsNameRoutesNotPaths(t *testing.T) {
	d := open(t, nil)
	d.ask("GET", "/api/v1/estimates/est_aaaaaaaaaaaaaaaa", "")
	got := d.ask("GET", "/metrics", "").Body.String()
	require.Contains(t, got, `route="/api/v1/estimates/{id}",status="404"`)
	require.NotContains(t, got, "est_aaaa")
}

func TestRateLimitIsOnTheInterfaceOnly(t *testing.T) {
	d := open(t, func(c *Config) { c.RequestsPerMinute = 1 })
	require.Equal(t, 200, d.ask("GET", "/api/v1/gpus", "").Code)
	w := d.ask("GET", "/api/v1/gpus", "")
	require.Equal(t, 429, w.Code)
	require.Equal(t, problemType, w.Header().Get("Content-Type"))
	require.Equal(t, 200, d.ask("GET", "/healthz", "").Code)
}

func TestPagesStandBesideTheInterface(t *testing.T) {
	d := open(t, func(c *Config) {
		c.Pages = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "page "+r.URL.Path) })
	})
	require.Equal(t, "page /", d.ask("GET", "/", "").Body.String())
	require.Equal(t, "page /e/x", d.ask("GET", "/e/x", "").Body.String())
	require.Equal(t, 404, d.ask("GET", "/api/nothing", "").Code)
	require.Equal(t, 200, d.ask("GET", "/api/v1/gpus", "").Code)
}

func TestCompression(t *testing.T) {
	w := open(t, nil).ask("GET", "/api/v1/gpus", "", "Accept-Encoding", "gzip")
	require.Equal(t, "gzip", w.Header().Get("Content-Encoding"))
	r, err := gzip.NewReader(w.Body)
	require.NoError(t, err)
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Contains(t, string(text), "H100-SXM5-80GB")
}

func TestReaderWhoLeft(t *testing.T) {
	d := open(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r := httptest.NewRequest("POST", "/api/v1/estimates", strings.NewReader(job("1"))).WithContext(ctx)
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	require.NotContains(t, d.log.String(), "level=ERROR msg=failed", "nobody is there to be told")
}

func TestEveryWrongFieldIsToldAtOnce(t *testing.T) {
	const wrong = `{"model":{"id":"nobody/nothing"},"training":{"micro_batch_size":0,"precison":"bf16","label_smoothing":true,"attention":"flex"},"target":{"gpu":"A1000"}}`
	want := []string{
		"model.id", "target.gpu", "training.attention", "training.label_smoothing", "training.micro_batch_size", "training.precison",
	}
	paths := func(p Problem) []string {
		var got []string
		for _, e := range p.Errors {
			got = append(got, e.Path)
		}
		slices.Sort(got)
		return got
	}
	d := open(t, nil)
	require.Equal(t, want, paths(read[Problem](t, d.ask("POST", "/api/v1/checks", wrong))))
	require.Equal(t, want, paths(read[[]Problem](t, d.ask("POST", "/api/v1/estimates:batch", "["+wrong+"]"))[0]))
	unknown := strings.Replace(strings.Replace(wrong, `"precison":"bf16",`, "", 1), `"micro_batch_size":0,`, "", 1)
	require.Equal(t, want[:4], paths(read[Problem](t, d.ask("POST", "/api/v1/checks", unknown))), "also where the format has nothing to say")
}
