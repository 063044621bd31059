package web

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"memplan/internal/wire"
)

// copied is one way of taking a job elsewhere.
type copied struct{ Key, Name, Text string }

// copies is every way, each of which asks for the same estimate.
func (a answer) copies() []copied {
	link := a.Origin + "/plan?" + a.query()
	if a.ID != "" {
		link = a.Origin + "/e/" + a.ID
	}
	out := []copied{{"link", "Link", link}}
	if body, err := wire.Encode(a.state.Job); err == nil {
		out = append(out, copied{"curl", "curl", fmt.Sprintf("curl -sS %s/api/v1/estimates -H 'Content-Type: application/json' -d %s", a.Origin, quote(compact(body)))})
	}
	if body, err := wire.EncodeYAML(a.state.Job); err == nil {
		yaml := strings.TrimSpace(string(body))
		out = append(out,
			copied{"yaml", "Job file, job.yaml", yaml},
			copied{"check", "Check before submitting", "memplan check - <<'JOB'\n" + yaml + "\nJOB"})
	}
	return out
}

// quote is a text as one word of a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// compact drops the space of JSON.
func compact(b []byte) string {
	var v any
	if json.Unmarshal(b, &v) != nil {
		return string(b)
	}
	small, err := json.Marshal(v)
	if err != nil {
		return string(b)
	}
	return string(small)
}

// saveKey makes saving idempotent: one job, one engine, one kept answer.
func saveKey(a *answer) string {
	sum := sha256.Sum256([]byte(a.jobQuery() + "\n" + a.Engine.Version + "\n" + a.Engine.Catalog + "\n" + a.Peak.Interval.Source))
	return "web-" + hex.EncodeToString(sum[:16])
}
