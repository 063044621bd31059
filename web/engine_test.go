package web_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/planner"
	"memplan/web"
)

// real is the planner of the product, without a store.
func real(t *testing.T) web.Planner {
	t.Helper()
	c, err := catalog.Open()
	require.NoError(t, err)
	return planner.New(planner.Config{Catalog: c})
}

func TestExampleIsAnsweredByTheEngine(t *testing.T) {
	t.Parallel()
	p := open(t, real(t), http.MethodGet, "/")
	require.Equal(t, http.StatusOK, p.Code, clip(p.Body))
	require.Contains(t, p.text(".verdict.exceeds .sentence"), "H100-SXM5-80GB gives 79.1", "fp32 weights, gradients and Adam's state of 8B parameters do not fit")
	require.Equal(t, "H100-SXM5-80GB", p.attr("#f-target-gpu option[selected]", "value"))
	require.Len(t, p.all("svg.chart"), 2)
	require.NotEmpty(t, p.all("a.switch"))
	var sum int64
	for _, n := range p.all(".breakdown tbody td[title]") {
		sum += hundredths(t, textOf(n))
	}
	require.Equal(t, hundredths(t, p.text(".breakdown tfoot td[title]")), sum)
}

func TestFirstLoadOfTheProductIsLight(t *testing.T) {
	t.Parallel()
	require.LessOrEqual(t, firstLoad(t, real(t)), 60_000)
}

func TestEveryAssumptionsSwitchLeadsToAnAnswerOrAReason(t *testing.T) {
	t.Parallel()
	p := open(t, real(t), http.MethodGet, "/plan?m=Qwen/Qwen2.5-0.5B&mb=1&seq=512&gpu=H100-SXM5-80GB")
	require.Equal(t, http.StatusOK, p.Code)
	for _, a := range p.all("a.switch") {
		href, _ := attribute(a, "href")
		if field, ok := strings.CutPrefix(href, "#"); ok {
			require.Len(t, p.all("#"+field), 1, "%s is a field of the form", field)
			continue
		}
		to := open(t, real(t), http.MethodGet, href)
		require.NotContains(t, to.Body, "not modelled)", href)
		require.Contains(t, []int{http.StatusOK, http.StatusUnprocessableEntity}, to.Code, href)
	}
}

func TestWhatTheEngineRefusesIsSaidBeforeTheClick(t *testing.T) {
	t.Parallel()
	p := open(t, real(t), http.MethodGet, "/plan?m=Qwen/Qwen2.5-0.5B&mb=1&seq=512&gpu=H100-SXM5-80GB")
	off := map[string][]string{}
	for _, o := range p.all("option[disabled]") {
		require.Contains(t, textOf(o), "not modelled yet")
		value, _ := attribute(o, "value")
		field, _ := attribute(o.Parent, "id")
		off[field] = append(off[field], value)
	}
	require.Contains(t, off["f-training-precision"], "fp8-mixed")
	require.NotContains(t, off["f-training-precision"], "bf16")
	require.NotContains(t, off, "f-target-gpu")
	require.NotContains(t, off, "f-training-padding")
	require.NotContains(t, p.text("label[for=f-training-micro-batch-size]"), "not modelled yet")
	require.NotContains(t, p.text("label[for=f-training-attention-backend]"), "not modelled yet")

	asked := open(t, real(t), http.MethodGet, "/plan?m=Qwen/Qwen2.5-0.5B&mb=1&seq=512&gpu=H100-SXM5-80GB&training.precision=fp8-mixed")
	require.Equal(t, http.StatusUnprocessableEntity, asked.Code)
	require.Equal(t, "fp8-mixed", asked.attr("#f-training-precision option[selected]", "value"))
	_, disabled := attribute(asked.all("#f-training-precision option[selected]")[0], "disabled")
	require.False(t, disabled, "what was chosen is sent again, and refused again")
}
