package planner

import (
	"context"
	"encoding/json"
	"fmt"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/units"
)

// Save answers a job and keeps the answer under a new id. A key makes it
// idempotent: the same job under the same key answers with what was kept the
// first time, and another job under it is a fault.Conflict.
func (p *Planner) Save(ctx context.Context, job spec.Job, key string) (*estimator.Estimate, error) {
	if p.store == nil {
		return nil, errNothingKept
	}
	hash, err := keyOf(job)
	if err != nil {
		return nil, err
	}
	if key != "" {
		id, err := p.store.KeyedEstimate(ctx, key, hash.String())
		switch {
		case err == nil:
			return p.Saved(ctx, id)
		case fault.KindOf(err) != fault.NotFound:
			return nil, err
		}
	}
	est, err := p.Estimate(ctx, job)
	if err != nil {
		return nil, err
	}
	return p.keep(ctx, *est, hash, key)
}

// keep stores an answer under a new id, or finds the one that a request with
// the same key stored meanwhile.
func (p *Planner) keep(ctx context.Context, est estimator.Estimate, hash cacheKey, key string) (*estimator.Estimate, error) {
	est.ID = newID()
	document, err := json.Marshal(&est)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "planner: encode estimate", err)
	}
	record := Record{Summary: p.summarise(&est), JobHash: hash.String(), Document: document}
	record.CreatedAt = p.now()
	id, err := p.store.SaveEstimate(ctx, record, key)
	if err != nil {
		return nil, err
	}
	if id != est.ID {
		return p.Saved(ctx, id)
	}
	return &est, nil
}

// Saved returns a kept answer, exactly as it was given, or fault.NotFound.
func (p *Planner) Saved(ctx context.Context, id string) (*estimator.Estimate, error) {
	if p.store == nil || !validID(id) {
		return nil, fault.New(fault.NotFound, "no estimate %q is kept here", id)
	}
	r, err := p.store.LoadEstimate(ctx, id)
	if err != nil {
		return nil, err
	}
	var est estimator.Estimate
	if err := json.Unmarshal(r.Document, &est); err != nil {
		return nil, fault.Wrap(fault.Internal, "planner: decode estimate "+id, err)
	}
	return &est, nil
}

// summarise takes from an answer what lists show.
func (p *Planner) summarise(est *estimator.Estimate) Summary {
	labels := make(map[string]string, len(est.Job.Labels))
	for k, v := range est.Job.Labels {
		labels[k] = labelText(v)
	}
	return Summary{
		ID: est.ID, Name: est.Job.Name, Labels: labels, Model: p.modelName(est.Job.Model),
		GPU: est.Target.GPU, Verdict: est.Target.Verdict, Text: est.Summary,
		Peak: est.Peak.Allocated, Required: est.Peak.Required, Usable: est.Target.Usable,
		Engine: est.Engine.Version,
	}
}

// labelText is a label's value as filters write it: text as it is, anything else
// as JSON.
func labelText(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

// modelName is what a list calls a model: its id in the catalogue's spelling,
// the name its configuration gives, its family, or its size.
func (p *Planner) modelName(m spec.Model) string {
	if known, ok := p.catalog.Model(m.ID); ok {
		return known.ID
	}
	if m.ID != "" {
		return m.ID
	}
	for _, x := range []struct {
		from map[string]any
		key  string
	}{
		{m.Config, "_name_or_path"}, {m.Config, "model_type"}, {m.Architecture, "family"},
	} {
		if name, ok := x.from[x.key].(string); ok && name != "" {
			return name
		}
	}
	if m.Parameters > 0 {
		return units.FormatCount(float64(m.Parameters)) + " parameters"
	}
	return "custom"
}
