package step

import (
	"slices"
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// deepSpeedLibrary names DeepSpeed's own optimizers: FusedAdam, and
// DeepSpeedCPUAdam where the optimizer is on the host.
const deepSpeedLibrary = "deepspeed"

// zero reports whether DeepSpeed shards the job.
func zero(p *spec.Parallelism) bool { return strings.HasPrefix(p.Sharding, "zero") }

// offloads reports whether the job keeps something on the host.
func offloads(p *spec.Parallelism, what string) bool { return slices.Contains(p.Offload, what) }

// engineDType is the type DeepSpeed's engine casts the module to.
func engineDType(t *spec.Training) graph.DType {
	if d := t.Precision.Mixed(); d != "" {
		return DTypeOf(d)
	}
	return DTypeOf(t.Precision.Pure())
}

// beyondZeRO lists the settings of DeepSpeed that the engine does not run, and
// those DeepSpeed itself refuses.
func beyondZeRO(j *spec.Job) fault.Fields {
	var f fault.Fields
	p, t := &j.Parallelism, &j.Training
	refuse := func(bad bool, path, got, want, nearest string) {
		if bad {
			f.Add(path, got, want, nearest)
		}
	}
	refuse(!zero(p) && j.Runtime.Trainer == "deepspeed", "parallelism.sharding", p.Sharding, "zero1, zero2 or zero3: DeepSpeed without ZeRO is not modelled", "zero2")
	if !zero(p) {
		return f
	}
	refuse(j.Runtime.Trainer != "deepspeed", "runtime.trainer", j.Runtime.Trainer, "deepspeed (others are not modelled with ZeRO)", "deepspeed")
	refuse(p.Sharding == "zero3", "parallelism.sharding", p.Sharding, "zero1 or zero2 (stage 3 is not modelled)", "zero2")
	half := engineDType(t) != graph.F32
	refuse(half && t.MasterWeights != "fp32", "training.master_weights", t.MasterWeights, "fp32: ZeRO steps a copy in fp32", "fp32")
	refuse(half && DTypeOf(t.WeightsDType) != engineDType(t), "training.weights_dtype", string(t.WeightsDType), "the type of the precision, to which DeepSpeed casts the module", "")
	return f
}
