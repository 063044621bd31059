package web_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/wire"
	"memplan/web/webtest"
)

func TestFitPage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, query string
		code        int
		has         string // selector
		contains    string
	}{
		{"asks for a goal first", example, 200, "form.fit-form", "Every option was simulated"},
		{"options", "goal=fastest_step&" + example, 200, "#options article", "recomputes the forward pass"},
		{"single changes", "goal=fastest_step&" + example, 200, "#singles tbody tr", "12.0 GiB"},
		{"the largest micro batches", "goal=fastest_step&" + example, 200, "#lengths tbody td a", "def safe_micro_batch(longest):"},
		{"the front", "goal=fastest_step&" + example, 200, "#front tbody tr", "× 0.80"},
		{"for other tools", "goal=fastest_step&" + example, 200, "#options pre", "gradient_checkpointing: true"},
		{"nothing found", "goal=fewest_gpus&" + example, 200, "#options", "Nothing that may change"},
		{"a wrong number", "goal=fastest_step&fits_with=much&" + example, 422, ".notice", "a number above 0"},
		{"what the planner refuses", "goal=fastest_step&fits_with=0.5&" + example, 422, ".notice", "something else"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := open(t, &webtest.Planner{}, http.MethodGet, "/fit?"+tt.query)
			require.Equal(t, tt.code, p.Code)
			require.NotEmpty(t, p.all(tt.has))
			require.Contains(t, p.text("main"), tt.contains)
		})
	}
}

func TestAnOptionOpensAsAPlanWithItsChanges(t *testing.T) {
	t.Parallel()
	p := open(t, &webtest.Planner{}, http.MethodGet, "/fit?goal=fastest_step&"+example)
	address := p.attr("#options article h3 a", "href")
	require.True(t, strings.HasPrefix(address, "/plan?"))
	values, err := url.ParseQuery(strings.TrimPrefix(address, "/plan?"))
	require.NoError(t, err)
	job, err := wire.DecodeValues(values)
	require.NoError(t, err)
	require.Equal(t, "full", job.Training.Checkpointing.Mode)
	require.Equal(t, []string{"rms_norm", "rope"}, job.Training.FusedKernels)
	require.Empty(t, job.Training.Optimizer.Implementation)
}

func TestFitPageSendsAWrongJobToThePlan(t *testing.T) {
	t.Parallel()
	p := open(t, &webtest.Planner{}, http.MethodGet, "/fit?goal=fastest_step&prec=bf17&"+example)
	require.Equal(t, http.StatusSeeOther, p.Code)
	require.True(t, strings.HasPrefix(p.Header.Get("Location"), "/plan?"))
}
