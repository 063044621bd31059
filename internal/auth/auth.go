package auth

import (
	"net"
	"net/http"
	"time"

	"github.com/go-chi/httprate"
)

// policy is the content security policy of an answer that is not a page. A
// page sets its own over it.
const policy = "default-src 'none'; frame-ancestors 'none'"

// Headers sets the security headers of every answer: no sniffing, no framing,
// no referrer to other sites, and a content policy that allows nothing unless
// the handler sets its own.
func Headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Content-Security-Policy", policy)
		next.ServeHTTP(w, r)
	})
}

// SameOrigin refuses writes that a browser sends from another site. Clients
// that are no browsers send neither Sec-Fetch-Site nor Origin and pass.
func SameOrigin(refuse http.Handler) func(http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(refuse)
	return protection.Handler
}

// RateLimit allows each client address perMinute requests in a minute and
// refuses the rest. Zero or less allows all. The address is the connection's:
// behind a proxy all clients have one, and the proxy is the place to limit.
func RateLimit(perMinute int, refuse http.HandlerFunc) func(http.Handler) http.Handler {
	if perMinute <= 0 {
		return func(next http.Handler) http.Handler { return next }
	}
	return httprate.LimitBy(perMinute, time.Minute, byConnection, httprate.WithLimitHandler(refuse))
}

// byConnection is the address at the other end of the connection.
func byConnection(r *http.Request) (string, error) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return httprate.CanonicalizeIP(host), err
}
