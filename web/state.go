package web

import (
	"net/url"
	"strings"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// unitKey is the one key of a page's address that is not of the job.
const unitKey = "u"

// exampleQuery is what the first page answers: nobody has to fill in a form to
// see what an answer looks like.
const exampleQuery = "m=meta-llama/Llama-3.1-8B&mb=1&seq=2048&gpu=H100-SXM5-80GB"

// state is a page's address, read: what the user said, the job it means, and
// every field that is wrong.
type state struct {
	Values url.Values // as given, without empty ones and without the unit
	Unit   unit
	Job    spec.Job
	Errors fault.Fields
	Fault  error // of another kind than wrong fields
	read   error // what the decoder said, if anything
}

// readState reads the job and the unit out of form values.
func readState(form url.Values) state {
	s := state{Values: url.Values{}, Unit: unitOf(form.Get(unitKey))}
	for key, all := range form {
		if key == unitKey {
			continue
		}
		for _, v := range all {
			if v = strings.TrimSpace(v); v != "" {
				s.Values.Add(key, v)
			}
		}
	}
	s.countForID()
	job, err := wire.DecodeValues(s.Values)
	s.Job, s.read = job, err
	s.Errors = fault.FieldsOf(err)
	if err != nil && len(s.Errors) == 0 {
		s.Fault = err
	}
	return s
}

// countForID lets the model field take a bare count: 7B in the place of an id
// is meant as a number of parameters.
func (s *state) countForID() {
	id, count := nameOf("model.id"), nameOf("model.parameters")
	v := s.Values.Get(id)
	if _, err := units.ParseCount(v); v == "" || err != nil || s.Values.Has(count) {
		return
	}
	s.Values.Del(id)
	s.Values.Set(count, v)
}

// query is the address of this state on the planner, without the leading "?":
// the job's own short form when it is valid, what was given otherwise.
func (s state) query() string { return encodeQuery(s.canonical(), s.Unit) }

func (s state) canonical() url.Values {
	if s.bad() {
		return s.Values
	}
	values, err := wire.EncodeValues(s.Job)
	if err != nil {
		return s.Values
	}
	return values
}

// jobQuery is query without the unit.
func (s state) jobQuery() string { return encodeQuery(s.canonical(), binary) }

// with is the planner's address with one key of the job changed, or dropped
// for an empty value.
func (s state) with(path, value string) string {
	v := url.Values{}
	for key, all := range s.canonical() {
		v[key] = all
	}
	for _, spelling := range spellings(path) {
		v.Del(spelling)
	}
	if value != "" {
		v.Set(nameOf(path), value)
	}
	return "/plan?" + encodeQuery(v, s.Unit)
}

// inUnit is the planner's address in another unit.
func (s state) inUnit(u unit) string { return "/plan?" + encodeQuery(s.canonical(), u) }

// encodeQuery prints values in the order of their keys. A slash is legal in a
// query and reads better than its escape.
func encodeQuery(v url.Values, u unit) string {
	if u != binary {
		v = cloneValues(v)
		v.Set(unitKey, string(u))
	}
	return strings.NewReplacer("%2F", "/", "%2C", ",").Replace(v.Encode())
}

func cloneValues(v url.Values) url.Values {
	c := url.Values{}
	for key, all := range v {
		c[key] = all
	}
	return c
}
