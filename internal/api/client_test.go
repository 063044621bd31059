package api

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPythonClient runs the client's own tests against a server.
func TestPythonClient(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("MEMPLAN_REQUIRE_ALL") != "" {
			t.Fatal("no python3: run make deps")
		}
		t.Skip("no python3: run make deps")
	}
	srv := httptest.NewServer(real(t, keep(t), 0))
	defer srv.Close()
	cmd := exec.CommandContext(t.Context(), python, "-B", "-m", "unittest", "-q", "test_memplan", "test_memplan_export")
	cmd.Dir = "../../clients/python"
	cmd.Env = append(os.Environ(), "MEMPLAN_SERVER="+srv.URL)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
