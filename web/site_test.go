package web_test

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"memplan/internal/wire"
	"memplan/web"
	"memplan/web/webtest"
)

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func pages() []string {
	return []string{"/", "/plan?" + example, "/plan/fits?" + example, "/plan/fixes?" + example, "/docs/method", "/fit", "/fit?goal=fastest_step&" + example, "/fit?goal=fewest_gpus&" + example, "/nowhere"}
}

func TestEveryPageHasTheContentPolicyAndObeysIt(t *testing.T) {
	t.Parallel()
	for _, target := range pages() {
		p := open(t, &webtest.Planner{}, http.MethodGet, target)
		require.Equal(t, policy, p.Header.Get("Content-Security-Policy"), target)
		require.Equal(t, "nosniff", p.Header.Get("X-Content-Type-Options"))
		for n := range p.root.Descendants() {
			if n.Type != html.ElementNode {
				continue
			}
			require.NotEqual(t, "style", n.Data, target)
			for _, a := range n.Attr {
				require.NotEqual(t, "style", a.Key, "%s: inline style on %s", target, n.Data)
				require.False(t, strings.HasPrefix(a.Key, "on") || strings.HasPrefix(a.Key, "hx-on"), "%s: %s", target, a.Key)
				if a.Key == "src" || a.Key == "href" || a.Key == "action" {
					require.False(t, strings.Contains(a.Val, "//"), "%s: %s leads elsewhere", target, a.Val)
				}
			}
		}
	}
}

func TestEveryPageIsNamedAndHasOneHeading(t *testing.T) {
	t.Parallel()
	for _, target := range pages() {
		p := open(t, &webtest.Planner{}, http.MethodGet, target)
		require.Contains(t, p.text("head title"), "memplan")
		require.Len(t, p.all("h1"), 1, target)
		require.Len(t, p.all("main"), 1, target)
		ids := map[string]bool{}
		for _, n := range p.all("[id]") {
			id, _ := attribute(n, "id")
			require.False(t, ids[id], "%s: id %s occurs twice", target, id)
			ids[id] = true
		}
	}
}

func TestNavigationLeadsToPagesThatExist(t *testing.T) {
	t.Parallel()
	p := open(t, &webtest.Planner{}, http.MethodGet, "/")
	for _, a := range append(p.all("header a"), p.all("footer a")...) {
		href, _ := attribute(a, "href")
		if strings.HasPrefix(href, "/") {
			require.Equal(t, http.StatusOK, open(t, &webtest.Planner{}, http.MethodGet, href).Code, href)
		}
	}
}

func TestEveryInputHasALabel(t *testing.T) {
	t.Parallel()
	p := planned(t, example)
	labels := map[string]bool{}
	for _, n := range p.all("label[for]") {
		id, _ := attribute(n, "for")
		labels[id] = true
	}
	for _, tag := range []string{"input", "select", "textarea"} {
		for _, n := range p.all("form#plan-form " + tag) {
			if kind, _ := attribute(n, "type"); kind == "hidden" {
				continue
			}
			id, _ := attribute(n, "id")
			require.True(t, labels[id], "%s %s", tag, id)
			describes, _ := attribute(n, "aria-describedby")
			require.NotEmpty(t, p.all("#"+describes), "the place for its errors exists")
		}
	}
}

// firstLoad is how many bytes a first visit takes, compressed.
func firstLoad(t *testing.T, planner web.Planner) int {
	t.Helper()
	p := open(t, planner, http.MethodGet, "/")
	total := gzipped(t, p.Body)
	for _, n := range append(p.all("link[rel=stylesheet]"), p.all("script[src]")...) {
		address, ok := attribute(n, "href")
		if !ok {
			address, _ = attribute(n, "src")
		}
		total += gzipped(t, open(t, planner, http.MethodGet, address).Body)
	}
	t.Logf("first load: %d bytes compressed", total)
	return total
}

func TestAnswersAreCompressed(t *testing.T) {
	t.Parallel()
	p := open(t, &webtest.Planner{}, http.MethodGet, "/", "Accept-Encoding", "gzip")
	require.Equal(t, "gzip", p.Header.Get("Content-Encoding"))
}

func TestStaticFilesAreKeptForEver(t *testing.T) {
	t.Parallel()
	p := open(t, &webtest.Planner{}, http.MethodGet, "/")
	css := open(t, &webtest.Planner{}, http.MethodGet, p.attr("link[rel=stylesheet]", "href"))
	require.Equal(t, http.StatusOK, css.Code)
	require.Contains(t, css.Header.Get("Cache-Control"), "immutable")
	require.Contains(t, css.Header.Get("Content-Type"), "text/css")
}

func TestVendoredFilesAreTheOnesPinned(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"static/htmx.min.js":      "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
		"e2e/testdata/axe.min.js": "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c",
	} {
		body, err := os.ReadFile(file)
		require.NoError(t, err)
		sum := sha256.Sum256(body)
		require.Equal(t, want, hex.EncodeToString(sum[:]), file)
	}
}

func TestOwnScriptIsShort(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile("static/memplan.js")
	require.NoError(t, err)
	require.LessOrEqual(t, strings.Count(string(body), "\n"), 150)
}

func TestEveryChoiceOfTheFormatIsOffered(t *testing.T) {
	t.Parallel()
	p := open(t, &webtest.Planner{}, http.MethodGet, "/")
	offered := map[string]map[string]bool{}
	for _, n := range p.all("form#plan-form select") {
		name, _ := attribute(n, "name")
		offered[name] = map[string]bool{}
		for o := range n.Descendants() {
			if v, ok := attribute(o, "value"); ok {
				offered[name][v] = true
			}
		}
	}
	for _, f := range wire.Fields() {
		if len(f.Enum) == 0 || f.Path == "version" || strings.Contains(f.Type, "list") || strings.Contains(f.Type, "number or text") {
			continue
		}
		choices := offered[f.Alias]
		if choices == nil {
			choices = offered[f.Path]
		}
		if choices == nil { // the long form of a field that the form asks for in short
			short := f.Path[:strings.LastIndex(f.Path, ".")]
			require.NotNil(t, fieldNamed(short), f.Path)
			choices = offered[fieldNamed(short).Alias]
		}
		for _, v := range f.Enum {
			require.True(t, choices[v], "%s: %s is not offered", f.Path, v)
		}
	}
}

func fieldNamed(path string) *wire.Field {
	for _, f := range wire.Fields() {
		if f.Path == path {
			return &f
		}
	}
	return nil
}

func TestEveryFieldCanBeGiven(t *testing.T) {
	t.Parallel()
	p := open(t, &webtest.Planner{}, http.MethodGet, "/")
	for _, f := range wire.Fields() {
		if f.Path == "version" || f.Path == "name" || f.Path == "labels" || f.Path == "model.parameters" {
			continue
		}
		name := f.Alias
		if name == "" {
			name = f.Path
		}
		if len(p.all(`[name="`+name+`"]`)) == 0 {
			short := fieldNamed(f.Path[:strings.LastIndex(f.Path, ".")])
			require.NotNil(t, short, "%s has no input", f.Path)
		}
	}
}

// Addresses that have no page of their own lead to the one that lists them.
func TestListsLeadToTheirPage(t *testing.T) {
	t.Parallel()
	for from, to := range map[string]string{"/calibrations": "/accuracy", "/benchmarks": "/devices"} {
		p := open(t, &webtest.Planner{}, http.MethodGet, from)
		require.Equal(t, http.StatusSeeOther, p.Code, from)
		require.Equal(t, to, p.Header.Get("Location"))
	}
}
