package main

import (
	"encoding/json"
	"io"
	"os"
	"strings"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/wire"
)

// jobInput is what every command that takes a job has in common.
type jobInput struct {
	File string   `arg:"" help:"The job, in YAML or JSON; - reads standard input."`
	Set  []string `sep:"none" placeholder:"PATH=VALUE" help:"Set a key of the job over what the file says, as in --set training.micro_batch_size=8. Repeat for several."`
}

// job reads the job and sets what the command line sets.
func (in jobInput) job(stdin io.Reader) (spec.Job, error) {
	text, err := in.text(stdin)
	if err != nil {
		return spec.Job{}, err
	}
	job, err := wire.Decode(text)
	if err != nil || len(in.Set) == 0 {
		return job, err
	}
	return override(job, in.Set)
}

// text is the job as it is written.
func (in jobInput) text(stdin io.Reader) ([]byte, error) {
	var text []byte
	var err error
	if in.File == "-" {
		text, err = io.ReadAll(io.LimitReader(stdin, wire.MaxBytes+1))
	} else {
		text, err = os.ReadFile(in.File)
	}
	if err != nil {
		return nil, &fault.Error{Kind: fault.Invalid, Op: "read the job", Err: err}
	}
	return text, nil
}

// override sets keys of a job's normal form and reads it anew, so that what is
// set is checked as if the file had said it.
func override(job spec.Job, settings []string) (spec.Job, error) {
	normal, err := wire.Encode(job)
	if err != nil {
		return job, err
	}
	var tree map[string]any
	if err := json.Unmarshal(normal, &tree); err != nil {
		return job, fault.Wrap(fault.Internal, "read the normal form", err)
	}
	var wrong fault.Fields
	for _, s := range settings {
		path, value, ok := strings.Cut(s, "=")
		if !ok || path == "" {
			wrong.Add("--set", s, "PATH=VALUE, as in training.micro_batch_size=8", "")
			continue
		}
		if !set(tree, strings.Split(path, "."), literal(value)) {
			wrong.Add(path, value, "a key of an object: set "+path[:strings.LastIndexByte(path, '.')]+" as a whole, in JSON", "")
		}
	}
	if err := wrong.Err(); err != nil {
		return job, err
	}
	changed, err := json.Marshal(tree)
	if err != nil {
		return job, fault.Wrap(fault.Internal, "write the changed job", err)
	}
	job, err = wire.DecodeJSON(changed)
	if err != nil { // places in a text the user never saw would mislead
		return job, fault.FieldsOf(err).Err()
	}
	return job, nil
}

// set puts a value into a tree, making the objects on its way. It reports
// false where something that is no object stands in the way.
func set(tree map[string]any, path []string, value any) bool {
	for _, key := range path[:len(path)-1] {
		next, ok := tree[key].(map[string]any)
		if _, taken := tree[key]; taken && !ok {
			return false
		}
		if !ok {
			next = map[string]any{}
			tree[key] = next
		}
		tree = next
	}
	tree[path[len(path)-1]] = value
	return true
}

// literal reads a value as JSON, and as plain text where it is none.
func literal(s string) any {
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		return s
	}
	return v
}
