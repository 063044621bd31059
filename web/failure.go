package web

import (
	"bytes"
	"errors"
	"net/http"
	"strings"

	"github.com/a-h/templ"

	"memplan/internal/fault"
)

// failureText is what a person reads when an error has no text of its own.
var failureText = map[fault.Kind]string{
	fault.Internal:    "Something failed on our side. The request id below finds it in the server's log.",
	fault.Invalid:     "The request is not valid.",
	fault.NotFound:    "There is nothing at this address.",
	fault.Conflict:    "The request contradicts what is already kept.",
	fault.Forbidden:   "This is not allowed.",
	fault.Unavailable: "A service that this needs does not answer just now.",
	fault.TooLarge:    "The request is too large.",
}

// status maps a kind of failure to its HTTP status.
func status(k fault.Kind) int {
	switch k {
	case fault.Invalid:
		return http.StatusUnprocessableEntity
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Conflict:
		return http.StatusConflict
	case fault.Forbidden:
		return http.StatusForbidden
	case fault.Unavailable:
		return http.StatusServiceUnavailable
	case fault.TooLarge:
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusInternalServerError
}

// explain is the sentence for a user: the error's own text, or the kind's.
// Causes never leave the log.
func explain(err error) string {
	var e *fault.Error
	if errors.As(err, &e) && e.Text != "" && e.Kind != fault.Internal {
		return e.Text
	}
	return failureText[fault.KindOf(err)]
}

// explainFields is explain, with what is wrong with each field.
func explainFields(err error) string {
	var words []string
	for _, f := range fault.FieldsOf(err) {
		words = append(words, labelOf(f.Path)+": want "+f.Want)
	}
	if len(words) > 0 {
		return strings.Join(words, "; ") + "."
	}
	return explain(err)
}

// page turns a handler that may fail into one that answers with the error
// page.
func (s *site) page(h func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			s.fail(w, r, err)
		}
	}
}

// fail answers with the error page, or with its box alone where a script asked
// for a part of a page.
func (s *site) fail(w http.ResponseWriter, r *http.Request, err error) {
	id, code := s.report(w, r, err)
	w.Header().Del("HX-Replace-Url")
	body := failurePage(s.chrome("Error", ""), code, explain(err), id)
	if partial(r) {
		w.Header().Set("HX-Reswap", "innerHTML")
		body = failureBox(explain(err), id)
	}
	if rerr := render(w, r, code, body); rerr != nil {
		s.log.ErrorContext(r.Context(), "error page failed", "id", id, "error", rerr)
		http.Error(w, failureText[fault.Internal]+" "+id, http.StatusInternalServerError)
	}
}

// report returns a request's id and the status of its failure. A failure of our
// own is logged whole, under that id.
func (s *site) report(w http.ResponseWriter, r *http.Request, err error) (id string, code int) {
	id, code = w.Header().Get(requestIDHeader), status(fault.KindOf(err))
	if code >= http.StatusInternalServerError {
		s.log.ErrorContext(r.Context(), "page failed", "id", id, "path", r.URL.Path, "error", err)
	}
	return id, code
}

func (s *site) notFound(w http.ResponseWriter, r *http.Request) {
	s.fail(w, r, fault.New(fault.NotFound, "There is no page at %s.", r.URL.Path))
}

// partial reports whether a script asked for a part of a page.
func partial(r *http.Request) bool { return r.Header.Get("HX-Request") == "true" }

// render writes a page or a part of one, once it is complete: a failure while
// rendering leaves the answer unwritten.
func render(w http.ResponseWriter, r *http.Request, code int, c templ.Component) error {
	var b bytes.Buffer
	if err := c.Render(r.Context(), &b); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Add("Vary", "HX-Request")
	w.WriteHeader(code)
	_, err := b.WriteTo(w)
	return err
}
