package step

import (
	"slices"
	"strings"

	"memplan/internal/estimator/graph"
)

// savedModules lists the modules whose path ends in one of the names
// (modules_to_save), parents first.
func savedModules(root *graph.Module, names []string) []*graph.Module {
	var found []*graph.Module
	root.Walk(func(m *graph.Module) {
		if m.Path != "" && slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(m.Path, n) }) {
			found = append(found, m)
		}
	})
	return found
}

// trainCopy makes m a ModulesToSaveWrapper: the module stays, frozen and never
// run, and a deep copy of it is trained. Weights tied to the module stay tied
// to the frozen one.
func trainCopy(root, m *graph.Module) {
	trained := &graph.Module{}
	*trained = *m
	*m = graph.Module{Class: "ModulesToSaveWrapper", Name: m.Name, Path: m.Path, Forward: trained.Forward}
	m.Child("original_module", frozenTwin(root, trained))
	m.Child("modules_to_save", graph.NewModule("ModuleDict")).Child("default", trained)
	for _, p := range trained.Parameters() {
		p.Trained = true
	}
}

// frozenTwin moves a module's ties to a copy of its parameters, and returns
// the copy.
func frozenTwin(root, m *graph.Module) *graph.Module {
	twin := graph.NewModule(m.Class)
	for _, p := range m.Params {
		q := &graph.Param{Name: p.Name, Shape: p.Shape, DType: p.DType, Category: p.Category, Tied: p.Tied}
		p.Tied = nil
		retie(root, p, q)
		twin.Params = append(twin.Params, q)
	}
	for _, b := range m.Buffers {
		twin.Buffers = append(twin.Buffers, &graph.Param{Name: b.Name, Shape: b.Shape, DType: b.DType, Category: b.Category})
	}
	for _, c := range m.Children {
		twin.Child(c.Name, frozenTwin(root, c))
	}
	return twin
}

// retie gives to another parameter what was tied to p.
func retie(root *graph.Module, p, to *graph.Param) {
	root.Walk(func(x *graph.Module) {
		for _, q := range x.Params {
			if q.Tied == p {
				q.Tied = to
			}
		}
	})
}
