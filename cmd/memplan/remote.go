package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/recommend"
	"memplan/internal/snapshot"
	"memplan/internal/wire"
)

// backend answers the command: a planner in this process, or a server.
type backend interface {
	Estimate(ctx context.Context, job spec.Job) (*estimator.Estimate, error)
	Check(ctx context.Context, job spec.Job) (planner.Check, error)
	Fits(ctx context.Context, job spec.Job, gpus []string) ([]planner.Fit, error)
	Colocate(ctx context.Context, jobs []spec.Job) (*planner.Colocation, error)
	Recommend(ctx context.Context, asked planner.Advice, progress func(recommend.Progress)) (*recommend.Recommendation, error)
	WriteTrace(ctx context.Context, job spec.Job, format snapshot.Format, w io.Writer) error
	Models(ctx context.Context, query string, limit int) ([]catalog.Model, error)
	GPUs(ctx context.Context) ([]catalog.GPU, error)
	AllWrong(ctx context.Context, job spec.Job, found error) error
	Record(ctx context.Context, job spec.Job, files []planner.MeasuredFile) (planner.ReportedRun, error)
}

// local is a planner in this process, without a store.
type local struct{ *planner.Planner }

// Models searches the embedded catalogue.
func (l local) Models(_ context.Context, query string, limit int) ([]catalog.Model, error) {
	return l.Planner.Models(query, limit), nil
}

// GPUs lists the embedded catalogue.
func (l local) GPUs(context.Context) ([]catalog.GPU, error) { return l.Planner.GPUs(), nil }

// remote is a server's REST interface.
type remote struct {
	base   string // http://host:port/api/v1
	client *http.Client
}

// maxAnswer is the most bytes read of an answer.
const maxAnswer = 64 << 20

// newRemote returns the interface of the server at an address as people write
// it: with or without a scheme.
func newRemote(server string) remote {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	return remote{base: strings.TrimRight(server, "/") + "/api/v1", client: &http.Client{Timeout: time.Minute}}
}

// Estimate asks for an estimate that the server does not keep.
func (r remote) Estimate(ctx context.Context, job spec.Job) (*estimator.Estimate, error) {
	var est estimator.Estimate
	return &est, r.post(ctx, "/estimates?save=false", job, &est)
}

// Check asks whether the job may start.
func (r remote) Check(ctx context.Context, job spec.Job) (planner.Check, error) {
	var c planner.Check
	return c, r.post(ctx, "/checks", job, &c)
}

// Fits asks for the largest micro batches.
func (r remote) Fits(ctx context.Context, job spec.Job, gpus []string) ([]planner.Fit, error) {
	var answer struct {
		Items []struct {
			planner.Fit
			Problem *problem `json:"problem"`
		} `json:"items"`
	}
	err := r.post(ctx, "/fits?"+url.Values{"gpu": gpus}.Encode(), job, &answer)
	var fits []planner.Fit
	for _, item := range answer.Items {
		if item.Problem != nil {
			item.Err = item.Problem.fault(item.Problem.Status)
		}
		fits = append(fits, item.Fit)
	}
	return fits, err
}

// Colocate asks whether jobs fit on a card together.
func (r remote) Colocate(ctx context.Context, jobs []spec.Job) (*planner.Colocation, error) {
	list := make([]json.RawMessage, len(jobs))
	for i, job := range jobs {
		text, err := wire.Encode(job)
		if err != nil {
			return nil, err
		}
		list[i] = text
	}
	body, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	req, err := r.request(ctx, http.MethodPost, "/colocations", body)
	if err != nil {
		return nil, err
	}
	var answer planner.Colocation
	return &answer, r.do(req, &answer)
}

// Recommend asks what to change. The server tells no progress this way.
func (r remote) Recommend(ctx context.Context, a planner.Advice, _ func(recommend.Progress)) (*recommend.Recommendation, error) {
	job, err := wire.Encode(a.Job)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(struct {
		wire.Advice
		Job json.RawMessage `json:"job"`
	}{a.Wire(), job})
	if err != nil {
		return nil, err
	}
	req, err := r.request(ctx, http.MethodPost, "/recommendations", body)
	if err != nil {
		return nil, err
	}
	var answer recommend.Recommendation
	return &answer, r.do(req, &answer)
}

// AllWrong leaves a job that is wrong here as it is: the server is not asked.
func (r remote) AllWrong(_ context.Context, _ spec.Job, found error) error { return found }

// Models searches the server's catalogue.
func (r remote) Models(ctx context.Context, query string, limit int) ([]catalog.Model, error) {
	var answer struct {
		Items []catalog.Model `json:"items"`
	}
	err := r.get(ctx, "/models?"+url.Values{"q": {query}, "limit": {strconv.Itoa(limit)}}.Encode(), &answer)
	return answer.Items, err
}

// GPUs lists the server's catalogue.
func (r remote) GPUs(ctx context.Context) ([]catalog.GPU, error) {
	var answer struct {
		Items []catalog.GPU `json:"items"`
	}
	return answer.Items, r.get(ctx, "/gpus", &answer)
}

func (r remote) post(ctx context.Context, path string, job spec.Job, into any) error {
	body, err := wire.Encode(job)
	if err != nil {
		return err
	}
	req, err := r.request(ctx, http.MethodPost, path, body)
	if err != nil {
		return err
	}
	return r.do(req, into)
}

func (r remote) get(ctx context.Context, path string, into any) error {
	req, err := r.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	return r.do(req, into)
}

// request is a request with a body in JSON, or none.
func (r remote) request(ctx context.Context, method, path string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fault.New(fault.Invalid, "--server: %v", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// do sends a request and reads its answer. Whatever does not speak the
// interface counts as a server that cannot be reached.
func (r remote) do(req *http.Request, into any) error {
	res, err := r.client.Do(req)
	if err != nil {
		return &fault.Error{Kind: fault.Unavailable, Op: "ask the server", Err: err}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return &fault.Error{Kind: fault.Unavailable, Op: "read the server's answer", Err: err}
	}
	if res.StatusCode/100 == 2 {
		if err := json.Unmarshal(body, into); err != nil {
			return &fault.Error{Kind: fault.Unavailable, Op: "read the server's answer", Err: err}
		}
		return nil
	}
	return refusal(res.StatusCode, body)
}

// refusal is what an answer other than success says.
func refusal(status int, body []byte) error {
	var p problem
	_ = json.Unmarshal(body, &p) // what is no problem document has no detail, only a status
	return p.fault(status)
}

// problem is the server's description of a failure.
type problem struct {
	Status    int           `json:"status"`
	Title     string        `json:"title"`
	Detail    string        `json:"detail"`
	RequestID string        `json:"request_id"`
	Errors    []fault.Field `json:"errors"`
}

// fault turns a problem into the error that a planner here would have given.
func (p *problem) fault(status int) error {
	if status == http.StatusUnprocessableEntity && len(p.Errors) > 0 {
		return fault.Fields(p.Errors)
	}
	kind := fault.Unavailable
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusUnsupportedMediaType:
		kind = fault.Invalid
	case http.StatusRequestEntityTooLarge:
		kind = fault.TooLarge
	case http.StatusForbidden, http.StatusUnauthorized:
		kind = fault.Forbidden
	}
	why := cmp.Or(p.Detail, p.Title, http.StatusText(status))
	if p.RequestID != "" {
		why += " (request " + p.RequestID + ")"
	}
	return fault.New(kind, "the server answered %d: %s", status, why)
}
