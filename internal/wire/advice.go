package wire

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"

	"memplan/internal/estimator/spec"
)

// Advice asks what to change in a job: section 5 of the public formats.
type Advice struct {
	Job         spec.Job `json:"job"`
	Goal        string   `json:"goal,omitempty"`
	Probability float64  `json:"probability,omitempty"`
	Allow       []string `json:"allow,omitempty"`
	GPUs        []string `json:"gpus,omitempty"`
	GlobalBatch int      `json:"global_batch_size,omitempty"`
}

// AdviceSchema is the JSON Schema of what is asked beside the job.
//
//go:embed advice.schema.json
var AdviceSchema []byte

// adviceRule is that schema, compiled.
var adviceRule = sync.OnceValue(func() *rule {
	r, err := compileSchema(AdviceSchema)
	if err != nil {
		panic(err) // the embedded schema is part of the build, and tested
	}
	return r
})

// DecodeAdvice reads a question from JSON or YAML, with the errors of
// DecodeJSON; the job's paths begin with job.
func DecodeAdvice(data []byte) (Advice, error) {
	reader := readYAML
	if looksLikeJSON(data) {
		reader = readJSON
	}
	found := &Invalid{}
	root, err := reader(data, found)
	if err != nil {
		return Advice{}, err
	}
	c := &check{d: standard(), found: found}
	job := root.get("job")
	if !c.value(adviceRule(), "", root) || job == nil {
		return Advice{}, found.err()
	}
	jobCheck := &check{d: standard(), found: &Invalid{}}
	read, err := jobCheck.job(job)
	found.include("job", jobCheck.found)
	if err != nil || len(found.Fields) > 0 {
		return Advice{}, found.err()
	}
	root.drop("job")
	var a Advice
	if err := json.Unmarshal(root.appendJSON(nil), &a); err != nil {
		return Advice{}, fmt.Errorf("wire: a checked question does not fit its type: %w", err)
	}
	a.Job = read
	return a, nil
}
