package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"memplan/internal/fault"
	"memplan/internal/obs"
	"memplan/internal/wire"
)

// problemType is the media type of every failure.
const problemType = "application/problem+json"

// statuses maps the kinds of failure to HTTP: the one place that does.
var statuses = [...]struct {
	code int
	text string // shown when the error carries no text for users
}{
	fault.Internal:    {http.StatusInternalServerError, "Something failed here. The log has the reason under this request id."},
	fault.Invalid:     {http.StatusUnprocessableEntity, "The input is not valid; every wrong field is listed."},
	fault.NotFound:    {http.StatusNotFound, "There is nothing under this name."},
	fault.Conflict:    {http.StatusConflict, "The request contradicts the present state."},
	fault.Forbidden:   {http.StatusForbidden, "This is not allowed."},
	fault.Unavailable: {http.StatusServiceUnavailable, "Something this needs cannot be reached just now."},
	fault.TooLarge:    {http.StatusRequestEntityTooLarge, "The input is over a limit."},
}

// Problem is the body of a failure: RFC 9457, and one entry for every wrong
// field.
type Problem struct {
	Type      string         `json:"type" doc:"The kind of failure, urn:memplan:problem:KIND, or about:blank."`
	Title     string         `json:"title" doc:"The HTTP status in words."`
	Status    int            `json:"status" doc:"The HTTP status."`
	Detail    string         `json:"detail,omitempty" doc:"What was wrong this time, fit to be shown."`
	RequestID string         `json:"request_id,omitempty" doc:"Names the request in the server's log."`
	Errors    []FieldProblem `json:"errors,omitempty" doc:"Every invalid field, at once."`
}

// FieldProblem is one wrong value of a request.
type FieldProblem struct {
	Location string `json:"location" doc:"Where it stood: body, query, header or path, a dot, and the path." example:"body.training.micro_batch_size"`
	Position string `json:"position,omitempty" doc:"Where in the text of the body, when that is known." example:"line 3, column 5"`
	Path     string `json:"path" doc:"The field, as the job's format names it." example:"training.micro_batch_size"`
	Got      string `json:"got,omitempty" doc:"What was there."`
	Want     string `json:"want" doc:"What may stand there, in words."`
	Nearest  string `json:"nearest,omitempty" doc:"A valid value to use instead."`
}

// Error makes a Problem something a huma handler may return.
func (p *Problem) Error() string { return p.Detail }

// GetStatus tells huma the status to answer with.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType tells huma the media type to answer with.
func (p *Problem) ContentType(string) string { return problemType }

// fieldProblems lists the wrong fields of a body.
func fieldProblems(err error) []FieldProblem {
	var read *wire.Invalid
	errors.As(err, &read)
	var out []FieldProblem
	for i, f := range fault.FieldsOf(err) {
		p := FieldProblem{Location: strings.TrimSuffix("body."+f.Path, "."), Path: f.Path, Got: f.Got, Want: f.Want, Nearest: f.Nearest}
		if read != nil {
			p.Position = read.Location(i)
		}
		out = append(out, p)
	}
	return out
}

// inQuery moves a problem's fields from the body to the query.
func inQuery(p *Problem) *Problem {
	for i := range p.Errors {
		p.Errors[i].Location = "query." + p.Errors[i].Path
	}
	return p
}

// newProblem is a Problem without a kind of its own, as HTTP itself makes them.
func newProblem(ctx context.Context, status int, detail string) *Problem {
	return &Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status,
		Detail: detail, RequestID: obs.RequestID(ctx),
	}
}

// problemOf turns an error of the planner or the decoder into its Problem. What
// users must not see goes to the log, with the request's id.
func (s *server) problemOf(ctx context.Context, err error) *Problem {
	var ready *Problem
	if errors.As(err, &ready) {
		return ready
	}
	kind := fault.KindOf(err)
	p := newProblem(ctx, statuses[kind].code, statuses[kind].text)
	p.Type = "urn:memplan:problem:" + kind.String()
	var classified *fault.Error
	if errors.As(err, &classified) && kind != fault.Internal {
		p.Detail = cmp.Or(classified.Text, p.Detail)
	}
	p.Errors = fieldProblems(err)
	if p.Status >= http.StatusInternalServerError && ctx.Err() == nil {
		s.log.LogAttrs(ctx, slog.LevelError, "failed", slog.String("id", p.RequestID), slog.String("error", err.Error()))
	}
	return p
}

// transform replaces huma's own errors, such as those about parameters, by a
// Problem. Their echoes of what was sent are cut short.
func (s *server) transform(ctx huma.Context, _ string, v any) (any, error) {
	m, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	p := newProblem(ctx.Context(), m.Status, m.Detail)
	if m.Status >= http.StatusInternalServerError {
		s.log.LogAttrs(ctx.Context(), slog.LevelError, "failed", slog.String("id", p.RequestID), slog.String("error", errorText(m)))
		p.Detail = statuses[fault.Internal].text
		return p, nil
	}
	for _, e := range m.Errors {
		_, path, _ := strings.Cut(e.Location, ".")
		p.Errors = append(p.Errors, FieldProblem{Location: e.Location, Path: path, Got: short(e.Value), Want: e.Message})
	}
	return p, nil
}

// errorText is everything huma knows of a failure, for the log.
func errorText(m *huma.ErrorModel) string {
	text := m.Detail
	for _, e := range m.Errors {
		text += "; " + e.Error()
	}
	return text
}

// short prints a value a user sent, in at most 80 bytes.
func short(v any) string {
	text, isText := v.(string)
	if !isText && v != nil {
		b, _ := json.Marshal(v) // what was read from text can be written
		text = string(b)
	}
	if len(text) > 80 {
		text = strings.ToValidUTF8(text[:77], "") + "..."
	}
	return text
}

// writeProblem answers with a Problem outside huma's operations.
func writeProblem(w http.ResponseWriter, p *Problem) {
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the reader is gone when this fails
}

// refuse answers every request with one status and sentence.
func refuse(status int, detail string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, newProblem(r.Context(), status, detail))
	}
}
