package store

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"memplan/internal/planner"
)

const runColumns = `id, created_at_us, gpu, architecture, framework, framework_version, model, flagged, document`

// SaveRuns implements planner.MeasuredStore.
func (s *Store) SaveRuns(ctx context.Context, runs []planner.RunRecord, key planner.Key) ([]string, error) {
	ids := make([]string, len(runs))
	packed := make([][]byte, len(runs))
	for i, r := range runs {
		ids[i] = r.ID
		var err error
		if packed[i], err = s.pack(r.Document); err != nil {
			return nil, classify("store: save runs", "", err)
		}
	}
	ids, err := s.keyed(ctx, key, ids, func(tx *sql.Tx) error {
		for i, r := range runs {
			_, err := tx.ExecContext(ctx, `INSERT INTO runs (`+runColumns+`, search) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
				r.ID, micros(r.CreatedAt), text(r.GPU), text(r.Architecture), text(r.Framework.Name), text(r.Framework.Version),
				text(r.Model), text(r.Flagged), packed[i], text(strings.ToLower(r.Search)))
			if err != nil {
				return err
			}
		}
		return nil
	})
	return ids, classify("store: save runs", "", err)
}

// LoadRun implements planner.MeasuredStore.
func (s *Store) LoadRun(ctx context.Context, id string) (planner.RunRecord, error) {
	r, err := scanRun(s.db.QueryRowContext(ctx, `SELECT `+runColumns+` FROM runs WHERE id = $1`, text(id)))
	return r, classify("store: load run", fmt.Sprintf("no run %q is kept here", id), err)
}

// ListRuns implements planner.MeasuredStore.
func (s *Store) ListRuns(ctx context.Context, q planner.RunQuery) ([]planner.RunRecord, error) {
	var c clauses
	if q.GPU != "" {
		c.add(`(gpu = ? OR architecture = ?)`, text(q.GPU), text(q.GPU))
	}
	if q.Framework != "" {
		c.add(`framework = ?`, text(q.Framework))
	}
	if q.Version != "" {
		c.add(`framework_version = ?`, text(q.Version))
	}
	if q.Model != "" {
		c.add(`model = ?`, text(q.Model))
	}
	switch q.Flagged {
	case "true":
		c.add(`flagged <> ''`)
	case "false":
		c.add(`flagged = ''`)
	}
	if q.Text != "" {
		c.add(`search LIKE ? ESCAPE '!'`, "%"+escapeLike(text(strings.ToLower(q.Text)))+"%")
	}
	rows, err := s.page(ctx, `SELECT `+runColumns+` FROM runs`, c, q.After, q.Limit)
	if err != nil {
		return nil, classify("store: list runs", "", err)
	}
	defer rows.Close()
	var list []planner.RunRecord
	for rows.Next() {
		r, err := scanRun(rows)
		if err != nil {
			return nil, classify("store: list runs", "", err)
		}
		list = append(list, r)
	}
	return list, classify("store: list runs", "", rows.Err())
}

// page runs a query for one page of a list, newest first.
func (s *Store) page(ctx context.Context, query string, c clauses, after *planner.Position, limit int) (*sql.Rows, error) {
	if after != nil {
		c.add(`(created_at_us, id) < (?, ?)`, micros(after.CreatedAt), after.ID)
	}
	if len(c.terms) > 0 {
		query += " WHERE " + strings.Join(c.terms, " AND ")
	}
	return s.db.QueryContext(ctx, query+` ORDER BY created_at_us DESC, id DESC LIMIT `+fmt.Sprint(limit), c.args...)
}

func scanRun(row interface{ Scan(...any) error }) (planner.RunRecord, error) {
	var r planner.RunRecord
	var created int64
	var packed []byte
	err := row.Scan(&r.ID, &created, &r.GPU, &r.Architecture, &r.Framework.Name, &r.Framework.Version, &r.Model, &r.Flagged, &packed)
	if err != nil {
		return planner.RunRecord{}, err
	}
	r.CreatedAt = fromMicros(created)
	r.Document, err = unpack(packed)
	return r, err
}
