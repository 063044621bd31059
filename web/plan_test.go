package web_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/fault"
	"memplan/internal/snapshot"
	"memplan/internal/units"
	"memplan/web"
	"memplan/web/webtest"
)

func TestFirstPageAnswersAnExample(t *testing.T) {
	t.Parallel()
	p := open(t, &webtest.Planner{}, http.MethodGet, "/")
	require.Equal(t, http.StatusOK, p.Code)
	require.Equal(t, "meta-llama/Llama-3.1-8B", p.attr("input[list=models]", "value"))
	require.Contains(t, p.text(".verdict .sentence"), "needs")
	require.Len(t, p.all("svg[role=img]"), 2, "the breakdown and the timeline")
	require.Len(t, p.all(`[aria-live]`), 1, "only the verdict is read out")
}

func TestNothingAskedIsTheExampleInAnyUnit(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"/plan", "/?u=gb", "/plan?u=gb"} {
		p := open(t, &webtest.Planner{}, http.MethodGet, target)
		require.Equal(t, http.StatusOK, p.Code, target)
		require.Equal(t, "meta-llama/Llama-3.1-8B", p.attr("input[list=models]", "value"))
		require.Equal(t, strings.HasSuffix(target, "gb"), !strings.Contains(p.text(".verdict"), "GiB"), target)
	}
}

func TestVerdictIsAWordAnIconAndASentence(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		verdict estimator.Verdict
		class   string
		want    string
	}{
		{"fits", estimator.Fits, "fits", "Fits : needs"},
		{"tight", estimator.Tight, "tight", "Tight : needs"},
		{"exceeds", estimator.Exceeds, "exceeds", "Does not fit : needs"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			fake := &webtest.Planner{Edit: func(e *estimator.Estimate) { e.Target.Verdict = tt.verdict }}
			p := open(t, fake, http.MethodGet, "/plan?"+example)
			require.True(t, strings.HasPrefix(p.text(".verdict."+tt.class+" .sentence"), tt.want), p.text(".verdict .sentence"))
			require.Len(t, p.all(".verdict svg path"), 1)
			require.Equal(t, tt.verdict != estimator.Fits, len(p.all("#fixes a")) > 0, "changes are offered unless it fits")
		})
	}
}

func TestBreakdownShownAddsUp(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{"", "&u=gb"} {
		p := planned(t, example+unit)
		var sum int64
		for _, n := range p.all(".breakdown tbody td[title]") {
			sum += hundredths(t, textOf(n))
		}
		require.Equal(t, hundredths(t, p.text(".breakdown tfoot td[title]")), sum)
	}
}

func hundredths(t *testing.T, s string) int64 {
	t.Helper()
	require.Regexp(t, regexp.MustCompile(`^\d+\.\d\d$`), s)
	var n int64
	for _, c := range strings.ReplaceAll(s, ".", "") {
		n = n*10 + int64(c-'0')
	}
	return n
}

func TestUnitStaysInTheAddressAndIsNeverMixed(t *testing.T) {
	t.Parallel()
	p := planned(t, example+"&u=gb")
	require.NotContains(t, p.text("#result"), "GiB usable")
	require.Contains(t, p.text(".verdict .sentence"), "GB")
	require.NotContains(t, p.text(".verdict"), "GiB")
	require.NotContains(t, p.text("table.breakdown"), "GiB")
	require.NotContains(t, p.attr("a#unit", "href"), "u=gb")
	require.Equal(t, "gb", p.attr("input[type=hidden][name=u]", "value"))
	for _, a := range p.all("a.switch") {
		href, _ := attribute(a, "href")
		require.Contains(t, href, "u=gb")
	}
}

func TestPartEqualsWholePage(t *testing.T) {
	t.Parallel()
	whole := planned(t, example)
	part := open(t, &webtest.Planner{}, http.MethodGet, "/plan/result?"+example, "HX-Request", "true")
	require.Equal(t, http.StatusOK, part.Code)
	require.Equal(t, textOf(whole.one("#result")), textOf(part.one("#result")))
	require.Equal(t, whole.section(t), part.section(t), "the very same markup")
	require.Equal(t, "/plan?"+canonical(t, example), part.Header.Get("HX-Replace-Url"))
}

// section is the markup of the result.
func (p page) section(t *testing.T) string {
	t.Helper()
	from := strings.Index(p.Body, `<section id="result"`)
	require.GreaterOrEqual(t, from, 0)
	to := strings.Index(p.Body[from:], `id="copy-text-check"`)
	require.Greater(t, to, 0)
	return p.Body[from : from+to]
}

func canonical(t *testing.T, query string) string {
	t.Helper()
	v, err := url.ParseQuery(query)
	require.NoError(t, err)
	return strings.ReplaceAll(v.Encode(), "%2F", "/")
}

func TestPartWithoutScriptsLeadsToThePage(t *testing.T) {
	t.Parallel()
	p := open(t, &webtest.Planner{}, http.MethodGet, "/plan/result?"+example)
	require.Equal(t, http.StatusSeeOther, p.Code)
	require.Equal(t, "/plan?"+example, p.Header.Get("Location"))
}

func TestEmptyFieldsLeaveTheAddress(t *testing.T) {
	t.Parallel()
	p := open(t, &webtest.Planner{}, http.MethodGet, "/plan?"+example+"&ac=&lora=")
	require.Equal(t, http.StatusSeeOther, p.Code)
	require.Equal(t, "/plan?"+canonical(t, example), p.Header.Get("Location"))
}

func TestWrongFieldsStandBesideTheirInputs(t *testing.T) {
	t.Parallel()
	p := planned(t, "m=meta-llama/Llama-3.1-8B&mb=0&prec=bf17-mixed&gpu=H100-SXM5-80GB&seq=2048&nonsense=1")
	require.Equal(t, http.StatusUnprocessableEntity, p.Code)
	require.Contains(t, p.text("#e-f-training-micro-batch-size"), "Got 0, want")
	require.Equal(t, "0", p.attr("#f-training-micro-batch-size", "value"), "nothing is lost")
	require.Contains(t, p.text("#e-f-training-precision"), `Got "bf17-mixed"`)
	require.Equal(t, "bf17-mixed", p.attr("#f-training-precision option[selected]", "value"))
	fix := p.attr("#e-f-training-precision a.fix", "href")
	require.Contains(t, fix, "prec=bf16-mixed")
	require.Contains(t, fix, "nonsense=1", "a fix changes one thing")
	require.Contains(t, p.text("#e-elsewhere"), "nonsense")
	require.Equal(t, "1", p.attr("input[type=hidden][name=nonsense]", "value"))
	require.Empty(t, p.all("svg[role=img]"), "there is no answer to draw")
}

func TestWrongFieldsLeaveTheLastAnswerInPlace(t *testing.T) {
	t.Parallel()
	p := open(t, &webtest.Planner{}, http.MethodGet, "/plan/result?"+example+"&prec=bf17-mixed", "HX-Request", "true")
	require.Equal(t, http.StatusUnprocessableEntity, p.Code)
	require.Equal(t, "none", p.Header.Get("HX-Reswap"))
	require.Empty(t, p.all("#result"))
	require.NotEmpty(t, p.text("#standing.stale"))
	require.Contains(t, p.text(`[data-slot="e-f-training-precision"]`), `Got "bf17-mixed"`)
	require.Contains(t, p.Header.Get("HX-Replace-Url"), "prec=bf17-mixed")
}

func TestErrorsOfTheEngineStandBesideTheirInputs(t *testing.T) {
	t.Parallel()
	p := planned(t, strings.ReplaceAll(example, "mb=1", "mb=5000"))
	require.Equal(t, http.StatusUnprocessableEntity, p.Code)
	require.Contains(t, p.attr("#e-f-training-micro-batch-size a.fix", "href"), "mb=4096")
}

func TestContradictionsOfferEachWayOut(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, query, at string
		want            []string // in the fixes' addresses, in order
		gone            []string // from them
	}{
		{
			"two models", example + "&config=%7B%22model_type%22:%22llama%22%7D", "#e-f-model-id a.fix",
			[]string{"m=meta-llama", "config="},
			[]string{"config=", "m=meta-llama"},
		},
		{
			"an adapter under full", example + "&lora=16&method=full", "#e-elsewhere a.fix",
			[]string{"method=lora", "method=full"},
			[]string{"method=full", "lora=16"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := planned(t, tt.query)
			require.Equal(t, http.StatusUnprocessableEntity, p.Code)
			fixes := p.all(tt.at)
			require.Len(t, fixes, len(tt.want), textOf(p.one("form#plan-form")))
			for i, a := range fixes {
				href, _ := attribute(a, "href")
				require.Contains(t, href, tt.want[i])
				require.NotContains(t, href, tt.gone[i])
			}
		})
	}
}

func TestACountMayStandForAModel(t *testing.T) {
	t.Parallel()
	p := planned(t, "m=7B&mb=1&seq=2048&gpu=H100-SXM5-80GB")
	require.Equal(t, http.StatusOK, p.Code)
	require.Contains(t, p.attr("a#unit", "href"), "params=")
	value := p.attr("input[list=models]", "value")
	require.Contains(t, []string{"7B", "7e9", "7000000000", "7e+09"}, value)
	require.Empty(t, p.all("input[type=hidden][name=params]"), "the count is in the field, not beside it")
}

func TestFailuresShowAnIDAndNoCause(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		planer web.Planner
		target string
		code   int
		text   string
	}{
		{"no such page", &webtest.Planner{}, "/nowhere", http.StatusNotFound, "There is no page at /nowhere."},
		{"no such estimate", &webtest.Planner{}, "/e/est_none", http.StatusNotFound, "There is no saved estimate est_none."},
		{"a defect", &webtest.Planner{Err: fault.Wrap(fault.Internal, "store: secret", http.ErrBodyNotAllowed)}, "/plan?" + example, http.StatusInternalServerError, "Something failed on our side."},
		{"an old static file", &webtest.Planner{}, "/static/000000000000/memplan.css", http.StatusNotFound, "There is no page"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := open(t, tt.planer, http.MethodGet, tt.target)
			require.Equal(t, tt.code, p.Code)
			require.Contains(t, p.text(".failure"), tt.text)
			require.NotContains(t, p.Body, "secret")
			require.Equal(t, p.Header.Get("X-Request-Id"), p.text(".failure code"))
			require.Equal(t, strings.HasPrefix(tt.target, "/plan"), len(p.all("form#plan-form")) > 0, "the form is not lost")
		})
	}
}

func TestUnavailableModelKeepsTheForm(t *testing.T) {
	t.Parallel()
	p := open(t, &webtest.Planner{Err: fault.New(fault.NotFound, "No hub is configured: paste the config.json.")}, http.MethodGet, "/plan?"+example)
	require.Equal(t, http.StatusUnprocessableEntity, p.Code)
	require.Contains(t, p.text("#e-elsewhere"), "paste the config.json")
	require.Equal(t, "meta-llama/Llama-3.1-8B", p.attr("input[list=models]", "value"))
}

func TestSaveLeadsToAnImmutablePage(t *testing.T) {
	t.Parallel()
	site := web.New(web.Config{Planner: &webtest.Planner{}, Version: "0.1.0"})
	first := serve(t, site, http.MethodPost, "/estimates", url.Values{"q": {example}})
	require.Equal(t, http.StatusSeeOther, first.Code)
	again := serve(t, site, http.MethodPost, "/estimates", url.Values{"q": {example}})
	require.Equal(t, first.Header.Get("Location"), again.Header.Get("Location"), "a second click keeps one")

	p := serve(t, site, http.MethodGet, first.Header.Get("Location"), nil)
	require.Equal(t, http.StatusOK, p.Code)
	require.Empty(t, p.all("form#plan-form"), "inputs are read-only")
	require.Empty(t, p.all("a.switch"))
	require.Contains(t, p.text(".given"), "meta-llama/Llama-3.1-8B")
	require.Contains(t, p.attr("a.button", "href"), "/plan?")
	require.Len(t, p.all(".traces a"), len(snapshot.Formats()))
	viz, _ := attribute(p.all(".traces a")[1], "href")
	require.Regexp(t, `^/api/v1/estimates/est_[a-z0-9]+/trace\?format=memory_viz$`, viz)
	require.Empty(t, p.all(".notice"), "the same engine gives the same number")
}

func TestSavedPageSaysWhenTodaysEngineDiffers(t *testing.T) {
	t.Parallel()
	fake := &webtest.Planner{}
	site := web.New(web.Config{Planner: fake, Version: "0.1.0"})
	to := serve(t, site, http.MethodPost, "/estimates", url.Values{"q": {example}}).Header.Get("Location")
	fake.Edit = func(e *estimator.Estimate) { e.Peak.Required += units.GiB; e.Engine.Version = "0.2.0" }
	p := serve(t, site, http.MethodGet, to, nil)
	require.Contains(t, p.text(".notice"), "0.2.0")
	require.Contains(t, p.text(".notice"), "+1.00")
}

func TestSaveFromAnotherSiteIsRefused(t *testing.T) {
	t.Parallel()
	site := web.New(web.Config{Planner: &webtest.Planner{}, Version: "0.1.0"})
	p := serve(t, site, http.MethodPost, "/estimates", url.Values{"q": {example}}, "Sec-Fetch-Site", "cross-site")
	require.Equal(t, http.StatusForbidden, p.Code)
}

func TestFixesAreLinksToThePlanWithTheChange(t *testing.T) {
	t.Parallel()
	for _, header := range [][]string{nil, {"HX-Request", "true"}} {
		p := open(t, &webtest.Planner{}, http.MethodGet, "/plan/fixes?"+example, header...)
		require.Equal(t, http.StatusOK, p.Code)
		require.Contains(t, p.attr("#fixes li a", "href"), "ac=full")
		require.Contains(t, p.attr("#fixes li a", "href"), "mb=1")
		require.Equal(t, header == nil, len(p.all("header")) > 0)
	}
}

func TestFitsTable(t *testing.T) {
	t.Parallel()
	whole := open(t, &webtest.Planner{}, http.MethodGet, "/plan/fits?"+example)
	require.Equal(t, http.StatusOK, whole.Code)
	require.Contains(t, textOf(whole.one("tr.own")), "H100-SXM5-80GB", "the job's own card comes first")
	require.Contains(t, whole.text("#fits"), "bf16 needs compute capability 8.0")
	part := open(t, &webtest.Planner{}, http.MethodGet, "/plan/fits?"+example, "HX-Request", "true")
	require.Empty(t, part.all("header"))
	require.Equal(t, whole.text("#fits"), part.text("#fits"))
}

func TestModelSuggestions(t *testing.T) {
	t.Parallel()
	p := open(t, &webtest.Planner{}, http.MethodGet, "/models?q=llama")
	require.Contains(t, p.Body, `<option value="meta-llama/Llama-3.1-8B">8.03B</option>`)
	require.NotContains(t, p.Body, "<html")
}

func TestCopiesAskForTheSameJob(t *testing.T) {
	t.Parallel()
	p := planned(t, example)
	require.Equal(t, "http://example.com/plan?"+canonical(t, example), p.text("#copy-text-link"))
	require.Contains(t, p.text("#copy-text-curl"), "/api/v1/estimates")
	require.Contains(t, p.text("#copy-text-yaml"), "micro_batch_size: 1")
	require.Contains(t, p.text("#copy-text-check"), "memplan check -")
}
