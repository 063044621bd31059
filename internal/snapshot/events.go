package snapshot

import (
	"bufio"
	"encoding/json"

	"memplan/internal/estimator"
)

// writeEvents writes {version, engine, events}, an event a line, so that grep
// and jq find their way in a large one.
func writeEvents(w *bufio.Writer, r *estimator.Recording) error {
	engine, err := json.Marshal(r.Engine)
	if err != nil {
		return err
	}
	_, _ = w.WriteString(`{"version":1,"engine":` + string(engine) + `,"events":[`)
	separator := "\n"
	for e := range r.Events() {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		_, _ = w.WriteString(separator) // the writer keeps its first error for the last write
		if _, err := w.Write(line); err != nil {
			return err
		}
		separator = ",\n"
	}
	_, err = w.WriteString("\n]}\n")
	return err
}
