package planner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"memplan/internal/estimator"
	"memplan/internal/fault"
	"memplan/internal/snapshot"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// MaxRuns is the most runs that one request may report.
const MaxRuns = 1000

// runPrefix marks the id of a kept run.
const runPrefix = "run_"

// ReportedRun is a measured run as it is kept: with what was predicted for its
// job when it was reported, and why it is not fitted.
type ReportedRun struct {
	wire.Run
	CreatedAt   time.Time          `json:"created_at"`
	Flagged     *string            `json:"flagged"`
	Predicted   *Predicted         `json:"predicted"`
	Verdict     estimator.Verdict  `json:"verdict,omitempty"`
	Calibration string             `json:"calibration,omitempty"` // of the prediction
	Compared    []ComparedCategory `json:"compared,omitempty"`    // with a snapshot: at its peak and at ours
}

// Predicted is what an answer says of what can be measured.
type Predicted struct {
	Allocated units.Bytes `json:"allocated_bytes"`
	Reserved  units.Bytes `json:"reserved_bytes"`
	Process   units.Bytes `json:"process_bytes"`
	Low       units.Bytes `json:"process_low_bytes"`
	High      units.Bytes `json:"process_high_bytes"`
}

// ComparedCategory is one category of a breakdown beside what a memory snapshot
// held of it.
type ComparedCategory struct {
	Category  string      `json:"category"`
	Measured  units.Bytes `json:"measured_bytes"`
	Predicted units.Bytes `json:"predicted_bytes"`
}

// ReportRuns keeps measured runs, each with its prediction. What is wildly off,
// contradicts itself, or is of a job that the engine does not model is kept and
// flagged: it feeds no fit. With a key the same request is kept once.
func (p *Planner) ReportRuns(ctx context.Context, runs []wire.Run, key string) ([]ReportedRun, error) {
	all := make([]measuredRun, len(runs))
	for i, r := range runs {
		all[i] = measuredRun{Run: r}
	}
	return p.reportAll(ctx, all, key)
}

// measuredRun is a run, with what a memory snapshot held at its peak.
type measuredRun struct {
	wire.Run
	shares []snapshot.Share
}

func (p *Planner) reportAll(ctx context.Context, runs []measuredRun, key string) ([]ReportedRun, error) {
	if p.store == nil {
		return nil, errNothingKept
	}
	if len(runs) > MaxRuns {
		return nil, fault.New(fault.TooLarge, "%d runs in one request: at most %d", len(runs), MaxRuns)
	}
	reported := make([]ReportedRun, len(runs))
	records := make([]RunRecord, len(runs))
	errs := make([]error, len(runs))
	each(len(runs), func(i int) { reported[i], records[i], errs[i] = p.report(ctx, runs[i]) })
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	name, err := keyFor(key, runs)
	if err != nil {
		return nil, err
	}
	ids, err := p.store.SaveRuns(ctx, records, name)
	if err != nil {
		return nil, err
	}
	for i, id := range ids {
		if id != reported[i].ID { // kept by the same request before
			if reported[i], err = p.Run(ctx, id); err != nil {
				return nil, err
			}
		}
	}
	return reported, nil
}

// keyFor is an idempotency key for a request.
func keyFor(name string, request any) (Key, error) {
	if name == "" {
		return Key{}, nil
	}
	text, err := json.Marshal(request)
	if err != nil {
		return Key{}, fault.Wrap(fault.Internal, "planner: encode request", err)
	}
	sum := sha256.Sum256(text)
	return Key{Name: name, Hash: hex.EncodeToString(sum[:])}, nil
}

// report predicts a run and makes its record.
func (p *Planner) report(ctx context.Context, measured measuredRun) (ReportedRun, RunRecord, error) {
	run := measured.Run
	r := ReportedRun{Run: run, CreatedAt: p.now().UTC().Truncate(time.Microsecond)}
	r.ID = newIDOf(runPrefix)
	if r.Source == "" {
		r.Source = "reported"
	}
	reason, est, err := p.judgeRun(ctx, run)
	if err != nil {
		return r, RunRecord{}, err
	}
	if reason != "" {
		r.Flagged = &reason
	}
	record := RunRecord{ID: r.ID, CreatedAt: r.CreatedAt, GPU: run.Job.Target.GPU, Flagged: reason, Model: p.modelName(run.Job.Model)}
	record.Framework = softwareOf(run.Job.Runtime, p.newestTorch())
	if g, err := p.catalog.GPU(run.Job.Target.GPU); err == nil {
		record.GPU, record.Architecture = g.Key, g.Arch
	}
	if est != nil {
		i := est.Peak.ProcessInterval
		r.Predicted = &Predicted{est.Peak.Allocated, est.Peak.Reserved, est.Peak.Process, i.Low, i.High}
		r.Verdict, r.Calibration = est.Target.Verdict, est.Peak.Interval.Source
		r.Compared = compare(measured.shares, est.Breakdown)
		record.GPU = est.Target.GPU
	}
	record.Search = fmt.Sprintf("%s\n%s\n%s\n%s", run.Job.Name, record.Model, record.GPU, r.Source)
	record.Document, err = json.Marshal(r)
	return r, record, fault.Wrap(fault.Internal, "planner: encode run", err)
}

// Run returns a kept run, or fault.NotFound.
func (p *Planner) Run(ctx context.Context, id string) (ReportedRun, error) {
	if p.store == nil || !validIDOf(runPrefix, id) {
		return ReportedRun{}, fault.New(fault.NotFound, "no run %q is kept here", id)
	}
	r, err := p.store.LoadRun(ctx, id)
	if err != nil {
		return ReportedRun{}, err
	}
	return decodeRun(r)
}

func decodeRun(r RunRecord) (ReportedRun, error) {
	var x ReportedRun
	err := json.Unmarshal(r.Document, &x)
	return x, fault.Wrap(fault.Internal, "planner: decode run "+r.ID, err)
}

// Runs returns kept runs, newest first. Without a store the list is empty.
func (p *Planner) Runs(ctx context.Context, f RunFilter) (wire.Page[ReportedRun], error) {
	q, err := p.runQuery(f)
	if err != nil || p.store == nil {
		return wire.NewPage[ReportedRun](nil, ""), err
	}
	limit := q.Limit
	q.Limit++
	records, err := p.store.ListRuns(ctx, q)
	if err != nil {
		return wire.Page[ReportedRun]{}, err
	}
	next := ""
	if len(records) > limit {
		records = records[:limit]
		next = cursorOf(Position{records[limit-1].CreatedAt, records[limit-1].ID})
	}
	var items []ReportedRun
	for _, r := range records {
		x, err := decodeRun(r)
		if err != nil {
			return wire.Page[ReportedRun]{}, err
		}
		items = append(items, x)
	}
	return wire.NewPage(items, next), nil
}

// runQuery checks a filter; every wrong field is reported.
func (p *Planner) runQuery(f RunFilter) (RunQuery, error) {
	q := RunQuery{RunFilter: f}
	after, limit, wrong := paging(f.Limit, f.Cursor)
	q.After, q.Limit = after, limit
	switch f.Flagged {
	case "", "true", "false":
	default:
		wrong.Add("flagged", f.Flagged, "true or false", "")
	}
	if g, err := p.catalog.GPU(f.GPU); f.GPU != "" && err == nil {
		q.GPU = g.Key
	}
	if m, ok := p.catalog.Model(f.Model); ok {
		q.Model = m.ID
	}
	return q, wrong.Err()
}

// paging reads the limit and the cursor of a list.
func paging(limit int, cursor string) (after *Position, size int, wrong fault.Fields) {
	if limit < 0 || limit > maxPage {
		wrong.Add("limit", limit, fmt.Sprintf("1 to %d", maxPage), fmt.Sprint(max(1, min(limit, maxPage))))
	}
	if limit == 0 {
		limit = defaultPage
	}
	if cursor != "" {
		at, err := positionOf(cursor)
		if err != nil {
			wrong.Add("cursor", cursor, "next_cursor of the page before", "")
		}
		after = &at
	}
	return after, limit, wrong
}

// newestTorch is the version taken where a job names none.
func (p *Planner) newestTorch() string { return p.catalog.DefaultVersions()["torch"] }
