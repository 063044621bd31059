package web_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"memplan/web"
	"memplan/web/webtest"
)

// page is an answer, parsed.
type page struct {
	t      *testing.T
	Code   int
	Header http.Header
	Body   string
	root   *html.Node
}

// open serves one request by a fresh site.
func open(t *testing.T, p web.Planner, method, target string, header ...string) page {
	t.Helper()
	return serve(t, web.New(web.Config{Planner: p, Version: "0.1.0"}), method, target, nil, header...)
}

func serve(t *testing.T, h http.Handler, method, target string, form url.Values, header ...string) page {
	t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r := httptest.NewRequest(method, target, body)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	root, err := html.Parse(bytes.NewReader(w.Body.Bytes()))
	require.NoError(t, err)
	return page{t: t, Code: w.Code, Header: w.Header(), Body: w.Body.String(), root: root}
}

// all returns the elements that a selector matches: compound selectors
// (tag#id.class[attr=value][attr]) separated by spaces for descendants.
func (p page) all(selector string) []*html.Node {
	parts := strings.Fields(selector)
	var out []*html.Node
	for n := range p.root.Descendants() {
		if n.Type == html.ElementNode && matchesChain(n, parts) {
			out = append(out, n)
		}
	}
	return out
}

func matchesChain(n *html.Node, parts []string) bool {
	last := len(parts) - 1
	if !matches(n, parts[last]) {
		return false
	}
	rest := parts[:last]
	for up := n.Parent; up != nil && len(rest) > 0; up = up.Parent {
		if up.Type == html.ElementNode && matches(up, rest[len(rest)-1]) {
			rest = rest[:len(rest)-1]
		}
	}
	return len(rest) == 0
}

// matches tests one compound selector.
func matches(n *html.Node, compound string) bool {
	tag := strings.IndexAny(compound, "#.[")
	if tag < 0 {
		tag = len(compound)
	}
	if name := compound[:tag]; name != "" && name != n.Data {
		return false
	}
	for rest := compound[tag:]; rest != ""; {
		var one string
		if rest[0] == '[' {
			end := strings.Index(rest, "]")
			one, rest = rest[1:end], rest[end+1:]
			key, want, valued := strings.Cut(one, "=")
			got, there := attribute(n, key)
			if !there || valued && got != strings.Trim(want, `"`) {
				return false
			}
			continue
		}
		end := strings.IndexAny(rest[1:], "#.[") + 1
		if end == 0 {
			end = len(rest)
		}
		one, rest = rest[:end], rest[end:]
		key := map[byte]string{'#': "id", '.': "class"}[one[0]]
		got, _ := attribute(n, key)
		if !hasWord(got, one[1:]) {
			return false
		}
	}
	return true
}

func hasWord(list, word string) bool {
	for w := range strings.FieldsSeq(list) {
		if w == word {
			return true
		}
	}
	return false
}

func attribute(n *html.Node, key string) (string, bool) {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val, true
		}
	}
	return "", false
}

// one is the only element that a selector matches.
func (p page) one(selector string) *html.Node {
	p.t.Helper()
	found := p.all(selector)
	require.Len(p.t, found, 1, "%s in\n%s", selector, clip(p.Body))
	return found[0]
}

// text is the text of the only match, with single spaces.
func (p page) text(selector string) string { return textOf(p.one(selector)) }

func textOf(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
			b.WriteByte(' ')
		}
	}
	return strings.ReplaceAll(strings.Join(strings.Fields(b.String()), " "), " .", ".")
}

// attr is an attribute of the only match.
func (p page) attr(selector, key string) string {
	p.t.Helper()
	v, ok := attribute(p.one(selector), key)
	require.True(p.t, ok, "%s has no %s", selector, key)
	return v
}

func clip(s string) string {
	if len(s) > 4000 {
		return s[:4000] + "…"
	}
	return s
}

func gzipped(t *testing.T, s string) int {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := fmt.Fprint(z, s)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Len()
}

// example is a valid state of the planner.
const example = "m=meta-llama/Llama-3.1-8B&mb=1&seq=2048&gpu=H100-SXM5-80GB"

func planned(t *testing.T, query string, header ...string) page {
	t.Helper()
	return open(t, &webtest.Planner{}, http.MethodGet, "/plan?"+query, header...)
}
