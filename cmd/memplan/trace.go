package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/snapshot"
	"memplan/internal/wire"
)

// traceCommand writes a job's events.
type traceCommand struct {
	targeted
	Format snapshot.Format `enum:"events,memory_viz,chrome" default:"events" help:"events: JSON, an event a line; memory_viz: a pickle for https://pytorch.org/memory_viz; chrome: for chrome://tracing and https://ui.perfetto.dev."`
	Output string          `short:"o" default:"-" placeholder:"FILE" help:"Where to write it; - is standard output."`
}

// Help says what a server does for it.
func (c *traceCommand) Help() string {
	return "With --server the estimate is kept there, once for the same job: only a kept one can be traced."
}

// Run writes the trace, which is in no file when it failed.
func (c *traceCommand) Run(s *session) error {
	job, err := c.read(s)
	if err != nil {
		return err
	}
	if c.Output == "-" {
		return s.back.WriteTrace(s.ctx, job, c.Format, s.stdout)
	}
	out := &output{path: c.Output}
	if err = s.back.WriteTrace(s.ctx, job, c.Format, out); err == nil {
		err = out.Close()
	}
	if err != nil {
		out.discard()
		return err
	}
	if c.Format == snapshot.MemoryViz {
		fmt.Fprintf(s.stdout, "%s is written: drop it on https://pytorch.org/memory_viz, which keeps it in the browser.\n", c.Output)
	}
	return nil
}

// output is a file that is made when there is something to write: a job that
// is refused leaves an older file as it was.
type output struct {
	path string
	file *os.File
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (n int, err error) {
	if o.file == nil {
		o.file, err = os.Create(o.path)
	}
	if err == nil {
		n, err = o.file.Write(b)
	}
	if err != nil {
		err = &fault.Error{Kind: fault.Invalid, Op: "write the trace", Err: err}
	}
	return n, err
}

// Close ends the file, if one was made.
func (o *output) Close() error {
	if o.file == nil {
		return nil
	}
	return o.file.Close()
}

// discard removes a file that is not whole.
func (o *output) discard() {
	if o.file != nil {
		_ = o.file.Close()
		_ = os.Remove(o.path) // what failed before is what is reported
	}
}

// WriteTrace runs the job here.
func (l local) WriteTrace(ctx context.Context, job spec.Job, format snapshot.Format, w io.Writer) error {
	recording, err := l.TraceJob(ctx, job)
	if err != nil {
		return err
	}
	return snapshot.Write(w, recording, format)
}

// WriteTrace has the server keep the job's estimate, under a key of the job
// itself, and fetches its trace.
func (r remote) WriteTrace(ctx context.Context, job spec.Job, format snapshot.Format, w io.Writer) error {
	body, err := wire.Encode(job)
	if err != nil {
		return err
	}
	req, err := r.request(ctx, http.MethodPost, "/estimates", body)
	if err != nil {
		return err
	}
	key := sha256.Sum256(body)
	req.Header.Set("Idempotency-Key", "trace-"+hex.EncodeToString(key[:]))
	var est estimator.Estimate
	if err := r.do(req, &est); err != nil {
		return err
	}
	path := "/estimates/" + url.PathEscape(est.ID) + "/trace?" + url.Values{"format": {string(format)}}.Encode()
	req, err = r.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	return r.copy(req, w)
}

// copy sends a request and passes its answer on as it comes.
func (r remote) copy(req *http.Request, w io.Writer) error {
	res, err := r.client.Do(req)
	if err != nil {
		return &fault.Error{Kind: fault.Unavailable, Op: "ask the server", Err: err}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer)) // the status says enough
		return refusal(res.StatusCode, body)
	}
	_, err = io.Copy(w, res.Body)
	if err != nil && fault.KindOf(err) == fault.Internal { // not the file's own refusal
		err = &fault.Error{Kind: fault.Unavailable, Op: "read the server's answer", Err: err}
	}
	return err
}
