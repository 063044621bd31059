package planner

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"memplan/internal/catalog"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/units"
)

// hubFresh is how long a configuration fetched from a hub is used before it is
// fetched again. An older one still serves while the hub does not answer.
const hubFresh = 24 * time.Hour

// howToPaste ends the message about an id that nobody knows.
const howToPaste = "paste the model's config.json as model.config instead (the file of that name in the model's repository, or print(model.config.to_json_string()))"

// resolveModel replaces an id or a count by a configuration.
func (p *Planner) resolveModel(ctx context.Context, r *prepared) error {
	m := r.job.Model
	given := namesGiven(m)
	if len(given) != 1 {
		got := strings.Join(given, " and ")
		return fault.Fields{{Path: "model", Got: got, Want: "exactly one of id, config, architecture, parameters and graph"}}
	}
	switch {
	case m.ID != "":
		return p.resolveID(ctx, r)
	case m.Parameters != 0:
		return p.resolveCount(r)
	case len(m.Architecture) > 0:
		return resolveArchitecture(r)
	}
	return nil
}

// namesGiven lists the ways in which a model is named.
func namesGiven(m spec.Model) []string {
	var names []string
	for _, x := range []struct {
		name string
		set  bool
	}{
		{"id", m.ID != ""},
		{"config", len(m.Config) > 0},
		{"architecture", len(m.Architecture) > 0},
		{"parameters", m.Parameters != 0},
		{"graph", len(m.Graph) > 0},
	} {
		if x.set {
			names = append(names, x.name)
		}
	}
	return names
}

// resolveID looks in the catalogue, then on the hub.
func (p *Planner) resolveID(ctx context.Context, r *prepared) error {
	id := r.asked.ID
	if _, _, ok := model.Library(id); ok {
		return nil // the engine knows it by its name
	}
	if m, ok := p.catalog.Model(id); ok {
		r.useConfig(configOf(m))
		return nil
	}
	if p.hub == nil {
		return p.unknownModel(id, "a model of the catalogue; no hub is configured here, so for any other "+howToPaste)
	}
	config, err := p.fetchConfig(ctx, id)
	switch fault.KindOf(err) {
	case fault.NotFound:
		return p.unknownModel(id, "a model of the catalogue or of the hub; for any other "+howToPaste)
	case fault.Forbidden:
		return p.unknownModel(id, "a model that the server's hub token may read; or "+howToPaste)
	}
	if err != nil {
		return err
	}
	r.fetched = true
	r.assume("model.config", "config.json of "+id, false, "fetched from the configured hub")
	r.useConfig(config)
	return nil
}

// useConfig gives the engine a configuration in place of a name.
func (r *prepared) useConfig(config map[string]any) {
	r.job.Model.ID, r.job.Model.Parameters = "", 0
	r.job.Model.Config = config
}

// configOf is a catalogue model's configuration with the type its weights are
// stored in, which decides what they are loaded as.
func configOf(m catalog.Model) map[string]any {
	_, torchDType := m.Config["torch_dtype"]
	_, dtype := m.Config["dtype"]
	if torchDType || dtype || m.CheckpointDType == "" {
		return m.Config
	}
	config := maps.Clone(m.Config)
	config["torch_dtype"] = m.CheckpointDType
	return config
}

func (p *Planner) unknownModel(id, want string) error {
	f := fault.Field{Path: "model.id", Got: id, Want: want}
	if near := p.catalog.Nearest(id); len(near) > 0 {
		f.Nearest = near[0]
		f.Want += "; ids spelt like it: " + strings.Join(near, ", ")
	}
	return fault.Fields{f}
}

// resolveCount takes the most likely architecture of a size.
func (p *Planner) resolveCount(r *prepared) error {
	n := float64(r.asked.Parameters)
	m, why, err := p.catalog.OfSize(n)
	if err != nil {
		return fault.Fields{{Path: "model.parameters", Got: units.FormatCount(n), Want: strings.TrimPrefix(err.Error(), "want ")}}
	}
	name := m.ID
	if name == "" {
		name = m.Source
	}
	r.assume("model.architecture", name, true, why)
	r.warn("coarse_model", "model.parameters", fmt.Sprintf(
		"only the number of parameters is known: the architecture is a guess (%s), and the interval reaches 25 %% either way", name))
	r.widen(engineErrorSize)
	r.useConfig(configOf(m))
	return nil
}

// fetchConfig returns the hub's configuration of a model, from the store while
// it is fresh there.
func (p *Planner) fetchConfig(ctx context.Context, id string) (map[string]any, error) {
	kept, found, err := p.keptConfig(ctx, id)
	if err != nil {
		return nil, err
	}
	if found && p.now().Sub(kept.FetchedAt) < hubFresh {
		return decodeConfig(id, kept.Config)
	}
	text, err := p.hub.Config(ctx, id)
	if err != nil {
		if found && fault.KindOf(err) == fault.Unavailable {
			return decodeConfig(id, kept.Config)
		}
		return nil, err
	}
	config, err := decodeConfig(id, text)
	if err != nil || p.store == nil {
		return config, err
	}
	return config, p.store.SaveHubConfig(ctx, id, HubEntry{Config: text, FetchedAt: p.now()})
}

// keptConfig reads the store's copy, of whatever age.
func (p *Planner) keptConfig(ctx context.Context, id string) (e HubEntry, found bool, err error) {
	if p.store == nil {
		return HubEntry{}, false, nil
	}
	e, err = p.store.HubConfig(ctx, id)
	if fault.KindOf(err) == fault.NotFound {
		return HubEntry{}, false, nil
	}
	return e, err == nil, err
}

func decodeConfig(id string, text []byte) (map[string]any, error) {
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil || config == nil {
		return nil, &fault.Error{
			Op: "planner: decode config.json", Kind: fault.Unavailable, Err: err,
			Text: fmt.Sprintf("the hub's config.json of %s is not a JSON object", id),
		}
	}
	return config, nil
}
