package step

import (
	"regexp"
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// The Trainer hands its optimizer two groups: parameters with weight decay and
// those without (transformers/trainer.py:create_optimizer @v4.49.0, @v5.24.0).
// torch's optimizers work group by group.

// patternsSince is the transformers version from which norms are told by name
// alone; before, by the classes registered as layer norms.
var patternsSince = spec.Version{4, 50}

var undecayedName = regexp.MustCompile(`bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)`)

// registeredNorms are the architectures whose RMS norms transformers 4.49 had
// registered as layer norms, among those known here.
var registeredNorms = []string{"llama"}

// decayGroups splits the trained parameters as the Trainer does.
func decayGroups(r *Run) [][]*graph.Param {
	var decayed, rest []*graph.Param
	seen := map[*graph.Param]bool{}
	architecture, _ := r.Job.Model.Config["model_type"].(string)
	r.Net.Root.Walk(func(m *graph.Module) {
		for _, p := range m.Params {
			if p.Tied != nil {
				p = p.Tied
			}
			if !p.Trained || seen[p] {
				continue
			}
			seen[p] = true
			if undecayed(r.M.Versions.Transformers, architecture, m, p) {
				rest = append(rest, p)
			} else {
				decayed = append(decayed, p)
			}
		}
	})
	return [][]*graph.Param{decayed, rest}
}

// undecayed reports whether a parameter belongs to the second group.
func undecayed(v spec.Version, architecture string, m *graph.Module, p *graph.Param) bool {
	name := strings.ToLower(m.Path + "." + p.Name)
	if v.AtLeast(patternsSince) {
		return m.Class == "LayerNorm" || undecayedName.MatchString(name)
	}
	for _, part := range []string{"bias", "layernorm", "rmsnorm"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return m.Class == "LayerNorm" || strings.HasSuffix(m.Class, "RMSNorm") && oneOf(architecture, registeredNorms...)
}

// wideEmbeddingsSince is the transformers version whose Trainer keeps 32-bit
// states for embeddings with every 8-bit optimizer of bitsandbytes; before, the
// rule named a class that the Trainer no longer made.
var wideEmbeddingsSince = spec.Version{5}

// wideStates are the parameters an 8-bit optimizer keeps 32-bit states for.
func wideStates(r *Run) map[*graph.Param]bool {
	wide := map[*graph.Param]bool{}
	if !r.M.Versions.Transformers.AtLeast(wideEmbeddingsSince) {
		return wide
	}
	r.Net.Root.Walk(func(m *graph.Module) {
		if m.Class == "Embedding" {
			for _, p := range m.Params {
				wide[p] = true
			}
		}
	})
	return wide
}
