package queue

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strings"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverdatabasesql"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"

	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/store"
)

// Queue is planner.Queue on the database of a store. It is safe for use by
// several goroutines and processes.
type Queue struct {
	driver riverdriver.Driver[*sql.Tx]
	client *river.Client[*sql.Tx] // inserts only
	log    *slog.Logger
}

var _ planner.Queue = (*Queue)(nil)

// Open brings River's tables in the store's database up to date and returns the
// queue. The store must outlive it.
func Open(ctx context.Context, s *store.Store, log *slog.Logger) (*Queue, error) {
	db, postgres := s.Database()
	var driver riverdriver.Driver[*sql.Tx] = riversqlite.New(db)
	if postgres {
		driver = riverdatabasesql.New(db)
	}
	err := s.Exclusively(ctx, func() error {
		m, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet(log)})
		if err != nil {
			return err
		}
		_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("queue: migrate: %w", err)
	}
	client, err := river.NewClient(driver, &river.Config{Logger: quiet(log)})
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "queue: open", err)
	}
	return &Queue{driver: driver, client: client, log: log}, nil
}

// quiet lets only warnings of River into the log: its everyday is not ours.
func quiet(log *slog.Logger) *slog.Logger { return slog.New(warnings{log.Handler()}) }

// warnings is a handler that drops what is below a warning.
type warnings struct{ slog.Handler }

// Enabled implements slog.Handler.
func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}

// benchmarkArgs is a River job: an attempt of a benchmark waits.
type benchmarkArgs struct {
	Benchmark string `json:"benchmark"`
	Attempt   int    `json:"attempt"`
}

// Kind implements river.JobArgs.
func (benchmarkArgs) Kind() string { return "benchmark" }

// maxWakes is how often a job may be tried: it is snoozed while its card runs
// another benchmark, and fails only with the database.
const maxWakes = 25

// Enqueue implements planner.Queue.
func (q *Queue) Enqueue(ctx context.Context, device, benchmark string, attempt int) error {
	_, err := q.client.Insert(ctx, benchmarkArgs{benchmark, attempt}, &river.InsertOpts{
		Queue: nameOf(device), MaxAttempts: maxWakes,
		UniqueOpts: river.UniqueOpts{ByArgs: true},
	})
	return fault.Wrap(fault.Unavailable, "queue: enqueue "+benchmark, err)
}

// nameOf is the queue of a card: its id in the letters that River allows.
func nameOf(device string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(device) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		}
	}
	return "card_" + b.String()
}
