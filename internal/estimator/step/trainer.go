package step

import (
	"slices"
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// trainer is a training loop: what it does once, per micro batch, and to
// finish a step. It marks the ends of the parts.
type trainer interface {
	begin(r *Run)           // before the first step
	micro(r *Run, i, n int) // micro batch i of n: forward and backward
	finish(r *Run)          // clip, step, zero
}

// trainers lists the loops by their public name.
func trainers() map[string]func() trainer {
	return map[string]func() trainer{
		"deepspeed": func() trainer { return &deepSpeedLoop{} },
		"hf":        func() trainer { return &hfLoop{loss: (*hfLoop).computeLoss} },
		"megatron":  func() trainer { return &megatronLoop{} },
		"lightning": func() trainer { return lightningLoop{} },
		"mmengine":  func() trainer { return mmengineLoop{} },
		"plain":     func() trainer { return &plainLoop{} },
		"trl":       func() trainer { return &hfLoop{loss: (*hfLoop).computeTRLLoss} },
	}
}

func names[V any](m map[string]V) string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// versionsOf reads the library versions of a resolved job.
func versionsOf(r spec.Runtime) spec.Versions {
	lib := func(name string) spec.Version { return spec.ParseVersion(r.LibraryVersions[name]) }
	return spec.Versions{
		Torch: spec.ParseVersion(r.FrameworkVersion), Transformers: lib("transformers"), PEFT: lib("peft"),
		Accelerate: lib("accelerate"), BitsAndBytes: lib("bitsandbytes"), LitGPT: lib("litgpt"),
	}
}

// DTypeOf is the engine's type for a public one.
func DTypeOf(d spec.DType) graph.DType {
	switch d {
	case spec.BF16:
		return graph.BF16
	case spec.FP16:
		return graph.F16
	}
	return graph.F32
}

// enabled reads a switch whose default is on.
func enabled(b *bool) bool { return b == nil || *b }
