package step

import (
	"slices"
	"strconv"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// beyondFSDP lists the settings of fully sharded data parallelism that the
// engine does not run, and those the framework itself refuses.
func beyondFSDP(j *spec.Job) fault.Fields {
	var f fault.Fields
	p := &j.Parallelism
	if p.Sharding != "fsdp" {
		return nil
	}
	o := p.FSDP
	if o == nil {
		f.Add("parallelism.fsdp", "nothing", "its settings", "")
		return f
	}
	refuse := func(bad bool, path, got, want, nearest string) {
		if bad {
			f.Add(path, got, want, nearest)
		}
	}
	replicas := max(1, p.Replicate)
	refuse(p.Data%replicas != 0 || p.Data/replicas < 2, "parallelism.data", strconv.Itoa(p.Data),
		"a multiple of parallelism.replicate, with at least two shards", strconv.Itoa(2*replicas))
	refuse(o.Version != 1 && o.Version != 2, "parallelism.fsdp.version", strconv.Itoa(o.Version), "1 or 2", "2")
	refuse(j.Runtime.Trainer != "plain" && o.Version != 1, "runtime.trainer", j.Runtime.Trainer, "plain (others are not modelled with FSDP 2)", "plain")
	if o.Version == 1 {
		refuse(o.Wrap != nil && len(o.Wrap.Modules) > 0, "parallelism.fsdp.wrap", "named modules", "decoder-layer, or {min_parameters: N} (others are not modelled)", "decoder-layer")
		refuse(o.Strategy != "FULL_SHARD" && o.Strategy != "SHARD_GRAD_OP", "parallelism.fsdp.strategy", o.Strategy, "FULL_SHARD or SHARD_GRAD_OP (others are not modelled)", "FULL_SHARD")
		refuse(len(o.ShardedSeparately) > 0, "parallelism.fsdp.sharded_separately", "modules", "nothing: it is of FSDP 2", "")
		refuse(j.Training.Adapter != nil, "training.adapter", "a value", "nothing: it is not modelled with FSDP 1", "")
	} else {
		refuse(o.Wrap != nil && o.Wrap.Policy != "decoder-layer", "parallelism.fsdp.wrap", "other modules", "decoder-layer, and sharded_separately for modules beside it", "decoder-layer")
		refuse(o.BackwardPrefetch != "" && o.BackwardPrefetch != "pre", "parallelism.fsdp.backward_prefetch", o.BackwardPrefetch, "pre: FSDP 2 knows no other", "pre")
		refuse(!enabled(o.LimitAllGathers), "parallelism.fsdp.limit_all_gathers", "false", "true: FSDP 2 has no such setting", "true")
		refuse(o.Strategy != "" && o.Strategy != "FULL_SHARD", "parallelism.fsdp.strategy", o.Strategy, "FULL_SHARD; FSDP 2 has reshard_after_forward and parallelism.replicate", "FULL_SHARD")
	}
	refuse(len(o.Ignored) > 0, "parallelism.fsdp.ignored", "modules", "nothing: it is not modelled", "")
	refuse(o.QuantisedStorage != "", "parallelism.fsdp.quantised_storage", o.QuantisedStorage, "nothing: it is not modelled", "")
	refuse(o.ReduceDType != "" && o.ReduceDType != spec.FP32 && o.ReduceDType != spec.BF16, "parallelism.fsdp.reduce_dtype", string(o.ReduceDType), "fp32 or bf16", "fp32")
	if c := j.Training.Checkpointing; o.Version == 2 && c.Mode == "full" && c.Reentrant != nil && *c.Reentrant && !spec.ParseVersion(j.Runtime.FrameworkVersion).Before(newerShardsSince) {
		f.Add("training.activation_checkpointing.reentrant", "true", "false (reentrant is not modelled with this torch's FSDP 2)", "false")
	}
	f = append(f, beyondShards(j)...)
	if j.Runtime.Trainer == "hf" {
		f = append(f, beyondAccelerate(j)...)
	}
	return f
}

// offloadsFSDP1 reports whether the job keeps all it trains on the host as
// CPUOffload(offload_params=True) of FSDP 1 does, whose gradients do not
// accumulate, in the way that is modelled: under a policy of mixed precision.
func offloadsFSDP1(j *spec.Job) bool {
	p, t := &j.Parallelism, &j.Training
	all := true
	for _, what := range []string{"parameters", "gradients", "optimizer"} {
		all = all && slices.Contains(p.Offload, what)
	}
	return all && p.Sharding == "fsdp" && p.FSDP != nil && p.FSDP.Version == 1 && p.Replicate <= 1 && p.OffloadTo != "nvme" &&
		j.Runtime.Trainer == "plain" && t.Precision.Mixed() != "" && t.WeightsDType == spec.FP32 && t.GradAccumSteps <= 1
}

// beyondAccelerate lists what the Trainer does not hand to FSDP, or what is not
// modelled there: its policy computes and reduces in the type of the mixed
// precision (accelerate/utils/dataclasses.py:set_mixed_precision @v1.15.0).
func beyondAccelerate(j *spec.Job) fault.Fields {
	var f fault.Fields
	o, mixed := j.Parallelism.FSDP, j.Training.Precision.Mixed()
	if mixed != "" && o.ReduceDType != mixed {
		f.Add("parallelism.fsdp.reduce_dtype", string(o.ReduceDType), "the type of the mixed precision, as accelerate sets it", string(mixed))
	}
	if mixed != "" && j.Training.WeightsDType != spec.FP32 {
		f.Add("training.weights_dtype", string(j.Training.WeightsDType), "fp32: accelerate would cast to it", string(spec.FP32))
	}
	if o.Strategy != "FULL_SHARD" || j.Parallelism.Replicate > 1 || o.NoSyncAccumulation {
		f.Add("parallelism.fsdp", "a strategy", "FULL_SHARD without replicas or no_sync_accumulation (others are not modelled with the Trainer)", "")
	}
	return f
}

// beyondShards lists what does not work on sharded parameters.
func beyondShards(j *spec.Job) fault.Fields {
	var f fault.Fields
	t := &j.Training
	if t.Precision == spec.PrecisionFP16Mixed || t.GradScaler == spec.On {
		f.Add("training.precision", string(t.Precision), "no gradient scaler: over shards it is not modelled", string(spec.PrecisionBF16Mixed))
	}
	if a := t.Adapter; a != nil && a.DType != t.WeightsDType {
		f.Add("training.adapter.dtype", string(a.DType), "the base's type: FSDP 2 wants one type in a unit", string(t.WeightsDType))
	}
	if t.Method == "dora" {
		f.Add("training.method", t.Method, "full or lora (others are not modelled with FSDP 2)", "lora")
	}
	if o := t.Optimizer; o.Library != "torch" || o.Name != "adamw" && o.Name != "adam" && o.Name != "sgd" {
		f.Add("training.optimizer.name", o.Name, "torch's adamw, adam or sgd (others are not modelled with FSDP 2)", "adamw")
	}
	if objective := t.Objective; objective == "classification" {
		f.Add("training.objective", objective, "sft or pretrain (others are not modelled with FSDP 2)", "sft")
	}
	return f
}
