package wire

import (
	"encoding/json"

	"go.yaml.in/yaml/v3"
)

// WithGraph is a job's text, JSON or YAML, with a graph of modules for its
// model, which the text may leave out. Text that is neither is returned as it
// is: who reads it says what is wrong with it.
func WithGraph(text []byte, graph map[string]any) ([]byte, error) {
	job := map[string]any{}
	if err := yaml.Unmarshal(text, &job); err != nil {
		return text, nil
	}
	job["model"] = map[string]any{"graph": graph}
	return json.Marshal(job)
}
