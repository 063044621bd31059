package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"mime"
	"net/http"
	"path"

	"github.com/go-chi/chi/v5"
)

//go:embed static
var files embed.FS

// assets are the static files by name, each with the hash of its content.
type assets map[string]asset

type asset struct {
	body []byte
	hash string
}

// embedded reads the files of the build.
func embedded() assets {
	entries, err := files.ReadDir("static")
	if err != nil {
		panic(err) // the folder is part of the binary
	}
	all := assets{}
	for _, e := range entries {
		body, err := files.ReadFile(path.Join("static", e.Name()))
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(body)
		all[e.Name()] = asset{body: body, hash: hex.EncodeToString(sum[:6])}
	}
	return all
}

// url is the address of a file; it changes with the content, so that the
// answer may be kept for ever.
func (a assets) url(name string) string { return "/static/" + a[name].hash + "/" + name }

// static serves a file under its present hash; an older hash is not found
// rather than answered with other content.
func (s *site) static(w http.ResponseWriter, r *http.Request) {
	name := chi.URLParam(r, "name")
	file, ok := s.assets[name]
	if !ok || file.hash != chi.URLParam(r, "hash") {
		s.notFound(w, r)
		return
	}
	kind := mime.TypeByExtension(path.Ext(name))
	if kind == "" {
		kind = "text/plain; charset=utf-8"
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(file.body)
}
