package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/planner"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// outcome is one figure of one row beside what was predicted.
type outcome struct {
	row       *row
	metric    string // allocated, reserved, …; with a phase: load/allocated
	measured  units.Bytes
	predicted units.Bytes
	relation  string
}

// relative is the signed relative error.
func (o outcome) relative() float64 {
	return float64(o.predicted-o.measured) / float64(max(o.measured, 1))
}

// row is a measured job with its answer, or why there is none.
type row struct {
	wire.Run
	file     string
	planner  *planner.Planner // that answers it
	estimate *estimator.Estimate
	err      error
}

// source is the row's origin without the path within it: rows of one source
// share its mistakes.
func (r *row) source() string {
	s, _, _ := strings.Cut(r.Source, "@")
	return s
}

// load reads and answers every row of a corpus that has the tag, and
// returns what answers.
func load(folder, tag string) ([]*row, planners, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	if err != nil {
		return nil, planners{}, err
	}
	if len(files) == 0 {
		return nil, planners{}, fmt.Errorf("no *.jsonl in %s", folder)
	}
	c, err := catalog.Open()
	if err != nil {
		return nil, planners{}, err
	}
	p := planners{
		cards:  planner.New(planner.Config{Catalog: c, CacheEntries: -1}),
		driver: planner.New(planner.Config{Catalog: c, CacheEntries: -1, Engine: onDriver}),
	}
	var rows []*row
	for _, f := range files {
		if strings.HasPrefix(filepath.Base(f), "throughput") {
			continue // rows of another shape
		}
		if rows, err = loadFile(rows, p, f, tag); err != nil {
			return nil, planners{}, err
		}
	}
	return rows, p, nil
}

func loadFile(rows []*row, p planners, file, tag string) ([]*row, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		run, err := wire.DecodeRow(lines.Bytes())
		if err != nil {
			return nil, fmt.Errorf("%s line %d: %w", file, n, err)
		}
		r := &row{Run: run, file: filepath.Base(file)}
		if tag != "" && !r.tagged(tag) {
			continue
		}
		r.answer(p.of(run))
		rows = append(rows, r)
	}
	return rows, lines.Err()
}

func (r *row) tagged(tag string) bool {
	for _, t := range r.Tags {
		if t == tag {
			return true
		}
	}
	return false
}

// answer estimates the row's job; a defect that panics is an error of the row.
func (r *row) answer(p *planner.Planner) {
	defer func() {
		if x := recover(); x != nil {
			r.err = fmt.Errorf("panic: %v", x)
		}
	}()
	r.planner = p
	r.estimate, r.err = p.Estimate(context.Background(), r.Job)
}

// outcomes lists the row's comparable figures.
func (r *row) outcomes() []outcome {
	if r.estimate == nil {
		return nil
	}
	var all []outcome
	for _, m := range r.Measured {
		if m.Rank != "" && m.Rank != "0" {
			continue
		}
		predicted, ok := predictedOf(r.estimate, m)
		if n := len(r.estimate.Ranks); n > 1 {
			predicted, ok = ofStage(r.estimate.Ranks, r.RankNote, m)
		}
		if !ok {
			continue
		}
		name := m.Metric
		if m.Phase != "" {
			name = m.Phase + "/" + name
		}
		all = append(all, outcome{row: r, metric: name, measured: m.Bytes, predicted: predicted, relation: m.Relation})
	}
	return all
}

// predictedOf is the answer's figure for a measurement: without a phase the
// larger of first and steady step.
func predictedOf(e *estimator.Estimate, m wire.Measurement) (units.Bytes, bool) {
	best, found := units.Bytes(0), false
	for _, p := range e.Phases {
		if m.Phase == "" && p.Name == "load" || m.Phase != "" && m.Phase != p.Name {
			continue
		}
		if m.Phase == "load" && e.Job.Parallelism.Ranks() > 1 { // measured as what is left of it
			return p.EndAllocated, m.Metric == "allocated"
		}
		v, ok := map[string]units.Bytes{
			"tensor": p.PeakTensor, "requested": p.PeakRequested, "allocated": p.PeakAllocated, "reserved": p.PeakReserved, "process": p.PeakProcess,
		}[m.Metric]
		if ok {
			best, found = max(best, v), true
		}
	}
	if m.Metric == "activations" {
		return e.Peak.Activations, true
	}
	return best, found
}

// ofStage is the figure of the pipeline stage that a row's note on its rank
// names.
func ofStage(ranks []estimator.Rank, note string, m wire.Measurement) (units.Bytes, bool) {
	stage := -1
	if n, err := fmt.Sscanf(note, "pipeline stage %d", &stage); n != 1 || err != nil {
		stage = len(ranks) - 1
		if !strings.Contains(note, "last pipeline stage") {
			return 0, false
		}
	}
	if stage >= len(ranks) || m.Phase != "" {
		return 0, false
	}
	p := ranks[stage].Peak
	v, ok := map[string]units.Bytes{
		"tensor": p.Tensor, "requested": p.Requested, "allocated": p.Allocated, "reserved": p.Reserved, "process": p.Process,
	}[m.Metric]
	return v, ok
}

// quantile is the q-th quantile of sorted values, by linear interpolation.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}
