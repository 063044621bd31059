package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"

	"memplan/internal/fault"
	"memplan/internal/planner"
)

// summaryColumns are those of planner.Summary, in the order of scanSummary.
const summaryColumns = `id, created_at_us, name, labels, model, gpu, verdict, summary,
	peak_allocated_bytes, required_bytes, usable_bytes, engine`

// SaveEstimate implements planner.Store.
func (s *Store) SaveEstimate(ctx context.Context, r planner.Record, key string) (string, error) {
	id := r.ID
	document, err := s.pack(r.Document)
	if err != nil {
		return "", classify("store: save estimate", "", err)
	}
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		if err := insertEstimate(ctx, tx, r, document); err != nil {
			return err
		}
		if err := insertLabels(ctx, tx, r); err != nil || key == "" {
			return err
		}
		return insertKey(ctx, tx, r, key)
	})
	if err == errKeyTaken {
		id, err = s.KeyedEstimate(ctx, key, r.JobHash)
	}
	if err != nil {
		return "", classify("store: save estimate", "", err)
	}
	return id, nil
}

// errKeyTaken undoes a save whose key another request has used.
var errKeyTaken = fault.New(fault.Conflict, "idempotency key taken")

func insertEstimate(ctx context.Context, tx *sql.Tx, r planner.Record, document []byte) error {
	labels, err := json.Marshal(r.Labels)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO estimates (`+summaryColumns+`, job_hash, search, document)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`,
		r.ID, micros(r.CreatedAt), text(r.Name), text(string(labels)), text(r.Model), text(r.GPU), string(r.Verdict), text(r.Text),
		int64(r.Peak), int64(r.Required), int64(r.Usable), text(r.Engine),
		r.JobHash, text(strings.ToLower(r.Name+"\n"+r.Model+"\n"+r.GPU)), document)
	return err
}

func insertLabels(ctx context.Context, tx *sql.Tx, r planner.Record) error {
	for k, v := range r.Labels {
		// Two keys may become one where they differ in characters no text may hold.
		_, err := tx.ExecContext(ctx, `INSERT INTO estimate_labels (key, value, estimate_id) VALUES ($1, $2, $3)
			ON CONFLICT (key, value, estimate_id) DO NOTHING`, text(k), text(v), r.ID)
		if err != nil {
			return err
		}
	}
	return nil
}

// insertKey notes what a key was used for. A transaction that inserts the same
// key at the same time makes this one wait for its end.
func insertKey(ctx context.Context, tx *sql.Tx, r planner.Record, key string) error {
	res, err := tx.ExecContext(ctx, `INSERT INTO idempotency_keys (key, estimate_id, job_hash) VALUES ($1, $2, $3)
		ON CONFLICT (key) DO NOTHING`, text(key), r.ID, r.JobHash)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return errKeyTaken
}

// KeyedEstimate implements planner.Store.
func (s *Store) KeyedEstimate(ctx context.Context, key, jobHash string) (string, error) {
	var id, hash string
	err := s.db.QueryRowContext(ctx, `SELECT estimate_id, job_hash FROM idempotency_keys WHERE key = $1`, text(key)).Scan(&id, &hash)
	if err != nil {
		return "", classify("store: find key", "the idempotency key is new", err)
	}
	if hash != jobHash {
		return "", fault.New(fault.Conflict, "the idempotency key was used for another job")
	}
	return id, nil
}

// LoadEstimate implements planner.Store.
func (s *Store) LoadEstimate(ctx context.Context, id string) (planner.Record, error) {
	var r planner.Record
	var document []byte
	row := s.db.QueryRowContext(ctx, `SELECT `+summaryColumns+`, job_hash, document FROM estimates WHERE id = $1`, text(id))
	if err := scanSummary(row, &r.Summary, &r.JobHash, &document); err != nil {
		return planner.Record{}, classify("store: load estimate", fmt.Sprintf("no estimate %q is kept here", id), err)
	}
	var err error
	r.Document, err = unpack(document)
	return r, classify("store: load estimate", "", err)
}

// ListEstimates implements planner.Store.
func (s *Store) ListEstimates(ctx context.Context, q planner.Query) ([]planner.Summary, error) {
	where, args := conditions(q)
	rows, err := s.db.QueryContext(ctx, `SELECT `+summaryColumns+` FROM estimates`+where+
		` ORDER BY created_at_us DESC, id DESC LIMIT `+fmt.Sprint(q.Limit), args...)
	if err != nil {
		return nil, classify("store: list estimates", "", err)
	}
	defer rows.Close()
	var list []planner.Summary
	for rows.Next() {
		var x planner.Summary
		if err := scanSummary(rows, &x); err != nil {
			return nil, classify("store: list estimates", "", err)
		}
		list = append(list, x)
	}
	return list, classify("store: list estimates", "", rows.Err())
}

// scanSummary reads summaryColumns and what follows them.
func scanSummary(row interface{ Scan(...any) error }, x *planner.Summary, more ...any) error {
	var created int64
	var labels string
	into := append([]any{
		&x.ID, &created, &x.Name, &labels, &x.Model, &x.GPU, &x.Verdict, &x.Text,
		&x.Peak, &x.Required, &x.Usable, &x.Engine,
	}, more...)
	if err := row.Scan(into...); err != nil {
		return err
	}
	x.CreatedAt = fromMicros(created)
	return json.Unmarshal([]byte(labels), &x.Labels)
}
