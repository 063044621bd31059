package e2e

import (
	_ "embed"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"memplan/web"
	"memplan/web/webtest"
)

// axe is the accessibility checker, version 4.14.1.
//
//go:embed testdata/axe.min.js
var axe string

const example = "m=meta-llama/Llama-3.1-8B&mb=1&seq=2048&gpu=H100-SXM5-80GB"

// site serves the pages over a made-up planner.
func site(t testing.TB) string {
	t.Helper()
	srv := httptest.NewServer(web.New(web.Config{Planner: &webtest.Planner{}, Version: "test"}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// clean requires that the page broke no rule: nothing refused by the content
// policy, nothing thrown, no other host asked.
func clean(t testing.TB, b *Browser, base string) {
	t.Helper()
	require.Empty(t, b.Problems())
	require.Equal(t, []string{strings.TrimPrefix(base, "http://")}, b.Hosts())
}

func TestTypingChangesTheVerdictAndTheAddress(t *testing.T) {
	base, b := site(t), Open(t)
	b.Go(base)
	require.Contains(t, b.Text(".verdict strong"), "Fits")
	steps := Eval[float64](b, `history.length`)
	b.Fill("#f-training-micro-batch-size", "32")
	b.Wait(`document.querySelector(".verdict strong").textContent === "Does not fit"`)
	require.Contains(t, b.Address(), "/plan?")
	require.Contains(t, b.Address(), "mb=32")
	b.Wait(`document.querySelector("#fixes li a[href*='ac=full']")`)
	require.True(t, Eval[bool](b, `document.activeElement.id === "f-training-micro-batch-size"`), "the focus stays")
	require.Equal(t, steps, Eval[float64](b, `history.length`), "typing replaces the address, it leaves no trail")

	script := b.Text("#result")
	b.Go(b.Address())
	b.Wait(`document.querySelector("#fixes li")`)
	require.Equal(t, squeeze(b.Text("#result")), squeeze(script), "a reload of the address shows the same")
	clean(t, b, base)
}

func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

func TestWrongFieldKeepsTheLastAnswer(t *testing.T) {
	base, b := site(t), Open(t)
	b.Go(base)
	b.Fill("#f-training-micro-batch-size", "0")
	b.Wait(`document.querySelector("#e-f-training-micro-batch-size .fix")`)
	require.Contains(t, b.Text("#e-f-training-micro-batch-size"), "Got 0")
	require.True(t, Eval[bool](b, `document.querySelector("#f-training-micro-batch-size").hasAttribute("aria-invalid")`))
	require.Less(t, Eval[float64](b, `Number(getComputedStyle(document.querySelector("#result")).opacity)`), 0.6)
	require.Contains(t, b.Text(".verdict strong"), "Fits", "the last answer stays")

	b.Click("#e-f-training-micro-batch-size .fix")
	b.Wait(`document.querySelector("#f-training-micro-batch-size").value === "1"`)
	b.Wait(`Number(getComputedStyle(document.querySelector("#result")).opacity) === 1`)
	require.False(t, Eval[bool](b, `document.querySelector("#f-training-micro-batch-size").hasAttribute("aria-invalid")`))
	clean(t, b, base)
}

func TestSwitchOfAnAssumptionChangesTheForm(t *testing.T) {
	base, b := site(t), Open(t)
	b.Go(base + "/plan?" + example)
	b.Choose("#f-training-precision", "fp32")
	b.Wait(`location.search.includes("prec=fp32")`)
	b.Click(`.assumptions a.switch[href*="wdtype=bf16"]`)
	b.Wait(`location.search.includes("wdtype=bf16")`)
	require.Equal(t, "bf16", Eval[string](b, `document.querySelector("#f-training-weights-dtype").value`))
	require.Equal(t, "fp32", Eval[string](b, `document.querySelector("#f-training-precision").value`), "what was chosen before stays")
	clean(t, b, base)
}

func TestWhatFitsArrivesWhenItIsSeen(t *testing.T) {
	base, b := site(t), Open(t)
	b.Go(base + "/plan?" + example)
	require.True(t, Eval[bool](b, `document.querySelector("#fits table") === null`))
	Eval[bool](b, `document.querySelector("#fits").scrollIntoView() === undefined`)
	b.Wait(`document.querySelector("#fits tr.own")`)
	clean(t, b, base)
}

func TestKeys(t *testing.T) {
	base, b := site(t), Open(t)
	b.Go(base + "/plan?" + example)
	b.Press("/", 0)
	require.True(t, Eval[bool](b, `document.activeElement.id === "f-model-id"`))
	b.Press("u", 0)
	require.Equal(t, "GiB / GB", squeeze(b.Text("#unit")), "a key typed into a field is text")
	b.Fill("#f-model-id", "meta-llama/Llama-3.1-8B")
	b.Click("#f-training-micro-batch-size")
	b.Press(kb.ArrowUp, shift)
	b.Wait(`document.querySelector("#f-training-micro-batch-size").value === "2"`)
	b.Wait(`location.search.includes("mb=2") && document.querySelector(".facts").textContent.includes("micro batch 2")`)
	b.Wait(`!document.querySelector(".htmx-request, .htmx-swapping, .htmx-settling")`) // the swap gives the focus back
	Eval[bool](b, `document.activeElement.blur() === undefined`)
	b.Press("?", 0)
	require.True(t, Eval[bool](b, `document.querySelector("#keys").open`))
	b.Press(kb.Escape, 0)
	b.Wait(`!document.querySelector("#keys").open`)
	b.Press("u", 0)
	b.Wait(`location.search.includes("u=gb") && document.readyState === "complete"`)
	require.Contains(t, b.Text(".verdict .sentence"), "GB")
	b.Press("s", 0)
	b.Wait(`location.pathname.startsWith("/e/") && document.readyState === "complete"`)
	require.Contains(t, b.Text("h1"), "Saved estimate")
	clean(t, b, base)
}

func TestWithoutScripts(t *testing.T) {
	base, b := site(t), Open(t)
	b.Scripts(false)
	b.Go(base)
	b.Fill("#f-training-micro-batch-size", "32")
	b.Follow("#plan-form button[type=submit]")
	require.Contains(t, b.Address(), "mb=32")
	require.NotContains(t, b.Address(), "=&", "empty fields leave the address")
	require.Contains(t, b.Text(".verdict strong"), "Does not fit")
	b.Follow("#fits a")
	require.Contains(t, b.Text("h1"), "What fits")
	b.Go(base + "/plan?" + example)
	b.Follow("#save button")
	require.Contains(t, b.Address(), "/e/est_1")
	clean(t, b, base)
}

func TestThemeIsRemembered(t *testing.T) {
	base, b := site(t), Open(t)
	b.Go(base)
	ground := func() string { return Eval[string](b, `getComputedStyle(document.documentElement).backgroundColor`) }
	light := ground()
	b.Prefer("prefers-color-scheme", "dark")
	dark := ground()
	require.NotEqual(t, light, dark, "auto follows the system")
	b.Click("#theme")
	require.Equal(t, light, ground())
	b.Go(base + "/docs/method")
	require.Equal(t, light, ground(), "the choice is kept")
	b.Click("#theme")
	require.Equal(t, dark, ground())
	clean(t, b, base)
}

// pages are the addresses of every page, and of each state of it that looks
// its own way.
func pages(t testing.TB, base string) map[string]string {
	t.Helper()
	saved, err := http.DefaultClient.PostForm(base+"/estimates", map[string][]string{"q": {example}})
	require.NoError(t, err)
	require.NoError(t, saved.Body.Close())
	return map[string]string{
		"plan": "/plan?" + example, "exceeds": "/plan?" + strings.ReplaceAll(example, "mb=1", "mb=64"),
		"wrong": "/plan?" + example + "&prec=bf17", "fits": "/plan/fits?" + example, "fixes": "/plan/fixes?" + example,
		"saved": saved.Request.URL.Path, "missing": "/nowhere", "method": "/docs/method",
		"fit": "/fit?goal=fastest_step&" + example, "fit-empty": "/fit", "import": "/import",
		"accuracy": "/accuracy", "accuracy-empty": "/accuracy?gpu=H100-SXM5-80GB",
		"calibration": "/calibrations/cal_aaaaaaaaaaaaaaaa", "calibration-refused": "/calibrations/cal_bbbbbbbbbbbbbbbb",
		"devices": "/devices", "benchmark": "/benchmarks/" + webtest.BenchmarkID,
	}
}

func TestAccessible(t *testing.T) {
	base, b := site(t), Open(t)
	targets := pages(t, base)
	for _, scheme := range []string{"light", "dark"} {
		b.Prefer("prefers-color-scheme", scheme)
		for name, target := range targets {
			b.Go(base + target)
			Eval[bool](b, `document.querySelectorAll("details").forEach(d => { d.open = true }) === undefined`)
			b.Shot(name + "-" + scheme)
			require.Empty(t, violations(b), "%s, %s", name, scheme)
		}
	}
	clean(t, b, base)
}

// violations runs axe on the page and returns what it found, in words.
func violations(b *Browser) []string {
	Eval[bool](b, axe+";true")
	return Eval[[]string](b, `axe.run().then(r => r.violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.target.join(" ") + ": " + n.failureSummary)))`)
}

func TestNarrowAndWide(t *testing.T) {
	base, b := site(t), Open(t)
	targets := pages(t, base)
	for _, width := range []int64{360, 390, 768, 1000, 1400, 1920} {
		b.Size(width, 900)
		for _, target := range targets {
			b.Go(base + target)
			over := Eval[float64](b, `document.documentElement.scrollWidth - innerWidth`)
			require.LessOrEqual(t, over, 0.0, "%s is wider than %d pixels", target, width)
		}
		b.Go(base + "/plan?" + example)
		b.Shot(fmt.Sprintf("plan-%d", width))
	}
	clean(t, b, base)
}

func TestForcedColoursAndReducedMotion(t *testing.T) {
	base, b := site(t), Open(t)
	b.Prefer("forced-colors", "active")
	b.Go(base + "/plan?" + example)
	b.Shot("forced-colors")
	require.Empty(t, violations(b))
	b.Prefer("prefers-reduced-motion", "reduce")
	b.Go(base + "/plan?" + example)
	require.Equal(t, "none", Eval[string](b, `getComputedStyle(document.querySelector(".progress"), "::after").animationName`))
	clean(t, b, base)
}
