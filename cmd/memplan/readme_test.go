package main

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/api"
	"memplan/internal/catalog"
	"memplan/internal/obs"
	"memplan/internal/planner"
)

// fence is a code block of the README: its language and options, and its text.
var fence = regexp.MustCompile("(?ms)^```(\\S+)(?: file=(\\S+))?\\n(.*?)^```$")

// TestREADME executes the README's examples: files are written, commands run
// and their output compared with what is shown, where "..." stands for any
// lines.
func TestREADME(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	address := realServer(t)
	t.Chdir(t.TempDir())
	blocks := fence.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, blocks)
	for _, b := range blocks {
		language, file, body := b[1], b[2], b[3]
		switch {
		case file != "":
			require.NoError(t, os.WriteFile(filepath.Clean(file), []byte(body), 0o600))
		case language == "console":
			console(t, body, address)
		case language == "python":
			out := external(t, "python3", "-c", strings.ReplaceAll(body, "http://127.0.0.1:8080", address))
			require.Contains(t, out, "GiB")
		}
	}
}

// realServer is the service with the real engine, as the README starts it.
func realServer(t *testing.T) string {
	t.Helper()
	tables, err := catalog.Open()
	require.NoError(t, err)
	s := httptest.NewServer(api.New(api.Config{
		Planner: planner.New(planner.Config{Catalog: tables}), Log: slog.New(slog.DiscardHandler), Metrics: obs.NewMetrics("test"),
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// console runs the commands of a block and compares what they print.
func console(t *testing.T, body, address string) {
	t.Helper()
	for _, part := range strings.Split("\n"+body, "\n$ ")[1:] {
		command, want, _ := strings.Cut(part, "\n")
		var got string
		if args, ok := strings.CutPrefix(command, "memplan "); ok {
			var out, warnings bytes.Buffer
			code := run(t.Context(), strings.Fields(args), surroundings{os.Getenv, strings.NewReader(""), &out, &warnings, nil})
			require.Zero(t, code, "%s\n%s", command, warnings.String())
			got = out.String()
		} else {
			got = external(t, "sh", "-c", strings.ReplaceAll(command, "http://127.0.0.1:8080", address))
			require.Contains(t, got, `"summary"`, command)
		}
		requireShown(t, command, want, got)
	}
}

// requireShown compares output with what the README shows of it.
func requireShown(t *testing.T, command, want, got string) {
	t.Helper()
	var pattern strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(want), "\n") {
		if line == "..." {
			pattern.WriteString(`(?s:.*)`)
			continue
		}
		pattern.WriteString(regexp.QuoteMeta(line) + `\n?`)
	}
	require.Regexp(t, `^`+pattern.String()+`$`, strings.TrimSpace(got)+"\n", command)
}

// external runs a program that the example uses, which must be installed.
func external(t *testing.T, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed: make deps", name)
	}
	if name == "sh" {
		if _, err := exec.LookPath("curl"); err != nil {
			t.Skip("curl is not installed: make deps")
		}
	}
	c := exec.CommandContext(t.Context(), name, args...)
	var warnings bytes.Buffer
	c.Stderr = &warnings
	out, err := c.Output()
	require.NoError(t, err, warnings.String())
	return string(out)
}
