package planner

import (
	"cmp"
	"context"
	"slices"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/snapshot"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// MeasuredFile is what another tool wrote of a run's memory.
type MeasuredFile struct {
	Name string
	Data []byte
}

// ReportFiles keeps one run that is measured by files of other tools: memory
// snapshots, memory_stats, messages of an allocator that ran out, samples. Of a
// snapshot the answer has what it held at its peak beside the prediction.
func (p *Planner) ReportFiles(ctx context.Context, job spec.Job, files []MeasuredFile, key string) (ReportedRun, error) {
	run, err := readFiles(job, files)
	if err != nil {
		return ReportedRun{}, err
	}
	kept, err := p.reportAll(ctx, []measuredRun{run}, key)
	if err != nil {
		return ReportedRun{}, err
	}
	return kept[0], nil
}

// CompareFiles is ReportFiles without keeping anything.
func (p *Planner) CompareFiles(ctx context.Context, job spec.Job, files []MeasuredFile) (ReportedRun, error) {
	run, err := readFiles(job, files)
	if err != nil {
		return ReportedRun{}, err
	}
	r, _, err := p.report(ctx, run)
	r.ID = ""
	return r, err
}

// readFiles makes one run of a job and files.
func readFiles(job spec.Job, files []MeasuredFile) (measuredRun, error) {
	run := measuredRun{Run: wire.Run{Job: job, Tags: []string{}, Measured: []wire.Measurement{}}}
	if len(files) == 0 {
		return run, fault.New(fault.Invalid, "nothing was measured: no file is given")
	}
	for _, f := range files {
		m, err := snapshot.Read(f.Name, f.Data)
		if err != nil {
			return run, err
		}
		for _, x := range m.Figures {
			run.Measured = append(run.Measured, wire.Measurement{
				Metric: x.Metric, Phase: x.Phase, Bytes: x.Bytes, Relation: x.Relation, Rounding: x.Rounding, Method: x.Method,
			})
		}
		run.shares = append(run.shares, m.ByCategory...)
	}
	return run, nil
}

// compare lays what a snapshot held at its peak beside a breakdown, in the
// categories that stacks tell apart; the largest difference first.
func compare(measured []snapshot.Share, predicted []estimator.Share) []ComparedCategory {
	if len(measured) == 0 {
		return nil
	}
	by := map[string]*ComparedCategory{}
	var all []*ComparedCategory
	of := func(category string) *ComparedCategory {
		if by[category] == nil {
			by[category] = &ComparedCategory{Category: category}
			all = append(all, by[category])
		}
		return by[category]
	}
	for _, s := range measured {
		of(s.Category).Measured += s.Bytes
	}
	for _, s := range predicted {
		if c, ok := snapshot.Coarse(s.Category); ok {
			of(c).Predicted += s.Bytes
		}
	}
	off := func(c *ComparedCategory) units.Bytes { return max(c.Measured-c.Predicted, c.Predicted-c.Measured) }
	slices.SortStableFunc(all, func(a, b *ComparedCategory) int { return cmp.Compare(off(b), off(a)) })
	out := make([]ComparedCategory, len(all))
	for i, c := range all {
		out[i] = *c
	}
	return out
}
