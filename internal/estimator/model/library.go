package model

import (
	"maps"
	"slices"
	"strings"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// Libraries whose models go by a name and have no config.json. Their ids are
// LIBRARY/NAME.
const (
	Timm        = "timm"
	Torchvision = "torchvision"
)

// Plain is a module of one's own, which comes as a graph.
const Plain = "plain"

// Libraries that build networks from their parts, whose sizes
// model.architecture gives.
const (
	MMSegmentation = "mmseg"
	MMAction       = "mmaction"
)

// Library splits an id LIBRARY/NAME; ok is false for the ids of a hub.
func Library(id string) (library, name string, ok bool) {
	library, name, found := strings.Cut(id, "/")
	if !found || library != Timm && library != Torchvision {
		return "", "", false
	}
	return library, name, true
}

// For returns the family of a job's model and the config its builder reads: its
// graph, or by the family of explicit sizes, by model_type, or for a library's model by its architecture's name, which timm's
// own config.json has under "architecture". It fails with fault.Fields that
// name the nearest.
func For(m spec.Model) (*Family, *Config, error) {
	if IsGraph(m) {
		return &tracedFamily, Read(m.Graph), nil
	}
	if m.Implementation == Megatron {
		if len(m.Architecture) > 0 {
			return &megatronFamily, readSizes(m.Architecture), nil
		}
		return &megatronFamily, Read(m.Config), nil
	}
	if f := OfSizes(m.Architecture); f != nil {
		return f, readSizes(m.Architecture), nil
	}
	if m.Implementation == LitGPT {
		return &litgptFamily, Read(m.Config), nil
	}
	library, name, ok := Library(m.ID)
	if !ok {
		library, name, ok = named(m)
	}
	if !ok {
		family, err := Of(m.Config)
		return family, Read(m.Config), err
	}
	values := maps.Clone(m.Config)
	if values == nil {
		values = map[string]any{}
	}
	values["architecture"] = name
	family, err := ofLibrary(library, name)
	return family, Read(values), err
}

// OfSizes returns the family that takes the explicit sizes of
// model.architecture, nil where there is none.
func OfSizes(architecture map[string]any) *Family {
	name, _ := architecture["family"].(string)
	families := Families()
	for i := range families {
		if name != "" && families[i].Explicit == name {
			return &families[i]
		}
	}
	return nil
}

// ExplicitFamilies lists the families of model.architecture whose sizes are
// taken as they are.
func ExplicitFamilies() []string {
	var names []string
	for _, f := range Families() {
		if f.Explicit != "" {
			names = append(names, f.Explicit)
		}
	}
	slices.Sort(names)
	return names
}

// named finds the architecture that a config names where it has no model_type.
func named(m spec.Model) (library, name string, ok bool) {
	name, ok = m.Config["architecture"].(string)
	if _, typed := m.Config["model_type"]; typed || !ok {
		return "", "", false
	}
	if m.Implementation == Torchvision {
		return Torchvision, name, true
	}
	return Timm, name, true
}

// ofLibrary finds the family that builds a library's architecture.
func ofLibrary(library, name string) (*Family, error) {
	families := Families()
	var known []string
	for i := range families {
		if families[i].Library != library {
			continue
		}
		if slices.Contains(families[i].Architectures, name) {
			return &families[i], nil
		}
		known = append(known, families[i].Architectures...)
	}
	slices.Sort(known)
	near := nearest(name, known)
	var fields fault.Fields
	fields.Add("model.id", library+"/"+name, "an architecture of "+library+" that is modelled: "+join(known), library+"/"+near)
	return nil, fields
}

// LibraryIDs lists the ids of every modelled architecture of timm and
// torchvision, sorted.
func LibraryIDs() []string {
	var ids []string
	for _, f := range Families() {
		for _, name := range f.Architectures {
			ids = append(ids, f.Library+"/"+name)
		}
	}
	slices.Sort(ids)
	return ids
}
