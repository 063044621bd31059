package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// composeFile is what a test reads of docker-compose.yml.
type composeFile struct {
	Services map[string]struct {
		Image       string
		Build       string
		Environment map[string]string
		Ports       []string
		DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
		Healthcheck struct{ Test []string }
	}
}

func TestComposeFile(t *testing.T) {
	text, err := os.ReadFile("../../docker-compose.yml")
	require.NoError(t, err)
	var file composeFile
	require.NoError(t, yaml.Unmarshal(text, &file))

	server, postgres := file.Services["server"], file.Services["postgres"]
	require.Equal(t, "service_healthy", server.DependsOn["postgres"].Condition)
	require.Contains(t, server.Environment["DATABASE_URL"], "@postgres:5432/"+postgres.Environment["POSTGRES_DB"])
	require.Contains(t, server.Environment["DATABASE_URL"], postgres.Environment["POSTGRES_USER"]+":"+postgres.Environment["POSTGRES_PASSWORD"])
	require.Equal(t, []string{"CMD", "/usr/local/bin/server", "--check"}, server.Healthcheck.Test)
	require.NotEmpty(t, postgres.Healthcheck.Test)
	for _, p := range server.Ports {
		require.True(t, strings.HasPrefix(p, "127.0.0.1:"), "published to this machine only: %s", p)
	}
	require.Empty(t, postgres.Ports, "the database is not published")
}

// TestDeploymentSetsWhatTheServiceReads catches a renamed variable or flag.
func TestDeploymentSetsWhatTheServiceReads(t *testing.T) {
	read := map[string]bool{}
	_, err := configure([]string{"--check"}, func(name string) string { read[name] = true; return "" }, "", os.Stdout, os.Stderr)
	require.NoError(t, err)

	text, err := os.ReadFile("../../docker-compose.yml")
	require.NoError(t, err)
	var file composeFile
	require.NoError(t, yaml.Unmarshal(text, &file))
	for name := range file.Services["server"].Environment {
		require.True(t, read[name], "docker-compose.yml sets %s, which nothing reads", name)
	}
	image, err := os.ReadFile("../../Dockerfile")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(MEMPLAN_\w+)=`).FindAllStringSubmatch(string(image), -1) {
		require.True(t, read[m[1]], "the Dockerfile sets %s, which nothing reads", m[1])
	}
	require.Contains(t, string(image), "USER nonroot")
}
