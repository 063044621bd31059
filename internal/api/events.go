package api

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"memplan/internal/obs"
)

// eventResponses documents an answer of server-sent events.
func eventResponses() map[string]*huma.Response {
	return map[string]*huma.Response{"200": {
		Description: "An event is a line that begins with data: and goes on with JSON.",
		Content:     map[string]*huma.MediaType{eventType: {Schema: &huma.Schema{Type: huma.TypeString}}},
	}}
}

// stream answers with what look finds, and again whenever that has changed. It
// ends when look says that it was the last, when the reader leaves, when look
// fails, or when the service stops.
func (s *server) stream(look func(context.Context) (v any, last bool, err error)) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(h huma.Context) {
		r, w := humachi.Unwrap(h)
		w.Header().Set("Content-Type", eventType)
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Accel-Buffering", "no") // proxies hand each event on at once
		control := http.NewResponseController(w)
		tick := time.NewTicker(s.refresh)
		defer tick.Stop()
		var before []byte
		for {
			v, last, err := look(r.Context())
			var text []byte
			if err == nil {
				text, err = json.Marshal(v)
			}
			if err != nil {
				if r.Context().Err() == nil {
					s.log.LogAttrs(r.Context(), slog.LevelError, "stream failed", slog.String("id", obs.RequestID(r.Context())), slog.String("error", err.Error()))
				}
				return
			}
			event := []byte(": nothing new\n\n")
			if !bytes.Equal(text, before) {
				event = append(append([]byte("data: "), text...), '\n', '\n')
			}
			before = text
			if _, err := w.Write(event); err != nil || control.Flush() != nil || last {
				return
			}
			select {
			case <-r.Context().Done():
				return
			case <-s.stopping:
				return
			case <-tick.C:
			}
		}
	}}
}
