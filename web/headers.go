package web

import (
	"crypto/rand"
	"net/http"
)

// contentPolicy lets a page load its own files and nothing else: no inline
// script or style, no other host.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// requestIDHeader carries the id of a request to the browser and into the log.
const requestIDHeader = "X-Request-Id"

// secure sets the headers that every answer carries.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}

// identify gives the answer a request id unless an outer handler gave one.
func identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if w.Header().Get(requestIDHeader) == "" {
			w.Header().Set(requestIDHeader, rand.Text())
		}
		next.ServeHTTP(w, r)
	})
}
