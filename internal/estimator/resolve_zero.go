package estimator

import (
	"strings"

	"memplan/internal/estimator/spec"
)

// zero fills the settings of DeepSpeed's ZeRO: the engine's defaults, and for
// "auto" what transformers puts there.
func (r *resolver) zero() {
	p := &r.job.Parallelism
	if !shardedByZeRO(&r.job) {
		return
	}
	var o spec.Zero
	if p.Zero != nil {
		o = *p.Zero
	}
	hidden := hiddenSize(r.job.Model.Config)
	for _, n := range []struct {
		field          *spec.AutoNumber
		name           string
		standard, auto float64
		stage3         bool
	}{
		{&o.ReduceBucketSize, "reduce_bucket_size", 5e8, hidden * hidden, false},
		{&o.AllGatherBucketSize, "allgather_bucket_size", 5e8, 0, false},
		{&o.SubGroupSize, "sub_group_size", 1e9, 0, true},
		{&o.PrefetchBucketSize, "stage3_prefetch_bucket_size", 5e7, float64(int64(0.9 * hidden * hidden)), true},
		{&o.ParamPersistenceThreshold, "stage3_param_persistence_threshold", 1e5, 10 * hidden, true},
		{&o.MaxLiveParameters, "stage3_max_live_parameters", 1e9, 0, true},
		{&o.MaxReuseDistance, "stage3_max_reuse_distance", 1e9, 0, true},
	} {
		path := "parallelism.zero." + n.name
		switch {
		case n.stage3 && p.Sharding != "zero3":
		case !n.field.Set:
			*n.field = spec.AutoNumber{Set: true, Value: n.standard}
			r.assume(path, n.standard, false, "DeepSpeed's default")
		case n.field.Auto && n.auto > 0 && r.job.Runtime.Trainer == "hf":
			*n.field = spec.AutoNumber{Set: true, Value: n.auto}
			r.assume(path, n.auto, false, "what transformers puts in place of auto, by the hidden size")
		case n.field.Auto && len(r.job.Model.Config) > 0:
			r.fields.Add(path, "auto", "a number: only the Trainer knows what to put in place of auto, and here it does not", "")
		}
	}
	r.zeroSwitches(&o, p.Sharding == "zero3")
	p.Zero = &o
}

// zeroSwitches fills what is on or off. Communication overlaps by default in
// stage 3 alone (deepspeed/runtime/zero/config.py:overlap_comm_valid @v0.16.4).
func (r *resolver) zeroSwitches(o *spec.Zero, stage3 bool) {
	for _, s := range []struct {
		field **bool
		name  string
		value bool
	}{{&o.OverlapComm, "overlap_comm", stage3}, {&o.ContiguousGradients, "contiguous_gradients", true}} {
		if *s.field == nil {
			*s.field = &s.value
			r.assume("parallelism.zero."+s.name, s.value, false, "DeepSpeed's default")
		}
	}
}

// shardedByZeRO reports whether DeepSpeed shards the job.
func shardedByZeRO(j *spec.Job) bool {
	return strings.HasPrefix(j.Parallelism.Sharding, "zero") && j.Runtime.Trainer != "megatron"
}

// hiddenSize is the width by which transformers fills in "auto": hidden_size,
// or the largest of hidden_sizes (transformers/integrations/deepspeed.py:
// trainer_config_finalize @v4.49.0).
func hiddenSize(config map[string]any) float64 {
	if n, ok := config["hidden_size"].(float64); ok {
		return n
	}
	largest := 0.0
	sizes, _ := config["hidden_sizes"].([]any)
	for _, s := range sizes {
		if n, ok := s.(float64); ok {
			largest = max(largest, n)
		}
	}
	return largest
}
