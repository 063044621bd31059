package web_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/wire"
	"memplan/web"
	"memplan/web/webtest"
)

func TestImport(t *testing.T) {
	t.Parallel()
	const file = "base_model: mistralai/Mistral-7B-v0.1\nsequence_len: 4096\nmicro_batch_size: 2\nadapter: qlora\nlora_r: 16\nbf16: true\nnum_epochs: 3\n"
	for _, tt := range []struct {
		name     string
		form     url.Values
		code     int
		has      string // selector
		contains string
	}{
		{"found out whose", url.Values{"text": {file}}, 200, "#read table", "Read as axolotl"},
		{"said whose", url.Values{"text": {file}, "format": {"axolotl"}}, 200, "#read table", "nf4-double"},
		{"keys passed over", url.Values{"text": {file}}, 200, "#read", "num_epochs"},
		{"no model in it", url.Values{"text": {`{"zero_optimization": {"stage": 2}}`}}, 200, "#read form", "The file names no model"},
		{"nothing given", url.Values{}, 422, ".notice", "Choose a file"},
		{"nobody's", url.Values{"text": {"hello: world"}}, 422, ".notice", "no key of a format"},
		{"a word for a number", url.Values{"text": {"micro_batch_size: two"}, "format": {"axolotl"}}, 422, ".notice", "micro_batch_size: want a number"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, web.New(web.Config{Planner: &webtest.Planner{}}), http.MethodPost, "/import", tt.form)
			require.Equal(t, tt.code, p.Code)
			require.NotEmpty(t, p.all(tt.has))
			require.Contains(t, p.text("main"), tt.contains)
			require.Equal(t, strings.Join(strings.Fields(tt.form.Get("text")), " "), p.text("#import-text"), "what was given stays")
		})
	}
}

// The way to the plan carries the whole job.
func TestImportOpensAsAPlan(t *testing.T) {
	t.Parallel()
	p := serve(t, web.New(web.Config{Planner: &webtest.Planner{}}), http.MethodPost, "/import",
		url.Values{"text": {"base_model: mistralai/Mistral-7B-v0.1\nadapter: lora\nlora_r: 64\nlora_target_modules: [q_proj, v_proj]\nmicro_batch_size: 3\n"}})
	address := p.attr("#read a", "href")
	values, err := url.ParseQuery(strings.TrimPrefix(address, "/plan?"))
	require.NoError(t, err)
	job, err := wire.DecodeValues(values)
	require.NoError(t, err)
	require.Equal(t, "mistralai/Mistral-7B-v0.1", job.Model.ID)
	require.Equal(t, 3, job.Training.MicroBatchSize)
	require.Equal(t, []string{"q_proj", "v_proj"}, job.Training.Adapter.TargetModules.Names)
}

func TestImportStartsEmpty(t *testing.T) {
	t.Parallel()
	p := open(t, &webtest.Planner{}, http.MethodGet, "/import")
	require.Equal(t, 200, p.Code)
	require.Empty(t, p.all("#read"))
	require.Len(t, p.all("select option"), 15)
}
