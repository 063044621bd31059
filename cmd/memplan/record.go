package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/snapshot"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// recordCommand reports what a job really took.
type recordCommand struct {
	targeted
	Measured []string `arg:"" placeholder:"FILE" help:"What measured it: a memory snapshot, memory_stats, an out-of-memory message, samples of nvidia-smi; - reads standard input."`
}

// Help lists what is read.
func (c *recordCommand) Help() string {
	return "Reads " + strings.Join(snapshot.Kinds(), "; ") + ".\n\n" +
		"With --server the run is kept there and feeds its calibrations; without, it is only laid beside the prediction."
}

// Run reports the run and prints it beside the prediction.
func (c *recordCommand) Run(s *session) error {
	job, err := c.read(s)
	if err != nil {
		return err
	}
	files := make([]planner.MeasuredFile, len(c.Measured))
	for i, name := range c.Measured {
		files[i].Name = filepath.Base(name)
		if name == "-" {
			files[i].Data, err = io.ReadAll(s.stdin)
		} else {
			files[i].Data, err = os.ReadFile(name)
		}
		if err != nil {
			return &fault.Error{Kind: fault.Invalid, Op: "read what was measured", Err: err}
		}
	}
	r, err := s.back.Record(s.ctx, job, files)
	if err != nil {
		return err
	}
	if s.json {
		return s.printJSON(r)
	}
	return s.printRun(r)
}

// Record compares the run with the prediction, here, where nothing is kept.
func (l local) Record(ctx context.Context, job spec.Job, files []planner.MeasuredFile) (planner.ReportedRun, error) {
	return l.CompareFiles(ctx, job, files)
}

// Record keeps the run at the server, and reads it back whole.
func (r remote) Record(ctx context.Context, job spec.Job, files []planner.MeasuredFile) (planner.ReportedRun, error) {
	text, err := wire.Encode(job)
	if err != nil {
		return planner.ReportedRun{}, err
	}
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	_ = form.WriteField("job", string(text)) // a buffer takes everything
	for _, f := range files {
		part, err := form.CreateFormFile("measured", f.Name)
		if err != nil {
			return planner.ReportedRun{}, err
		}
		_, _ = part.Write(f.Data)
	}
	_ = form.Close()
	req, err := r.request(ctx, http.MethodPost, "/runs", body.Bytes())
	if err != nil {
		return planner.ReportedRun{}, err
	}
	req.Header.Set("Content-Type", form.FormDataContentType())
	var kept []struct {
		ID string `json:"id"`
	}
	if err := r.do(req, &kept); err != nil {
		return planner.ReportedRun{}, err
	}
	if len(kept) != 1 {
		return planner.ReportedRun{}, fault.New(fault.Unavailable, "the server kept %d runs, not one", len(kept))
	}
	var run planner.ReportedRun
	return run, r.get(ctx, "/runs/"+kept[0].ID, &run)
}

// printRun writes what was measured beside what was predicted.
func (s *session) printRun(r planner.ReportedRun) error {
	p := &printer{w: s.stdout}
	if r.ID != "" {
		p.line("Kept as %s.", r.ID)
	}
	p.table("\tMEASURED GiB\tPREDICTED GiB\tERROR", func(row func(...any)) {
		for _, m := range r.Measured {
			predicted := "-"
			off := "-"
			if b := predictedOf(r.Predicted, m.Metric); b > 0 {
				predicted = gib(b)
				if m.Relation == "equals" {
					off = fmt.Sprintf("%+.2f %%", 100*(float64(b)/float64(m.Bytes)-1))
				}
			}
			row(m.Metric, map[string]string{"more_than": "> ", "at_most": "≤ "}[m.Relation]+gib(m.Bytes), predicted, off)
		}
	})
	if len(r.Compared) > 0 {
		p.line("")
		p.table("AT THE PEAK\tMEASURED GiB\tPREDICTED GiB", func(row func(...any)) {
			for _, c := range r.Compared {
				row(c.Category, gib(c.Measured), gib(c.Predicted))
			}
		})
	}
	if r.Flagged != nil {
		p.line("\nIt feeds no calibration: %s.", *r.Flagged)
	}
	return p.err
}

// predictedOf is what was predicted of a metric, 0 for nothing.
func predictedOf(p *planner.Predicted, metric string) units.Bytes {
	if p == nil {
		return 0
	}
	return map[string]units.Bytes{"allocated": p.Allocated, "reserved": p.Reserved, "process": p.Process}[metric]
}
