package auth

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func TestHeaders(t *testing.T) {
	page := "default-src 'self'"
	tests := []struct {
		name string
		h    http.HandlerFunc
		csp  string
	}{
		{name: "an answer that is no page", h: status(http.StatusOK), csp: policy},
		{name: "a page's own policy", csp: page, h: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Security-Policy", page)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			Headers(tt.h).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			require.Equal(t, tt.csp, w.Header().Get("Content-Security-Policy"))
			require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
			require.Equal(t, "DENY", w.Header().Get("X-Frame-Options"))
			require.Equal(t, "same-origin", w.Header().Get("Referrer-Policy"))
		})
	}
}

func TestSameOrigin(t *testing.T) {
	tests := []struct {
		name, method, header, value string
		want                        int
	}{
		{name: "another site writes", method: "POST", header: "Sec-Fetch-Site", value: "cross-site", want: 403},
		{name: "another origin writes", method: "POST", header: "Origin", value: "https://evil.example", want: 403},
		{name: "another site reads", method: "GET", header: "Sec-Fetch-Site", value: "cross-site", want: 200},
		{name: "our page writes", method: "POST", header: "Sec-Fetch-Site", value: "same-origin", want: 200},
		{name: "curl writes", method: "POST", want: 200},
	}
	h := SameOrigin(status(http.StatusForbidden))(status(http.StatusOK))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest(tt.method, "http://memplan.example/", nil)
			if tt.header != "" {
				r.Header.Set(tt.header, tt.value)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			require.Equal(t, tt.want, w.Code)
		})
	}
}

func TestRateLimit(t *testing.T) {
	tests := []struct {
		name      string
		perMinute int
		want      []int
	}{
		{name: "off", perMinute: 0, want: []int{200, 200, 200}},
		{name: "two", perMinute: 2, want: []int{200, 200, 429}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := RateLimit(tt.perMinute, status(http.StatusTooManyRequests))(status(http.StatusOK))
			var got []int
			for range tt.want {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
				got = append(got, w.Code)
			}
			require.Equal(t, tt.want, got)

			other := httptest.NewRequest("GET", "/", nil)
			other.RemoteAddr = "203.0.113.9:1234"
			w := httptest.NewRecorder()
			h.ServeHTTP(w, other)
			require.Equal(t, 200, w.Code, "another address has its own allowance")
		})
	}
}
