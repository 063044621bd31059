package planner

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"memplan/internal/estimator"
	"memplan/internal/fault"
	"memplan/internal/wire"
)

// Sizes of a page.
const (
	defaultPage = 50
	maxPage     = 200
)

// List returns kept estimates, newest first. Without a store the list is empty.
func (p *Planner) List(ctx context.Context, f Filter) (Page, error) {
	q, err := p.query(f)
	if err != nil || p.store == nil {
		return wire.NewPage[Summary](nil, ""), err
	}
	limit := q.Limit
	q.Limit++ // one more tells whether there is another page
	items, err := p.store.ListEstimates(ctx, q)
	if err != nil {
		return Page{}, err
	}
	next := ""
	if len(items) > limit {
		items = items[:limit]
		last := items[limit-1]
		next = cursorOf(Position{last.CreatedAt, last.ID})
	}
	return wire.NewPage(items, next), nil
}

// query checks a filter; every wrong field is reported.
func (p *Planner) query(f Filter) (Query, error) {
	var wrong fault.Fields
	q := Query{Filter: f}
	if f.Limit < 0 || f.Limit > maxPage {
		wrong.Add("limit", f.Limit, fmt.Sprintf("1 to %d", maxPage), strconv.Itoa(max(1, min(f.Limit, maxPage))))
	}
	if f.Limit == 0 {
		q.Limit = defaultPage
	}
	switch f.Verdict {
	case "", estimator.Fits, estimator.Tight, estimator.Exceeds:
	default:
		wrong.Add("verdict", f.Verdict, "fits, tight or exceeds", "")
	}
	if g, err := p.catalog.GPU(f.GPU); f.GPU != "" && err == nil {
		q.GPU = g.Key // a card that is not in the catalogue may be kept under its own name
	}
	if m, ok := p.catalog.Model(f.Model); ok {
		q.Model = m.ID
	}
	if f.Cursor != "" {
		after, err := positionOf(f.Cursor)
		if err != nil {
			wrong.Add("cursor", f.Cursor, "next_cursor of the page before", "")
		}
		q.After = &after
	}
	return q, wrong.Err()
}

// cursorOf is a position as the wire carries it: opaque, and without secrets.
func cursorOf(at Position) string {
	text := strconv.FormatInt(at.CreatedAt.UnixMicro(), 10) + "." + at.ID
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

func positionOf(cursor string) (Position, error) {
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return Position{}, err
	}
	micros, id, _ := strings.Cut(string(text), ".")
	n, err := strconv.ParseInt(micros, 10, 64)
	if err != nil || !validIDOf(idPrefix, id) && !validIDOf(runPrefix, id) && !validIDOf(calibrationPrefix, id) && !validIDOf(benchmarkPrefix, id) {
		return Position{}, fmt.Errorf("no position: %q", text)
	}
	return Position{CreatedAt: time.UnixMicro(n).UTC(), ID: id}, nil
}
