package store_test

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/store"
	"memplan/internal/store/pgtest"
	"memplan/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a database and closes it with the test.
func open(t *testing.T, url string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestSQLite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) planner.Store { return open(t, filepath.Join(t.TempDir(), "memplan.db")) })
}

func TestOpenSQLite(t *testing.T) {
	t.Run("any character may stand in the path, and missing folders are made", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "a b", "c?d=%20#é.db")
		require.NoError(t, open(t, path).ReadyCheck(t.Context()))
		require.FileExists(t, path)
	})
	t.Run("the file is in write-ahead mode", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "memplan.db")
		open(t, path)
		db, err := sql.Open("sqlite", "file:"+path)
		require.NoError(t, err)
		defer db.Close()
		var mode string
		require.NoError(t, db.QueryRow("PRAGMA journal_mode").Scan(&mode))
		require.Equal(t, "wal", mode)
	})
	t.Run("what was saved is there after a restart", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "memplan.db")
		entry := planner.HubEntry{Config: []byte("{}")}
		s, err := store.Open(t.Context(), path)
		require.NoError(t, err)
		require.NoError(t, s.SaveHubConfig(t.Context(), "gpt2", entry))
		require.NoError(t, s.Close())
		got, err := open(t, path).HubConfig(t.Context(), "gpt2")
		require.NoError(t, err)
		require.Equal(t, entry.Config, got.Config)
	})
	t.Run("several may open a new file at once", func(t *testing.T) {
		openAtOnce(t, filepath.Join(t.TempDir(), "memplan.db"))
	})
	t.Run("a newer schema is refused", func(t *testing.T) {
		refusesNewerSchema(t, "sqlite", filepath.Join(t.TempDir(), "memplan.db"))
	})
}

func TestOpenFails(t *testing.T) {
	folder := t.TempDir()
	text := filepath.Join(folder, "text.db")
	require.NoError(t, os.WriteFile(text, []byte("this is no database, but long enough to be taken for one"), 0o600))
	for _, test := range []struct {
		name string
		url  string
		want fault.Kind
	}{
		{"no path", "", fault.Invalid},
		{"memory is not shared by connections", ":memory:", fault.Invalid},
		{"not a database", text, fault.Internal},
		{"a file for a folder", filepath.Join(text, "memplan.db"), fault.Unavailable},
		{"no server", "postgres://nobody@127.0.0.1:1/none?connect_timeout=2", fault.Unavailable},
		{"no URL", "postgres://%zz", fault.Invalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := store.Open(t.Context(), test.url)
			require.Error(t, err)
			require.Equal(t, test.want, fault.KindOf(err), "%v", err)
		})
	}
}

// openAtOnce opens an empty database from several goroutines.
func openAtOnce(t *testing.T, url string) {
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			s, err := store.Open(t.Context(), url)
			if err == nil {
				err = s.Close()
			}
			errs[i] = err
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

func refusesNewerSchema(t *testing.T, driver, url string) {
	open(t, url)
	db, err := sql.Open(driver, url)
	require.NoError(t, err)
	defer db.Close()
	_, err = db.Exec("INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)")
	require.NoError(t, err)
	_, err = store.Open(t.Context(), url)
	require.Equal(t, fault.Conflict, fault.KindOf(err), "%v", err)
	require.ErrorContains(t, err, "99999")
}

func TestPostgres(t *testing.T) {
	server := pgtest.Start(t)
	t.Run("store", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) planner.Store { return open(t, server.Database(t)) })
	})
	t.Run("several may open a new database at once", func(t *testing.T) { openAtOnce(t, server.Database(t)) })
	t.Run("a newer schema is refused", func(t *testing.T) { refusesNewerSchema(t, "pgx", server.Database(t)) })
}

func TestPostgresGoesAway(t *testing.T) {
	var s *store.Store
	t.Run("while it runs", func(t *testing.T) {
		var err error
		s, err = store.Open(t.Context(), pgtest.Start(t).Database(t))
		require.NoError(t, err)
		require.NoError(t, s.ReadyCheck(t.Context()))
	})
	if s == nil {
		t.Skip("no Postgres for this test")
	}
	defer s.Close()
	require.Equal(t, fault.Unavailable, fault.KindOf(s.ReadyCheck(t.Context())))
	_, err := s.LoadEstimate(t.Context(), "est_aaaaaaaaaaaaaaaa")
	require.Equal(t, fault.Unavailable, fault.KindOf(err), "%v", err)
	_, err = s.SaveEstimate(t.Context(), planner.Record{Summary: planner.Summary{ID: "est_aaaaaaaaaaaaaaaa"}}, "")
	require.Equal(t, fault.Unavailable, fault.KindOf(err), "%v", err)
}

// BenchmarkSave keeps answers of a usual size, from as many goroutines as there
// are processors.
func BenchmarkSave(b *testing.B) {
	for _, engine := range []struct {
		name string
		url  func(b *testing.B) string
	}{
		{"SQLite", func(b *testing.B) string { return filepath.Join(b.TempDir(), "memplan.db") }},
		{"Postgres", func(b *testing.B) string { return pgtest.Start(b).Database(b) }},
	} {
		b.Run(engine.name, func(b *testing.B) {
			s, err := store.Open(b.Context(), engine.url(b))
			require.NoError(b, err)
			defer s.Close()
			document := fmt.Appendf(nil, "{%q:%q}", "text", strings.Repeat("0123456789", 13<<10))
			var n atomic.Int64
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r := planner.Record{Document: document}
					r.ID, r.Labels = fmt.Sprintf("est_%016d", n.Add(1)), map[string]string{"team": "vision", "run": "7"}
					if _, err := s.SaveEstimate(b.Context(), r, ""); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
