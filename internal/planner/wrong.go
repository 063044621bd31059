package planner

import (
	"context"
	"errors"
	"strings"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/wire"
)

// AllWrong adds to what a decoder found wrong with a job what else is wrong with
// the part that it could read: a card or a model that nobody knows, and settings
// that the engine has no rules for. So one answer tells every wrong field. Any
// other error, and none, come back as they are.
func (p *Planner) AllWrong(ctx context.Context, job spec.Job, found error) error {
	var read *wire.Invalid
	if !errors.As(found, &read) {
		return found
	}
	return read.With(others(read.Fields, append(p.unknown(ctx, job), estimator.Unmodelled(job)...)))
}

// unknown is the names of a job that the catalogue does not know. A hub is not
// asked about a job that is wrong anyway.
func (p *Planner) unknown(ctx context.Context, job spec.Job) fault.Fields {
	r := &prepared{asked: job.Model, job: job}
	wrong := fault.FieldsOf(p.resolveTarget(ctx, r))
	if p.hub == nil && len(namesGiven(job.Model)) == 1 {
		wrong = append(wrong, fault.FieldsOf(p.resolveModel(ctx, r))...)
	}
	return wrong
}

// withUnmodelled adds to wrong fields of a job those that the engine would
// refuse next. Other errors come back as they are.
func withUnmodelled(err error, job spec.Job) error {
	wrong := fault.FieldsOf(err)
	if len(wrong) == 0 {
		return err
	}
	return append(wrong[:len(wrong):len(wrong)], others(wrong, estimator.Unmodelled(job))...)
}

// others are the fields of more about which have says nothing, neither of the
// field itself nor of one above or below it.
func others(have, more fault.Fields) fault.Fields {
	var out fault.Fields
	for _, f := range more {
		if !told(have, f.Path) && !told(out, f.Path) {
			out = append(out, f)
		}
	}
	return out
}

func told(fields fault.Fields, path string) bool {
	for _, f := range fields {
		if f.Path == path || strings.HasPrefix(path, f.Path+".") || strings.HasPrefix(f.Path, path+".") {
			return true
		}
	}
	return false
}
