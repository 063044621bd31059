package store

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"memplan/internal/fault"
	"memplan/internal/planner"
)

// Store is planner.Store on one database. It is safe for use by several
// goroutines and processes.
type Store struct {
	db      *sql.DB
	packers sync.Pool // of *gzip.Writer: a new one costs a megabyte

	postgres bool
	alone    exclusively
}

var _ planner.Store = (*Store)(nil)

// Close releases the connections.
func (s *Store) Close() error { return s.db.Close() }

// Database is the pool, and whether it is of Postgres, for what keeps tables of
// its own in the same database.
func (s *Store) Database() (db *sql.DB, postgres bool) { return s.db, s.postgres }

// Exclusively runs f while no other process changes the schema.
func (s *Store) Exclusively(ctx context.Context, f func() error) error {
	return classify("store: lock the schema", "", s.alone(ctx, f))
}

// ReadyCheck fails with fault.Unavailable when the tables cannot be read.
func (s *Store) ReadyCheck(ctx context.Context) error {
	var n int
	err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM (SELECT 1 FROM estimates LIMIT 1) AS one`).Scan(&n)
	return fault.Wrap(fault.Unavailable, "store: ready check", err)
}

// inTx runs f in a transaction, which is undone when f fails.
func (s *Store) inTx(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// classify gives a database error its kind: no row is NotFound with the text,
// a server that cannot be reached or is too busy is Unavailable, an error that
// has a kind keeps it, and all else is Internal.
func classify(op, notFound string, err error) error {
	var known *fault.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case errors.Is(err, sql.ErrNoRows):
		return &fault.Error{Op: op, Kind: fault.NotFound, Text: notFound, Err: err}
	case unreachable(err):
		return fault.Wrap(fault.Unavailable, op, err)
	}
	return fault.Wrap(fault.Internal, op, err)
}

// unreachable reports whether a failure may pass by itself: no connection, a
// server that is starting, ending or out of resources (the SQLSTATE classes 08,
// 53 and 57P), or a file that another process has locked for too long.
func unreachable(err error) bool {
	var lite *sqlite.Error
	if errors.As(err, &lite) {
		return lite.Code()&0xff == sqlite3.SQLITE_BUSY
	}
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		return slices.ContainsFunc([]string{"08", "53", "57P"}, func(class string) bool { return strings.HasPrefix(answer.Code, class) })
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded)
}

// micros is a time as the tables keep it.
func micros(t time.Time) int64 { return t.UnixMicro() }

// fromMicros is a time as callers see it.
func fromMicros(n int64) time.Time { return time.UnixMicro(n).UTC() }

// text makes a string that both engines keep as it is: Postgres refuses NUL and
// invalid UTF-8.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
