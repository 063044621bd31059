package e2e

import (
	"net/http/httptest"
	"testing"

	"memplan/web"
	"memplan/web/webtest"
)

func TestShots(t *testing.T) {
	srv := httptest.NewServer(web.New(web.Config{Planner: &webtest.Planner{}, Version: "test"}))
	t.Cleanup(srv.Close)
	b := Open(t)
	b.Go(srv.URL)
	b.Shot("desktop")
	b.Size(390, 844)
	b.Shot("phone")
	b.Size(1400, 1000)
	b.Prefer("prefers-color-scheme", "dark")
	b.Shot("dark")
	t.Log(b.Problems(), b.Hosts())
}
