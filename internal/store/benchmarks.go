package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"memplan/internal/fault"
	"memplan/internal/planner"
)

// benchColumns are those of planner.Benchmark, in the order of scanBenchmark.
const benchColumns = `id, created_at_us, state, worker, attempt, beat, stopping, seconds_left, error, request`

// benchRequest is the part of a benchmark that does not change.
type benchRequest struct {
	Device     string   `json:"device"`
	Name       string   `json:"name"`
	GPU        string   `json:"gpu"`
	Host       string   `json:"host"`
	Probes     []string `json:"probes"`
	MaxSeconds int      `json:"max_seconds"`
	Force      bool     `json:"force"`
}

// SaveBenchmark implements planner.BenchStore.
func (s *Store) SaveBenchmark(ctx context.Context, b planner.Benchmark, key string) (string, error) {
	request, err := json.Marshal(benchRequest{b.Device, b.Name, b.GPU, b.Host, b.Probes, b.MaxSeconds, b.Force})
	if err != nil {
		return "", fault.Wrap(fault.Internal, "store: save benchmark", err)
	}
	sum := sha256.Sum256(request)
	hash := hex.EncodeToString(sum[:])
	id := b.ID
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO benchmarks (id, created_at_us, state, device_id, worker, attempt, beat, stopping, seconds_left, error, request)
			VALUES ($1, $2, $3, $4, '', $5, 0, 0, 0, '', $6)`,
			b.ID, micros(b.CreatedAt), string(b.State), text(b.Device), b.Attempt, text(string(request)))
		if err != nil || key == "" {
			return err
		}
		res, err := tx.ExecContext(ctx, `INSERT INTO benchmark_keys (key, benchmark_id, request_hash) VALUES ($1, $2, $3)
			ON CONFLICT (key) DO NOTHING`, text(key), b.ID, hash)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 1 {
			return err
		}
		return errKeyTaken
	})
	if err == errKeyTaken {
		id, err = s.keyedBenchmark(ctx, key, hash)
	}
	return id, classify("store: save benchmark", "", err)
}

// keyedBenchmark is the benchmark saved under a key that was used before.
func (s *Store) keyedBenchmark(ctx context.Context, key, hash string) (string, error) {
	var id, of string
	if err := s.db.QueryRowContext(ctx, `SELECT benchmark_id, request_hash FROM benchmark_keys WHERE key = $1`, text(key)).Scan(&id, &of); err != nil {
		return "", err
	}
	if of != hash {
		return "", fault.New(fault.Conflict, "the idempotency key was used for another benchmark")
	}
	return id, nil
}

// LoadBenchmark implements planner.BenchStore.
func (s *Store) LoadBenchmark(ctx context.Context, id string) (planner.Benchmark, error) {
	b, err := scanBenchmark(s.db.QueryRowContext(ctx, `SELECT `+benchColumns+` FROM benchmarks WHERE id = $1`, text(id)))
	if err != nil {
		return b, classify("store: load benchmark", fmt.Sprintf("no benchmark %q is kept here", id), err)
	}
	rows, err := s.db.QueryContext(ctx, `SELECT document FROM benchmark_results WHERE benchmark_id = $1`, text(id))
	if err != nil {
		return b, classify("store: load results", "", err)
	}
	defer rows.Close()
	found := map[string]planner.ProbeResult{}
	for rows.Next() {
		var packed []byte
		if err := rows.Scan(&packed); err != nil {
			return b, classify("store: load results", "", err)
		}
		document, err := unpack(packed)
		var r planner.ProbeResult
		if err == nil {
			err = json.Unmarshal(document, &r)
		}
		if err != nil {
			return b, classify("store: load results", "", err)
		}
		found[r.Probe] = r
	}
	for _, name := range b.Probes {
		if r, ok := found[name]; ok {
			b.Results = append(b.Results, r)
		}
	}
	return b, classify("store: load results", "", rows.Err())
}

// ListBenchmarks implements planner.BenchStore.
func (s *Store) ListBenchmarks(ctx context.Context, limit int, after *planner.Position, states ...planner.BenchState) ([]planner.Benchmark, error) {
	var c clauses
	if after != nil {
		c.add(`(created_at_us, id) < (?, ?)`, micros(after.CreatedAt), after.ID)
	}
	if len(states) > 0 {
		var any []any
		for _, x := range states {
			any = append(any, string(x))
		}
		c.add(`state IN (`+strings.TrimSuffix(strings.Repeat("?, ", len(any)), ", ")+`)`, any...)
	}
	where := ""
	if len(c.terms) > 0 {
		where = " WHERE " + strings.Join(c.terms, " AND ")
	}
	rows, err := s.db.QueryContext(ctx, `SELECT `+benchColumns+`,
		(SELECT count(*) FROM benchmark_results WHERE benchmark_id = benchmarks.id) FROM benchmarks`+where+
		` ORDER BY created_at_us DESC, id DESC LIMIT `+fmt.Sprint(limit), c.args...)
	if err != nil {
		return nil, classify("store: list benchmarks", "", err)
	}
	defer rows.Close()
	var list []planner.Benchmark
	for rows.Next() {
		var done int
		b, err := scanBenchmark(rows, &done)
		if err != nil {
			return nil, classify("store: list benchmarks", "", err)
		}
		b.Progress.Done, b.Progress.Total = done, len(b.Probes)
		list = append(list, b)
	}
	return list, classify("store: list benchmarks", "", rows.Err())
}

// scanBenchmark reads benchColumns and what follows them.
func scanBenchmark(row interface{ Scan(...any) error }, more ...any) (planner.Benchmark, error) {
	b := planner.Benchmark{Results: []planner.ProbeResult{}}
	var created int64
	var stopping int
	var request string
	into := append([]any{
		&b.ID, &created, &b.State, &b.Worker, &b.Attempt, &b.Beat, &stopping, &b.Progress.SecondsLeft, &b.Error, &request,
	}, more...)
	if err := row.Scan(into...); err != nil {
		return b, err
	}
	var r benchRequest
	if err := json.Unmarshal([]byte(request), &r); err != nil {
		return b, err
	}
	b.CreatedAt, b.Stopping = fromMicros(created), stopping == 1 && b.State == planner.Running
	b.Device, b.Name, b.GPU, b.Host, b.Probes, b.MaxSeconds, b.Force = r.Device, r.Name, r.GPU, r.Host, r.Probes, r.MaxSeconds, r.Force
	return b, nil
}

// ClaimBenchmark implements planner.BenchStore.
func (s *Store) ClaimBenchmark(ctx context.Context, id, worker string) error {
	err := s.change(ctx, `UPDATE benchmarks SET state = 'running', worker = $2, beat = beat + 1, error = '' WHERE id = $1 AND state = 'queued'`, text(id), text(worker))
	if duplicate(err) {
		return fault.New(fault.Conflict, "the card runs another benchmark")
	}
	return classify("store: claim benchmark", "", err)
}

// BeatBenchmark implements planner.BenchStore.
func (s *Store) BeatBenchmark(ctx context.Context, id, worker string, left time.Duration) (bool, error) {
	var stopping int
	err := s.db.QueryRowContext(ctx, `UPDATE benchmarks SET beat = beat + 1, seconds_left = $3
		WHERE id = $1 AND worker = $2 AND state = 'running' RETURNING stopping`, text(id), text(worker), int64(left/time.Second)).Scan(&stopping)
	if errors.Is(err, sql.ErrNoRows) {
		return false, errMoved
	}
	return stopping == 1, classify("store: beat", "", err)
}

// errMoved says that a benchmark is not in the state that a change needs.
var errMoved = fault.New(fault.Conflict, "the benchmark is in another state by now")

// change runs an update of one row; errMoved where no row is as it must be.
func (s *Store) change(ctx context.Context, query string, args ...any) error {
	res, err := s.db.ExecContext(ctx, query, args...)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return errMoved
}

// duplicate reports whether an error is a broken uniqueness.
func duplicate(err error) bool {
	var lite *sqlite.Error
	if errors.As(err, &lite) {
		return lite.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE
	}
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.Code == "23505"
}

// SaveProbe implements planner.BenchStore.
func (s *Store) SaveProbe(ctx context.Context, id, worker string, r planner.ProbeResult) error {
	document, err := json.Marshal(r)
	if err == nil {
		document, err = s.pack(document)
	}
	if err != nil {
		return fault.Wrap(fault.Internal, "store: save probe", err)
	}
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE benchmarks SET beat = beat + 1 WHERE id = $1 AND worker = $2 AND state = 'running'`, text(id), text(worker))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, errMoved)
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO benchmark_results (benchmark_id, probe, state, document) VALUES ($1, $2, $3, $4)
			ON CONFLICT (benchmark_id, probe) DO NOTHING`, text(id), text(r.Probe), r.State, document)
		return err
	})
	return classify("store: save probe", "", err)
}

// FinishBenchmark implements planner.BenchStore.
func (s *Store) FinishBenchmark(ctx context.Context, id, worker string, state planner.BenchState, why string) error {
	return classify("store: finish benchmark", "", s.change(ctx, `UPDATE benchmarks SET state = $3, error = $4, stopping = 0, seconds_left = 0, beat = beat + 1
		WHERE id = $1 AND worker = $2 AND state = 'running'`, text(id), text(worker), string(state), text(why)))
}

// RequeueBenchmark implements planner.BenchStore. One that was being cancelled
// when its worker vanished is cancelled.
func (s *Store) RequeueBenchmark(ctx context.Context, id string, beat int64, again bool) error {
	from := `state = 'running'`
	if again {
		from = `state IN ('done', 'failed', 'cancelled')`
	}
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE benchmarks SET state = CASE WHEN stopping = 1 THEN 'cancelled' ELSE 'queued' END,
			attempt = attempt + 1, beat = beat + 1, worker = '', stopping = 0, error = '' WHERE id = $1 AND beat = $2 AND `+from, text(id), beat)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, errMoved)
		}
		if again {
			_, err = tx.ExecContext(ctx, `DELETE FROM benchmark_results WHERE benchmark_id = $1 AND state <> 'done'`, text(id))
		}
		return err
	})
	return classify("store: requeue benchmark", "", err)
}

// CancelBenchmark implements planner.BenchStore.
func (s *Store) CancelBenchmark(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, `UPDATE benchmarks SET
		stopping = CASE WHEN state = 'running' THEN 1 ELSE 0 END,
		state = CASE WHEN state = 'queued' THEN 'cancelled' ELSE state END
		WHERE id = $1 AND state IN ('queued', 'running')`, text(id))
	return classify("store: cancel benchmark", "", err)
}

// SaveDevices implements planner.BenchStore.
func (s *Store) SaveDevices(ctx context.Context, all []planner.Device) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		for _, d := range all {
			document, err := json.Marshal(d)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO devices (id, seen_at_us, document) VALUES ($1, $2, $3)
				ON CONFLICT (id) DO UPDATE SET seen_at_us = excluded.seen_at_us, document = excluded.document`,
				text(d.ID), micros(d.SeenAt), text(string(document)))
			if err != nil {
				return err
			}
		}
		return nil
	})
	return classify("store: save devices", "", err)
}

// ListDevices implements planner.BenchStore.
func (s *Store) ListDevices(ctx context.Context) ([]planner.Device, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT document FROM devices ORDER BY id`)
	if err != nil {
		return nil, classify("store: list devices", "", err)
	}
	defer rows.Close()
	var all []planner.Device
	for rows.Next() {
		var document string
		var d planner.Device
		err := rows.Scan(&document)
		if err == nil {
			err = json.Unmarshal([]byte(document), &d)
		}
		if err != nil {
			return nil, classify("store: list devices", "", err)
		}
		all = append(all, d)
	}
	return all, classify("store: list devices", "", rows.Err())
}
