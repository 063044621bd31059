package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"memplan/internal/fault"
	"memplan/internal/planner"
)

// Limits of one fetch.
const (
	timeout      = 10 * time.Second
	maxConfig    = 1 << 20
	maxRedirects = 5
)

// Hub is a server that answers {endpoint}/{id}/resolve/{revision}/config.json.
type Hub struct {
	endpoint *url.URL
	token    string
	client   *http.Client
}

var _ planner.Hub = (*Hub)(nil)

// New returns the hub at an endpoint, an http or https URL as $HF_ENDPOINT gives
// it. The token may be empty; it is sent to that endpoint only. A nil client
// stands for one of the package's own.
func New(endpoint, token string, client *http.Client) (*Hub, error) {
	u, err := url.Parse(endpoint)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fault.New(fault.Invalid, "the hub is %q: want http://host or https://host", endpoint)
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fault.New(fault.Invalid, "the hub is https://%s…: want no user, query or fragment in it", u.Host)
	}
	if client == nil {
		client = &http.Client{Timeout: timeout}
	}
	own := *client
	own.CheckRedirect = sameHost
	return &Hub{endpoint: u, token: token, client: &own}, nil
}

// errLeaves stops a redirect that a hub must not make.
var errLeaves = errors.New("redirected to another host")

// sameHost follows redirects within the host and the scheme only: elsewhere the
// answer would be somebody else's, and the network perhaps not the operator's
// to ask.
func sameHost(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	if req.URL.Host != first.Host || req.URL.Scheme != first.Scheme {
		return errLeaves
	}
	if len(via) > maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	return nil
}

// Config fetches a model's config.json, at most 1 MiB of it. The id may carry a
// revision, "owner/name@v1.0"; without one it is main. It fails with
// fault.Invalid for what is no id, fault.NotFound, fault.Forbidden when the hub
// wants a token (which some hubs say of models that do not exist), and
// fault.Unavailable for all else.
func (h *Hub) Config(ctx context.Context, id string) ([]byte, error) {
	path, err := pathOf(id)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.endpoint.JoinPath(path...).String(), nil)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "hub: request", err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "memplan")
	if h.token != "" {
		req.Header.Set("Authorization", "Bearer "+h.token)
	}
	res, err := h.client.Do(req)
	if err != nil {
		return nil, h.unavailable(ctx, err)
	}
	defer res.Body.Close()
	if err := h.statusError(res.StatusCode, id); err != nil {
		return nil, err
	}
	return h.read(ctx, res.Body)
}

// read reads an answer up to the limit.
func (h *Hub) read(ctx context.Context, body io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(body, maxConfig+1))
	if err != nil {
		return nil, h.unavailable(ctx, err)
	}
	if len(text) > maxConfig {
		return nil, fault.New(fault.Unavailable, "the hub %s sent more than 1 MiB as config.json", h.endpoint.Host)
	}
	return text, nil
}

// unavailable is a failure to reach the hub. A caller who gave up is told so.
func (h *Hub) unavailable(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	text := fmt.Sprintf("the hub %s does not answer", h.endpoint.Host)
	if errors.Is(err, errLeaves) {
		text = fmt.Sprintf("the hub %s redirects to another host, which is not followed", h.endpoint.Host)
	}
	return &fault.Error{Op: "hub: fetch", Kind: fault.Unavailable, Text: text, Err: err}
}

// statusError classifies an answer.
func (h *Hub) statusError(status int, id string) error {
	host := h.endpoint.Host
	switch status {
	case http.StatusOK:
		return nil
	case http.StatusNotFound:
		return fault.New(fault.NotFound, "the hub %s has no config.json of %s", host, id)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fault.New(fault.Forbidden, "the hub %s does not give %s to this server", host, id)
	}
	return fault.New(fault.Unavailable, "the hub %s answered %d %s", host, status, http.StatusText(status))
}

// name is one part of a model's id, and revision a branch, a tag or a commit.
// A part that consists of dots only would be a path.
var (
	name     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}$`)
	revision = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._/-]{0,127}$`)
)

// pathOf checks an id and returns the path below the endpoint. A slash within a
// revision is part of its name and is escaped.
func pathOf(id string) ([]string, error) {
	model, rev, given := strings.Cut(id, "@")
	if !given {
		rev = "main"
	}
	parts := strings.Split(model, "/")
	ok := len(parts) <= 2 && revision.MatchString(rev) && !strings.Contains(rev, "..")
	for _, p := range parts {
		ok = ok && name.MatchString(p) && !strings.Contains(p, "..")
	}
	if !ok {
		return nil, fault.Fields{{Path: "model.id", Got: id, Want: "owner/name or name, with @revision if you like, of letters, digits, dots, dashes and underscores"}}
	}
	return append(parts, "resolve", url.PathEscape(rev), "config.json"), nil
}
