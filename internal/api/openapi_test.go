package api

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
)

// golden is the document as it is agreed with clients.
const golden = "testdata/openapi.json"

func TestDocumentIsTheAgreedOne(t *testing.T) {
	d := open(t, nil)
	got := d.ask("GET", "/api/v1/openapi.json", "").Body.String()
	require.Equal(t, got, d.ask("GET", "/openapi.json", "").Body.String(), "one document at both addresses")
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "the document changed: look at the difference, then run go test ./internal/api -update")
}

func TestDocumentIsValid(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(open(t, nil).ask("GET", "/openapi.json", "").Body.Bytes())
	require.NoError(t, err)
	require.NoError(t, doc.Validate(t.Context(), openapi3.EnableMultiError(), openapi3.EnableSchemaFormatValidation()))
	require.True(t, doc.IsOpenAPI31OrLater())
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			require.NotEmpty(t, op.OperationID, "%s %s", method, path)
			require.NotEmpty(t, op.Summary, "%s %s", method, path)
			require.NotEmpty(t, op.Tags, "%s %s", method, path)
			require.NotNil(t, op.Responses.Default(), "%s %s says how it fails", method, path)
		}
	}
}

// TestDocumentGeneratesAClient generates a Go client from the document as
// served, and compiles it.
func TestDocumentGeneratesAClient(t *testing.T) {
	tools, err := filepath.Abs("../../tools")
	require.NoError(t, err)
	dir := t.TempDir()
	generator := filepath.Join(dir, "oapi-codegen")
	if out, err := command(tools, "go", "build", "-o", generator, "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen"); err != nil {
		if os.Getenv("MEMPLAN_REQUIRE_ALL") != "" {
			t.Fatalf("building the generator: %v\n%s", err, out)
		}
		t.Skip("no generator here: run (cd tools && go mod download) with a network")
	}
	document := filepath.Join(dir, "openapi.json")
	require.NoError(t, os.WriteFile(document, open(t, nil).ask("GET", "/openapi.json", "").Body.Bytes(), 0o600))
	out, err := command(dir, generator, "-generate", "types,client", "-package", "client", "-o", "client.go", document)
	require.NoError(t, err, out)

	for _, name := range []string{"go.mod", "go.sum"} { // of the generated code's imports
		text, err := os.ReadFile(filepath.Join(tools, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	out, err = command(dir, "go", "vet", ".")
	require.NoError(t, err, out)

	client, err := os.ReadFile(filepath.Join(dir, "client.go"))
	require.NoError(t, err)
	for _, want := range []string{"CreateEstimate(", "CreateEstimates(", "ListEstimates(", "GetEstimate(", "CreateCheck(", "CreateFits(", "ListModels(", "ListGPUs(", "MicroBatchSize"} {
		require.Contains(t, string(client), want)
	}
}

// command runs a program in dir and returns what it printed.
func command(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}
