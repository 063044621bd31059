package hub_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"memplan/internal/fault"
	"memplan/internal/hub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a hub with one handler and returns its client.
func serve(t *testing.T, token string, handler http.HandlerFunc) *hub.Hub {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	h, err := hub.New(server.URL+"/api/", token, server.Client())
	require.NoError(t, err)
	return h
}

func TestConfigAsksForTheFile(t *testing.T) {
	for _, test := range []struct {
		name, id, path string
	}{
		{"owner and name", "meta-llama/Llama-3.1-8B", "/api/meta-llama/Llama-3.1-8B/resolve/main/config.json"},
		{"bare name", "gpt2", "/api/gpt2/resolve/main/config.json"},
		{"revision", "owner/name@v1.0", "/api/owner/name/resolve/v1.0/config.json"},
		{"revision with a slash", "owner/name@refs/pr/1", "/api/owner/name/resolve/refs%2Fpr%2F1/config.json"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var asked, auth string
			h := serve(t, "secret", func(w http.ResponseWriter, r *http.Request) {
				asked, auth = r.URL.EscapedPath(), r.Header.Get("Authorization")
				_, _ = w.Write([]byte(`{"model_type":"llama"}`))
			})
			got, err := h.Config(t.Context(), test.id)
			require.NoError(t, err)
			require.Equal(t, `{"model_type":"llama"}`, string(got))
			require.Equal(t, test.path, asked)
			require.Equal(t, "Bearer secret", auth)
		})
	}
}

func TestConfigWithoutTokenSendsNone(t *testing.T) {
	h := serve(t, "", func(w http.ResponseWriter, r *http.Request) {
		_, sent := r.Header["Authorization"]
		if sent {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	_, err := h.Config(t.Context(), "gpt2")
	require.NoError(t, err)
}

func TestConfigRefusesWhatIsNoID(t *testing.T) {
	h := serve(t, "", func(http.ResponseWriter, *http.Request) { t.Error("the hub was asked") })
	for _, id := range []string{
		"", "/", "a/", "/a", "a/b/c", "../a", "a/..", "a/b@..", "a/b@../../x", "a/b@", "a/b@x/../y", ".hidden", "a b", "a/b?x=1",
		"a/b#x", "a/%2e%2e", "http://evil/a", "a/b@main@x", "a\x00", "a/b\n", strings.Repeat("a", 97), "模型",
	} {
		_, err := h.Config(t.Context(), id)
		fields := fault.FieldsOf(err)
		require.Len(t, fields, 1, "%q", id)
		require.Equal(t, "model.id", fields[0].Path)
		require.Equal(t, id, fields[0].Got)
	}
}

// Whatever the id, the hub is asked for a file of a model below its own path,
// or not at all.
func TestConfigStaysBelowTheEndpoint(t *testing.T) {
	var asked string
	h := serve(t, "", func(_ http.ResponseWriter, r *http.Request) { asked = r.URL.Path })
	rapid.Check(t, func(t *rapid.T) {
		asked = ""
		id := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a./%@A-Z_-]{1,12}`)).Draw(t, "id")
		if _, err := h.Config(context.Background(), id); err != nil {
			return
		}
		if !strings.HasPrefix(asked, "/api/") || !strings.HasSuffix(asked, "/config.json") || strings.Contains(asked, "..") {
			t.Fatalf("%q asked for %q", id, asked)
		}
	})
}

func TestConfigClassifiesAnswers(t *testing.T) {
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		want    fault.Kind
		text    string
	}{
		{"missing", status(404), fault.NotFound, "no config.json of owner/name"},
		{"no token", status(401), fault.Forbidden, "does not give"},
		{"gated", status(403), fault.Forbidden, "does not give"},
		{"too many requests", status(429), fault.Unavailable, "429"},
		{"broken", status(500), fault.Unavailable, "500"},
		{"no content", status(204), fault.Unavailable, "204"},
		{"too large", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, 1<<20+1))
		}, fault.Unavailable, "1 MiB"},
		{"another host", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/config.json", http.StatusFound)
		}, fault.Unavailable, "another host"},
		{"another port", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/config.json", http.StatusFound)
		}, fault.Unavailable, "another host"},
		{"another scheme", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://"+r.Host+"/config.json", http.StatusFound)
		}, fault.Unavailable, "another host"},
		{"in a circle", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
		}, fault.Unavailable, "does not answer"},
		{"breaks off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("{"))
		}, fault.Unavailable, "does not answer"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := serve(t, "", test.handler).Config(t.Context(), "owner/name")
			require.Equal(t, test.want, fault.KindOf(err), "%v", err)
			var e *fault.Error
			require.ErrorAs(t, err, &e)
			require.Contains(t, e.Text, test.text, "the text is for the user")
		})
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func TestConfigFollowsWithinTheHost(t *testing.T) {
	h := serve(t, "", func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/config.json") {
			http.Redirect(w, r, "/moved", http.StatusTemporaryRedirect)
			return
		}
		_, _ = w.Write([]byte("{}"))
	})
	got, err := h.Config(t.Context(), "gpt2")
	require.NoError(t, err)
	require.Equal(t, "{}", string(got))
}

func TestConfigReadsUpToTheLimit(t *testing.T) {
	h := serve(t, "", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	got, err := h.Config(t.Context(), "gpt2")
	require.NoError(t, err)
	require.Len(t, got, 1<<20)
}

func TestConfigEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := serve(t, "", func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	_, err := h.Config(ctx, "gpt2")
	require.ErrorIs(t, err, context.Canceled)
}

func TestConfigOfNoServer(t *testing.T) {
	h, err := hub.New("http://127.0.0.1:1", "", nil)
	require.NoError(t, err)
	_, err = h.Config(t.Context(), "gpt2")
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
}

func TestNewRefuses(t *testing.T) {
	for _, endpoint := range []string{"", "hub.example", "ftp://hub.example", "file:///etc", "http://", "https://u:p@hub.example", "https://hub.example?x=1", "https://hub.example#x", "http://[::1"} {
		_, err := hub.New(endpoint, "", nil)
		require.Equal(t, fault.Invalid, fault.KindOf(err), endpoint)
		if err != nil {
			require.NotContains(t, err.Error(), "u:p@", "no secret in the text")
		}
	}
}
