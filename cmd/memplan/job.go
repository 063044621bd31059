package main

import (
	"cmp"
	"encoding/json"
	"io"
	"net/url"
	"os"
	"strings"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/wire"
)

// jobInput is what every command that takes a job has in common.
type jobInput struct {
	File  string   `arg:"" help:"The job, in YAML or JSON; - reads standard input."`
	From  string   `placeholder:"FORMAT" help:"The file is another tool's, as memplan import reads them; auto finds out whose."`
	Graph string   `placeholder:"FILE" help:"The model is the graph in this file, as clients/python/memplan_export.py writes it of any torch.nn.Module."`
	Set   []string `sep:"none" placeholder:"KEY=VALUE" help:"Set a key of the job over what the file says, as in --set training.micro_batch_size=8. Repeat for several."`
}

// job reads the job and sets what the command line sets. Its error tells every
// wrong field.
func (in jobInput) job(s *session) (spec.Job, error) {
	job, err := in.decode(s)
	return job, s.back.AllWrong(s.ctx, job, err)
}

func (in jobInput) decode(s *session) (spec.Job, error) {
	text, err := in.text(s.stdin)
	if err != nil {
		return spec.Job{}, err
	}
	if in.Graph != "" {
		text, err = in.withGraph(text)
		if err != nil {
			return spec.Job{}, err
		}
	}
	job, err := in.parse(text, s.stderr)
	if err != nil || len(in.Set) == 0 {
		return job, err
	}
	return override(job, in.Set)
}

// parse reads our own format, or another tool's; of that, keys that are passed
// over are told.
func (in jobInput) parse(text []byte, told io.Writer) (spec.Job, error) {
	if in.From == "" {
		return wire.Decode(text)
	}
	r, err := readAs(in.From, text)
	if err == nil {
		r.tell(told)
	}
	return r.Job, err
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

// withGraph is a job's text with the graph in a file for its model, which the
// text may leave out.
func (in jobInput) withGraph(text []byte) ([]byte, error) {
	if in.From != "" {
		return nil, fault.Fields{{Path: "--graph", Got: "with --from", Want: "a job of memplan's own format"}}
	}
	read, err := os.ReadFile(in.Graph)
	if err != nil {
		return nil, &fault.Error{Kind: fault.Invalid, Op: "read the graph", Err: err}
	}
	var graph map[string]any
	if err := json.Unmarshal(read, &graph); err != nil {
		return nil, fault.Fields{{Path: "--graph", Got: in.Graph, Want: "the JSON that memplan_export.py wrote: " + err.Error()}}
	}
	return wire.WithGraph(text, graph)
}

// override sets keys of a job and reads it anew, in the notation of URLs: dotted
// paths, short keys and other tools' keys, all checked as if the file had said
// them.
func override(job spec.Job, settings []string) (spec.Job, error) {
	values, err := wire.EncodeValues(job)
	if err != nil {
		return job, err
	}
	paths := map[string]string{} // by short key
	for _, a := range wire.Aliases() {
		paths[a.Key] = a.Path
		if v, ok := values[a.Key]; ok {
			delete(values, a.Key)
			values[a.Path] = v
		}
	}
	var wrong fault.Fields
	for _, s := range settings {
		key, value, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			wrong.Add("--set", s, "KEY=VALUE, as in training.micro_batch_size=8", "")
			continue
		}
		set(values, cmp.Or(paths[key], key), value)
	}
	if err := wrong.Err(); err != nil {
		return job, err
	}
	return wire.DecodeValues(values)
}

// set puts a value in the place of what it replaces: the key itself, what
// stands below it, and the key that another tool's key means.
func set(values url.Values, key, value string) {
	if within(values, key, value) {
		return
	}
	for _, s := range wire.Synonyms() {
		if s.Key == strings.TrimPrefix(key, "training.") {
			values.Del(s.Path)
		}
	}
	for other := range values {
		if strings.HasPrefix(other, key+".") {
			values.Del(other)
		}
	}
	values.Set(key, value)
}

// within sets a key of an object that the notation holds as JSON text, such as
// a model's config, and reports whether there was one.
func within(values url.Values, key, value string) bool {
	for parent := range values {
		rest, below := strings.CutPrefix(key, parent+".")
		var object map[string]any
		if !below || json.Unmarshal([]byte(values.Get(parent)), &object) != nil {
			continue
		}
		var v any = value
		_ = json.Unmarshal([]byte(value), &v) // what is no JSON is text
		object[rest] = v
		text, err := json.Marshal(object)
		if err != nil {
			return false
		}
		values.Set(parent, string(text))
		return true
	}
	return false
}
