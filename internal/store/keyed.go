package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"memplan/internal/fault"
	"memplan/internal/planner"
)

// keyed runs a write under an idempotency key, and returns the ids it made, or
// those that the same request under the same key made before.
func (s *Store) keyed(ctx context.Context, key planner.Key, ids []string, write func(*sql.Tx) error) ([]string, error) {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		if key.Name != "" {
			if err := takeKey(ctx, tx, key, ids); err != nil {
				return err
			}
		}
		return write(tx)
	})
	if errors.Is(err, errKeyTaken) {
		return s.answered(ctx, key)
	}
	return ids, err
}

// takeKey notes what a key is used for. A transaction that takes the same key at
// the same time makes this one wait for its end.
func takeKey(ctx context.Context, tx *sql.Tx, key planner.Key, ids []string) error {
	res, err := tx.ExecContext(ctx, `INSERT INTO keyed_answers (key, request_hash, answer) VALUES ($1, $2, $3)
		ON CONFLICT (key) DO NOTHING`, text(key.Name), key.Hash, strings.Join(ids, " "))
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return errKeyTaken
}

// answered is what a request under a key made.
func (s *Store) answered(ctx context.Context, key planner.Key) ([]string, error) {
	var hash, answer string
	err := s.db.QueryRowContext(ctx, `SELECT request_hash, answer FROM keyed_answers WHERE key = $1`, text(key.Name)).Scan(&hash, &answer)
	if err != nil {
		return nil, err
	}
	if hash != key.Hash {
		return nil, fault.New(fault.Conflict, "the idempotency key was used for another request")
	}
	return strings.Fields(answer), nil
}
