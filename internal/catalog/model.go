package catalog

import (
	"fmt"
	"slices"
	"strings"
)

// Model is one hub id.
type Model struct {
	ID      string   `json:"id"` // owner/name as the hub spells it; empty for a scaled shape
	Aliases []string `json:"aliases,omitempty"`
	Family  string   `json:"family"` // config.model_type: llama, mistral, qwen2, gpt2
	// Config holds the keys of the hub's config.json that decide shapes, as
	// encoding/json decodes them (every number a float64).
	Config map[string]any `json:"config"`
	Source string         `json:"source"` // where the config was read
	// CheckpointDType is the type the hub's weights are stored in (float32,
	// float16, bfloat16); empty when no source says.
	CheckpointDType     string `json:"checkpoint_dtype,omitempty"`
	Parameters          int64  `json:"parameters"`                     // counted from Config, a tied head once
	ParametersPublished int64  `json:"parameters_published,omitempty"` // as ParametersSource prints it
	ParametersSource    string `json:"parameters_source,omitempty"`

	preference int  // see modelEntry.Preference
	scalable   bool // of a family that OfSize chooses from
}

// modelEntry is one config of models.json with all ids that share it.
type modelEntry struct {
	IDs              []string       `json:"ids"`
	Aliases          []string       `json:"aliases"` // of the first id
	Config           map[string]any `json:"config"`
	Source           string         `json:"source"`
	CheckpointDType  string         `json:"checkpoint_dtype"` // where config has no torch_dtype
	Parameters       int64          `json:"parameters"`
	ParametersSource string         `json:"parameters_source"`
	// Counted is the number of parameters of a config of a family that
	// countParameters has no formula for.
	Counted int64 `json:"counted"`
	// Preference of the first id: 3 is what people mean by a model of that
	// size, 2 is widely used, 1 is used, 0 is the rest. The ids after the first
	// rank one lower. It is an opinion: it orders search results and breaks
	// ties in OfSize, and no byte depends on it otherwise.
	Preference int `json:"preference"`
}

// readModels decodes the models and indexes their names.
func (c *Catalog) readModels() error {
	var file struct {
		About   string       `json:"about"`
		Entries []modelEntry `json:"entries"`
	}
	if err := decodeJSON("models.json", &file); err != nil {
		return err
	}
	for _, e := range file.Entries {
		parameters := e.Counted
		if parameters == 0 {
			var err error
			if parameters, err = countParameters(e.Config); err != nil {
				return fmt.Errorf("models.json: %v: %w", e.IDs, err)
			}
		}
		for i, id := range e.IDs {
			m := e.model(id, i == 0)
			m.Parameters, m.scalable = parameters, e.Counted == 0
			c.models = append(c.models, m)
		}
	}
	return c.indexModels()
}

// model is the entry under one of its ids.
func (e modelEntry) model(id string, first bool) Model {
	m := Model{
		ID: id, Config: e.Config, Source: e.Source, CheckpointDType: e.CheckpointDType,
		ParametersPublished: e.Parameters, ParametersSource: e.ParametersSource, preference: e.Preference,
	}
	m.Family, _ = e.Config["model_type"].(string)
	if stored, ok := e.Config["torch_dtype"].(string); ok {
		m.CheckpointDType = stored
	}
	if first {
		m.Aliases = e.Aliases
	} else {
		m.preference = max(0, e.Preference-1)
	}
	return m
}

// indexModels enters ids and aliases, which must be unique, and then every name
// without its owner, which goes to the first id that has it.
func (c *Catalog) indexModels() error {
	c.modelIndex = map[string]int{}
	for i, m := range c.models {
		for _, spelling := range append([]string{m.ID}, m.Aliases...) {
			n := normalise(spelling)
			if other, taken := c.modelIndex[n]; taken && other != i {
				return fmt.Errorf("models.json: %q names both %s and %s", spelling, c.models[other].ID, m.ID)
			}
			c.modelIndex[n] = i
		}
	}
	for i, m := range c.models {
		n := normalise(bareName(m.ID))
		if _, taken := c.modelIndex[n]; !taken {
			c.modelIndex[n] = i
		}
	}
	return nil
}

// bareName is an id without its owner.
func bareName(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }

// Model finds a model by its hub id, an alias, or its name without the owner;
// only letters and digits count, case does not, and an @revision is ignored:
// revisions of the models in the table do not differ in shapes.
func (c *Catalog) Model(id string) (Model, bool) {
	id, _, _ = strings.Cut(id, "@")
	i, ok := c.modelIndex[normalise(id)]
	if !ok {
		return Model{}, false
	}
	return c.models[i].clone(), true
}

// ModelCount is the number of ids in the table.
func (c *Catalog) ModelCount() int { return len(c.models) }

// Nearest returns up to three known ids spelt most like id, for an error text.
func (c *Catalog) Nearest(id string) []string {
	id, _, _ = strings.Cut(id, "@")
	var ids []string
	for _, i := range nearest(id, c.modelIndex, 3) {
		ids = append(ids, c.models[i].ID)
	}
	return ids
}

func (m Model) clone() Model {
	m.Aliases = slices.Clone(m.Aliases)
	m.Config, _ = cloneJSON(m.Config).(map[string]any)
	return m
}

// cloneJSON copies a value decoded by encoding/json.
func cloneJSON(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, x := range v {
			m[k] = cloneJSON(x)
		}
		return m
	case []any:
		s := make([]any, len(v))
		for i, x := range v {
			s[i] = cloneJSON(x)
		}
		return s
	}
	return v
}
