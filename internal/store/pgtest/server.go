package pgtest

import (
	"bufio"
	"database/sql"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// Server is a running Postgres.
type Server struct {
	socket    string // the folder of its socket
	databases atomic.Int64
}

// Start runs a Postgres that ends with the test. Where none is installed nor
// can be fetched it skips the test, or fails it when $CI is set, and says how
// to install one.
func Start(t testing.TB) *Server {
	t.Helper()
	bin, err := binaries(t.Context())
	if err != nil {
		unavailable(t, err)
		return nil
	}
	// Not t.TempDir: the path of a socket may be about 100 bytes long, and
	// another user must be able to reach it.
	dir, err := os.MkdirTemp("", "pgtest")
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	check(t, giveAway(dir))

	data := filepath.Join(dir, "data")
	run := command(filepath.Join(bin, "initdb"), "--pgdata="+data, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
	run.Dir = dir
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	serve(t, filepath.Join(bin, "postgres"), dir, data)
	return &Server{socket: dir}
}

// unavailable ends a test that has no Postgres.
func unavailable(t testing.TB, err error) {
	t.Helper()
	text := fmt.Sprintf("no Postgres for this test: %v\ninstall it with: make deps", err)
	if os.Getenv("CI") != "" {
		t.Fatal(text)
	}
	t.Skip(text)
}

// serve starts the server and returns when it accepts connections. Cleanup asks
// it to end at once and waits for that.
func serve(t testing.TB, program, dir, data string) {
	t.Helper()
	cmd := command(program, "-D", data, "-k", dir, "-c", "listen_addresses=",
		"-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off", "-c", "shared_buffers=32MB")
	cmd.Dir = dir
	log, err := cmd.StderrPipe()
	check(t, err)
	ended, err := start(cmd)
	check(t, err)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // fast shutdown; fails when it has ended already
		<-ended
	})
	ready, text := make(chan bool, 1), &strings.Builder{}
	go func() { ready <- awaitReady(log, text) }()
	if !<-ready {
		t.Fatalf("postgres ended before it was ready:\n%s", text)
	}
}

// awaitReady reads the server's log until it says that it is ready, and then
// keeps reading so that the server never waits for a reader.
func awaitReady(log io.Reader, text *strings.Builder) bool {
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		fmt.Fprintln(text, lines.Text())
		if strings.Contains(lines.Text(), "ready to accept connections") {
			go func() { _, _ = io.Copy(io.Discard, log) }()
			return true
		}
	}
	return false
}

// Database makes an empty database and returns its URL. It is dropped with the
// server.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test%d", s.databases.Add(1))
	config, err := pgx.ParseConfig(s.url("postgres"))
	check(t, err)
	db := stdlib.OpenDB(*config)
	defer db.Close()
	check(t, exec1(db, "CREATE DATABASE "+name))
	return s.url(name)
}

func exec1(db *sql.DB, query string) error {
	_, err := db.Exec(query)
	return err
}

func (s *Server) url(database string) string {
	q := url.Values{"host": {s.socket}, "user": {"postgres"}}
	return "postgres:///" + database + "?" + q.Encode()
}

// command is exec.Command as the user who runs the server, with messages in
// English.
func command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = attributes()
	return cmd
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
