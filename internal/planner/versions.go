package planner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
)

// resolveVersions says of each named version that the catalogue does not know
// which known one is nearest. The job keeps what the user wrote: rules that
// carry their own versions still see it.
func (p *Planner) resolveVersions(_ context.Context, r *prepared) error {
	rt := r.job.Runtime
	if framework := cmp.Or(rt.Framework, "pytorch"); framework == "pytorch" {
		p.nearestVersion(r, "runtime.framework_version", "torch", rt.FrameworkVersion)
	}
	p.nearestVersion(r, "runtime.trainer_version", trainerLibrary(rt.Trainer), rt.TrainerVersion)
	for _, library := range slices.Sorted(maps.Keys(rt.LibraryVersions)) {
		p.nearestVersion(r, "runtime.library_versions."+library, library, rt.LibraryVersions[library])
	}
	return nil
}

// nearestVersion notes an assumption unless the version is known, or none was
// given, or the library is one the catalogue has no versions of.
func (p *Planner) nearestVersion(r *prepared, path, library, version string) {
	if version == "" {
		return
	}
	known, exact := p.catalog.NearestVersion(library, version)
	if known == "" || exact {
		return
	}
	r.assume(path, known, false, fmt.Sprintf("%s %s is not among the versions checked; the nearest is taken where nothing else is known", library, version))
}

// trainerLibrary is the library whose version trainer_version gives.
func trainerLibrary(trainer string) string {
	switch trainer {
	case "", "hf":
		return "transformers"
	case "megatron":
		return "megatron-core"
	}
	return trainer
}
