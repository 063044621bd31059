package planner

import (
	"sync"

	"memplan/internal/catalog"
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
)

// libraryModels are the models of timm and torchvision that the engine builds by
// their names, with the parameters that it builds.
var libraryModels = sync.OnceValue(func() []catalog.Model {
	var all []catalog.Model
	for _, id := range model.LibraryIDs() {
		library, name, _ := model.Library(id)
		family, parameters, err := countParameters(spec.Model{ID: id})
		if err != nil {
			continue // one that needs more than its name
		}
		all = append(all, catalog.Model{
			ID: id, Family: family.Name, Config: map[string]any{"architecture": name}, Parameters: parameters,
			Source: library + ": " + family.Source, CheckpointDType: "float32",
		})
	}
	return all
})

// countParameters counts what the engine builds of a model.
func countParameters(m spec.Model) (*model.Family, int64, error) {
	family, config, err := model.For(m)
	if err != nil {
		return nil, 0, err
	}
	net, err := family.New(*config, model.Build{DType: graph.F32, Attention: model.Attention{Kernel: "sdpa"}, Versions: spec.Versions{Torch: spec.Version{2, 15}, Transformers: spec.Version{5, 24}}, Tokens: 1})
	if err != nil {
		return nil, 0, err
	}
	var n int64
	for _, p := range net.Root.Parameters() {
		n += p.Numel()
	}
	return family, n, nil
}
