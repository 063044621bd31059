package catalog

import (
	"embed"
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Version names the state of the embedded tables. An estimate carries it, so
// that a changed figure can be told from a changed rule. Raise it with every
// change of data.
const Version = "2026.12.1"

//go:embed data
var data embed.FS

// Catalog is the embedded tables, decoded and indexed. It is read-only and safe
// for use by several goroutines; what it returns may be changed freely.
type Catalog struct {
	gpus     []GPU
	gpuIndex map[string]int // by normalised key and alias
	slices   map[string][]Slice

	models     []Model
	modelIndex map[string]int // by normalised id, alias and bare name

	sets           []VersionSet
	libraryAliases map[string]string
}

// Open decodes the embedded tables. An error means that the tables are broken:
// an unknown key, a name that means two things, a config without its shapes.
func Open() (*Catalog, error) {
	c := &Catalog{}
	for _, read := range []func() error{c.readGPUs, c.readModels, c.readVersions} {
		if err := read(); err != nil {
			return nil, fmt.Errorf("catalog: %w", err)
		}
	}
	return c, nil
}

// Version returns the version of the tables.
func (c *Catalog) Version() string { return Version }

// decodeJSON reads an embedded file strictly: a misspelt key is an error.
func decodeJSON(name string, into any) error {
	f, err := data.Open("data/" + name)
	if err != nil {
		return err
	}
	defer f.Close()
	dec := json.NewDecoder(f)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// decodeYAML is decodeJSON for YAML.
func decodeYAML(name string, into any) error {
	f, err := data.Open("data/" + name)
	if err != nil {
		return err
	}
	defer f.Close()
	dec := yaml.NewDecoder(f)
	dec.KnownFields(true)
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
