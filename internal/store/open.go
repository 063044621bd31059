package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"memplan/internal/fault"
	"memplan/migrations"
)

// Connections of one process: SQLite writes one at a time whatever the pool,
// and needs more than one only for readers beside a writer.
const (
	sqliteConnections   = 4
	postgresConnections = 16
)

// pragmas are set on every SQLite connection, waiting for others first. In
// write-ahead logging NORMAL loses no consistency, at worst the last commits
// before a power failure.
const pragmas = "_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)&_txlock=immediate"

// Open opens the database at url, postgres://… or the path of an SQLite file,
// whose folder it makes, and brings its schema up to date. Several processes
// may do so at once. It fails with fault.Unavailable when the server does not
// answer, and with fault.Conflict when a newer memplan made the schema.
func Open(ctx context.Context, url string) (*Store, error) {
	if strings.HasPrefix(url, "postgres://") || strings.HasPrefix(url, "postgresql://") {
		return openPostgres(ctx, url)
	}
	return openSQLite(ctx, strings.TrimPrefix(url, "sqlite://"))
}

func openPostgres(ctx context.Context, url string) (*Store, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, "store: open Postgres", err)
	}
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(postgresConnections)
	db.SetMaxIdleConns(postgresConnections)
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300)) // asks every second, for five minutes
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "store: migration lock", err)
	}
	return migrated(ctx, db, goose.DialectPostgres, "postgres", goose.WithSessionLocker(locker), bySession(db, locker))
}

func openSQLite(ctx context.Context, path string) (*Store, error) {
	if path == "" || strings.HasPrefix(path, ":memory:") {
		return nil, fault.New(fault.Invalid, "the database is %q: want postgres://… or the path of a file", path)
	}
	path, err := filepath.Abs(path)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "store: folder of the database", err)
	}
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "store: open SQLite", err)
	}
	db.SetMaxOpenConns(sqliteConnections)
	db.SetMaxIdleConns(sqliteConnections)
	locker := &fileLock{path: path + ".lock"}
	return migrated(ctx, db, goose.DialectSQLite3, "sqlite", goose.WithLocker(locker), byFile(locker))
}

// dsn is the data source name of an SQLite file: a URI, so that any character
// may stand in the path.
func dsn(path string) string {
	return "file:" + (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath() + "?" + pragmas
}

// migrated applies the migrations that are missing and returns the store, or
// closes the database.
func migrated(ctx context.Context, db *sql.DB, dialect goose.Dialect, folder string, locking goose.ProviderOption, alone exclusively) (*Store, error) {
	if err := migrate(ctx, db, dialect, folder, locking); err != nil {
		_ = db.Close()
		return nil, classify("store: migrate", "", err)
	}
	return &Store{db: db, postgres: dialect == goose.DialectPostgres, alone: alone}, nil
}

func migrate(ctx context.Context, db *sql.DB, dialect goose.Dialect, folder string, locking goose.ProviderOption) error {
	files, err := fs.Sub(migrations.Files, folder)
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(dialect, db, files, locking, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	if _, err := provider.Up(ctx); err != nil {
		return err
	}
	current, target, err := provider.GetVersions(ctx)
	if err == nil && current > target {
		return fault.New(fault.Conflict, "the database has schema %d, this memplan knows %d: use a newer one", current, target)
	}
	return err
}

// exclusively runs f while no other process changes the schema.
type exclusively func(ctx context.Context, f func() error) error

// bySession is exclusively by a lock that a connection of Postgres holds.
func bySession(db *sql.DB, l lock.SessionLocker) exclusively {
	return func(ctx context.Context, f func() error) error {
		conn, err := db.Conn(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }() // back to the pool
		if err := l.SessionLock(ctx, conn); err != nil {
			return err
		}
		return errors.Join(f(), l.SessionUnlock(context.WithoutCancel(ctx), conn))
	}
}

// byFile is exclusively by a lock beside an SQLite file.
func byFile(l *fileLock) exclusively {
	return func(ctx context.Context, f func() error) error {
		if err := l.Lock(ctx, nil); err != nil {
			return err
		}
		return errors.Join(f(), l.Unlock(ctx, nil))
	}
}

// fileLock lets one process at a time migrate an SQLite file: it holds an
// exclusive transaction on a database beside it, for goose opens transactions
// of its own on the file itself.
type fileLock struct {
	path string
	db   *sql.DB
	tx   *sql.Tx
}

// Lock waits until no other process holds the lock, for a minute at most.
func (l *fileLock) Lock(ctx context.Context, _ *sql.DB) error {
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: filepath.ToSlash(l.path)}).EscapedPath()+"?_pragma=busy_timeout(60000)&_txlock=exclusive")
	if err != nil {
		return err
	}
	if l.tx, err = db.BeginTx(ctx, nil); err != nil {
		_ = db.Close()
		return fmt.Errorf("lock %s: %w", l.path, err)
	}
	l.db = db
	return nil
}

// Unlock lets the next process go on.
func (l *fileLock) Unlock(_ context.Context, _ *sql.DB) error {
	err := l.tx.Rollback()
	return errors.Join(err, l.db.Close())
}
