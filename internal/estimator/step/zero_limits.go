package step

import (
	"slices"
	"strconv"
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
	refuse(j.Runtime.Trainer != "deepspeed" && j.Runtime.Trainer != "hf", "runtime.trainer", j.Runtime.Trainer, "deepspeed or hf (others are not modelled with ZeRO)", "deepspeed")
	half := engineDType(t) != graph.F32
	refuse(half && t.MasterWeights != "fp32", "training.master_weights", t.MasterWeights, "fp32: ZeRO steps a copy in fp32", "fp32")
	refuse(half && DTypeOf(t.WeightsDType) != engineDType(t), "training.weights_dtype", string(t.WeightsDType), "the type of the precision, to which DeepSpeed casts the module", "")
	refuse(t.GradScaler == spec.On, "training.grad_scaler", "true", "auto: DeepSpeed scales by a number of its own", "auto")
	refuse(!enabled(t.OptimizerStep), "training.optimizer_step", "false", "true (ZeRO without a step is not modelled)", "true")
	refuse(t.Quantization != nil && t.Quantization.Type != "none", "training.quantization", "a value", "none (others are not modelled with ZeRO)", "none")
	f = append(f, beyondZeROSettings(p)...)
	accumulates := t.GradientDType == "" || DTypeOf(t.GradientDType) == engineDType(t)
	refuse(!accumulates && p.Sharding != "zero2", "training.gradient_dtype", string(t.GradientDType), "the engine's type (others are not modelled with "+p.Sharding+")", "")
	if p.Sharding != "zero3" {
		return f
	}
	refuse(p.Data < 2, "parallelism.data", strconv.Itoa(p.Data), "2 or more: on one rank stage 3 is not modelled", "2")
	refuse(t.Method == "dora", "training.method", t.Method, "full or lora (others are not modelled with ZeRO 3)", "lora")
	return f
}

// beyondZeROSettings lists what ZeRO is asked to keep where it is not modelled.
func beyondZeROSettings(p *spec.Parallelism) fault.Fields {
	var f fault.Fields
	if p.Zero != nil && p.Zero.ShardOver != 0 {
		f.Add("parallelism.zero.shard_over", p.Zero.ShardOver, "nothing: it is not modelled", "")
	}
	if len(p.Offload) > 0 && p.OffloadTo == "nvme" {
		f.Add("parallelism.offload_to", p.OffloadTo, "cpu (others are not modelled)", "cpu")
	}
	for i, what := range p.Offload {
		path := "parallelism.offload[" + strconv.Itoa(i) + "]"
		switch {
		case what == "optimizer" || what == "none":
		case what != "parameters":
			f.Add(path, what, "optimizer or parameters (others are not modelled with ZeRO)", "optimizer")
		case p.Sharding != "zero3":
			f.Add(path, what, "optimizer: only stage 3 keeps parameters elsewhere", "optimizer")
		case !offloads(p, "optimizer"):
			f.Add(path, what, "optimizer beside it (parameters alone are not modelled)", "optimizer")
		}
	}
	return f
}
