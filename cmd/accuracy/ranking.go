package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"memplan/internal/catalog"
	"memplan/internal/planner"
	"memplan/internal/wire"
)

// tie is how far apart two measured rates must be for their order to count:
// one run each, and no spread printed.
const tie = 0.03

// timed is a job whose speed was measured beside others of its group.
type timed struct {
	ID    string          `json:"id"`
	Group string          `json:"group"`
	Job   json.RawMessage `json:"job"`
	Rate  struct {
		Value float64 `json:"value"` // higher is faster, one unit in a group
	} `json:"rate"`

	predicted float64
	mfu       float64
	err       error
}

// ranked is the agreement within a group.
type ranked struct {
	group           string
	rows, answered  int
	pairs, agreeing int
	tau             float64
}

// rankings compares predicted with measured orders in CORPUS/throughput.jsonl.
func rankings(w io.Writer, folder string, every bool) error {
	rows, err := readTimed(filepath.Join(folder, "throughput.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := predict(rows); err != nil {
		return err
	}
	groups := map[string][]*timed{}
	for _, r := range rows {
		groups[r.Group] = append(groups[r.Group], r)
	}
	var all []ranked
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		all = append(all, rank(name, groups[name]))
	}
	printRanking(w, all, rows, every)
	return nil
}

func readTimed(file string) ([]*timed, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var rows []*timed
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		r := &timed{}
		if err := json.Unmarshal(lines.Bytes(), r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		rows = append(rows, r)
	}
	return rows, lines.Err()
}

// predict fills in the predicted rate of each row: tokens or samples a second
// and card.
func predict(rows []*timed) error {
	tables, err := catalog.Open()
	if err != nil {
		return err
	}
	p := planner.New(planner.Config{Catalog: tables})
	for _, r := range rows {
		job, err := wire.DecodeJSON(r.Job)
		if err != nil {
			r.err = err
			continue
		}
		step, err := p.Throughput(context.Background(), job)
		if err != nil {
			r.err = err
			continue
		}
		r.predicted = step.Rate() * step.Length / step.Ranks
		r.mfu = step.MFU()
	}
	return nil
}

// rank is Kendall's tau over the pairs of a group whose measured rates differ.
func rank(name string, rows []*timed) ranked {
	g := ranked{group: name, rows: len(rows)}
	var ready []*timed
	for _, r := range rows {
		if r.err == nil {
			ready = append(ready, r)
		}
	}
	g.answered = len(ready)
	discordant := 0
	for i, a := range ready {
		for _, b := range ready[i+1:] {
			if math.Abs(a.Rate.Value-b.Rate.Value) <= tie*math.Max(a.Rate.Value, b.Rate.Value) {
				continue
			}
			g.pairs++
			switch {
			case a.predicted == b.predicted:
			case (a.predicted > b.predicted) == (a.Rate.Value > b.Rate.Value):
				g.agreeing++
			default:
				discordant++
			}
		}
	}
	if g.pairs > 0 {
		g.tau = float64(g.agreeing-discordant) / float64(g.pairs)
	}
	return g
}

func printRanking(w io.Writer, all []ranked, rows []*timed, every bool) {
	var taus []float64
	answered, pairs, agreeing := 0, 0, 0
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nspeed, by groups of variants measured side by side (pairs more than 3 % apart)")
	fmt.Fprintln(t, "\trows\tanswered\tpairs\ttau")
	for _, g := range all {
		answered += g.answered
		if g.rows < 3 || g.pairs == 0 {
			continue
		}
		pairs, agreeing = pairs+g.pairs, agreeing+g.agreeing
		taus = append(taus, g.tau)
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%+.2f\n", g.group, g.rows, g.answered, g.pairs, g.tau)
	}
	t.Flush()
	slices.Sort(taus)
	if every {
		for _, r := range rows {
			if r.err != nil {
				fmt.Fprintf(w, "  %s: %.160v\n", r.ID, r.err)
				continue
			}
			fmt.Fprintf(w, "  %-70s measured %12.1f predicted %12.1f  x%.2f  MFU %.2f\n", r.ID, r.Rate.Value, r.predicted, r.predicted/r.Rate.Value, r.mfu)
		}
	}
	fmt.Fprintf(w, "%d of %d rows answered; %d groups of three or more with a pair; %d of %d pairs in order; median tau %+.2f\n",
		answered, len(rows), len(taus), agreeing, pairs, quantile(taus, 0.5))
}
