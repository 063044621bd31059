package pgtest

import (
	"archive/tar"
	"bytes"
	"database/sql"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
)

func TestServerIsThrownAway(t *testing.T) {
	var url, socket string
	t.Run("a test", func(t *testing.T) {
		s := Start(t)
		url = s.Database(t)
		require.NotEqual(t, url, s.Database(t), "every database is another one")
		db, err := sql.Open("pgx", url)
		require.NoError(t, err)
		defer db.Close()
		var user string
		require.NoError(t, db.QueryRow("SELECT current_user").Scan(&user))
		require.Equal(t, "postgres", user)
		socket = s.socket
	})
	require.NoDirExists(t, socket)
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	defer db.Close()
	require.Error(t, db.Ping(), "the server ended with its test")
}

// What was fetched on this machine runs. Where nothing was, there is nothing to
// test: fetching is the network's part, and no test's.
func TestFetchedBinariesRun(t *testing.T) {
	home, err := cache()
	require.NoError(t, err)
	fetched := filepath.Join(home, "postgres-"+version, "bin", "postgres")
	if _, err := os.Stat(fetched); err != nil {
		return
	}
	out, err := exec.Command(fetched, "--version").CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(out), "PostgreSQL) "+version[:2])
}

func TestNewest(t *testing.T) {
	for _, test := range []struct {
		name  string
		paths []string
		want  string
	}{
		{"one", []string{"/p/15/bin/initdb"}, "/p/15/bin/initdb"},
		{"last of equal length", []string{"/p/13/bin/initdb", "/p/17/bin/initdb", "/p/15/bin/initdb"}, "/p/17/bin/initdb"},
		{"two digits are newer than a point", []string{"/p/9.6/bin/initdb", "/p/15/bin/initdb"}, "/p/15/bin/initdb"},
	} {
		require.Equal(t, test.want, newest(test.paths), test.name)
	}
}

func TestDownloadByHTTP(t *testing.T) {
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Path
		_, _ = w.Write([]byte("jar"))
	}))
	defer server.Close()
	t.Setenv("MEMPLAN_MAVEN_REPOSITORY", server.URL+"/repo/")
	file := filepath.Join(t.TempDir(), "x.jar")
	require.NoError(t, download(t.Context(), file))
	require.Equal(t, "/repo/io/zonky/test/postgres/"+artifact+"/"+version+"/"+artifact+"-"+version+".jar", asked)
	require.ErrorContains(t, verify(file), "digest", "what is not the pinned file is refused")
}

func TestDownloadFails(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	t.Setenv("MEMPLAN_MAVEN_REPOSITORY", server.URL)
	dir := filepath.Join(t.TempDir(), "postgres")
	_, err := fetched(t.Context(), dir)
	require.ErrorContains(t, err, "404")
	require.NoDirExists(t, dir)
}

func TestUntarStaysBelow(t *testing.T) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "../out", Size: 1, Mode: 0o755}))
	_, err := w.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	dir := filepath.Join(t.TempDir(), "in")
	require.Error(t, untar(tar.NewReader(&archive), dir))
	require.NoFileExists(t, filepath.Join(dir, "..", "out"))
}
