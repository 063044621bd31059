package jobfile

import (
	"slices"
	"strings"

	"memplan/internal/estimator/spec"
)

// deepspeedJSON is the configuration of DeepSpeed. Keys of
// deepspeedai/DeepSpeed:deepspeed/runtime/config.py and
// runtime/zero/config.py@0.16.
func deepspeedJSON() Format {
	const zero = "zero_optimization."
	return Format{
		Name: "deepspeed", Title: "DeepSpeed", File: "ds_config.json", Kind: Training, Source: "DeepSpeed 0.16",
		syntax: jsonSyntax(),
		suits:  func(j *spec.Job) bool { return strings.HasPrefix(j.Parallelism.Sharding, "zero") },
		rules: []rule{
			microBatch("train_micro_batch_size_per_gpu"),
			accumulation("gradient_accumulation_steps"),
			clipping("gradient_clipping", 0.0),
			enginePrecision(),
			choose(zero+"stage", "parallelism.sharding", func(j *spec.Job) *string { return &j.Parallelism.Sharding },
				choice[string]{"ddp", 0}, choice[string]{"zero1", 1}, choice[string]{"zero2", 2}, choice[string]{"zero3", 3}),
			elements(zero+"reduce_bucket_size", "reduce_bucket_size", func(z *spec.Zero) *spec.AutoNumber { return &z.ReduceBucketSize }),
			elements(zero+"allgather_bucket_size", "allgather_bucket_size", func(z *spec.Zero) *spec.AutoNumber { return &z.AllGatherBucketSize }),
			toggled(zero+"overlap_comm", "overlap_comm", func(z *spec.Zero) **bool { return &z.OverlapComm }),
			toggled(zero+"contiguous_gradients", "contiguous_gradients", func(z *spec.Zero) **bool { return &z.ContiguousGradients }),
			elements(zero+"sub_group_size", "sub_group_size", func(z *spec.Zero) *spec.AutoNumber { return &z.SubGroupSize }),
			elements(zero+"stage3_prefetch_bucket_size", "stage3_prefetch_bucket_size", func(z *spec.Zero) *spec.AutoNumber { return &z.PrefetchBucketSize }),
			elements(zero+"stage3_param_persistence_threshold", "stage3_param_persistence_threshold", func(z *spec.Zero) *spec.AutoNumber { return &z.ParamPersistenceThreshold }),
			elements(zero+"stage3_max_live_parameters", "stage3_max_live_parameters", func(z *spec.Zero) *spec.AutoNumber { return &z.MaxLiveParameters }),
			elements(zero+"stage3_max_reuse_distance", "stage3_max_reuse_distance", func(z *spec.Zero) *spec.AutoNumber { return &z.MaxReuseDistance }),
			offloadDevices(zero),
			deepspeedOptimizer(),
		},
	}
}

// enginePrecision is DeepSpeed's 16-bit engine: weights of that type and a
// master copy in fp32.
func enginePrecision() rule {
	return custom(
		func(s *Subject, d *document) {
			switch t := s.Job.Training; {
			case t.MasterWeights == "fp32" && t.WeightsDType == spec.BF16:
				d.set("bf16.enabled", true)
			case t.MasterWeights == "fp32" && t.WeightsDType == spec.FP16:
				d.set("fp16.enabled", true)
			case t.Precision == spec.PrecisionFP32:
				d.set("bf16.enabled", false)
			}
		},
		func(in *source, j *spec.Job) {
			t := &j.Training
			b, given := in.flag("bf16.enabled")
			f, _ := in.flag("fp16.enabled")
			switch {
			case b:
				t.Precision, t.WeightsDType, t.MasterWeights = spec.PrecisionBF16Mixed, spec.BF16, "fp32"
			case f:
				t.Precision, t.WeightsDType, t.MasterWeights = spec.PrecisionFP16Mixed, spec.FP16, "fp32"
			case given:
				t.Precision, t.WeightsDType = spec.PrecisionFP32, spec.FP32
			}
		}, "training.precision", "training.weights_dtype", "training.master_weights")
}

func zeroOf(j *spec.Job) *spec.Zero {
	if j.Parallelism.Zero == nil {
		j.Parallelism.Zero = new(spec.Zero)
	}
	return j.Parallelism.Zero
}

// elements ties a size in elements, which may be "auto".
func elements(key, name string, at func(*spec.Zero) *spec.AutoNumber) rule {
	return custom(
		func(s *Subject, d *document) {
			if s.Job.Parallelism.Zero == nil {
				return
			}
			switch n := *at(s.Job.Parallelism.Zero); {
			case n.Auto:
				d.set(key, "auto")
			case n.Set:
				d.set(key, int(n.Value))
			}
		},
		func(in *source, j *spec.Job) {
			if v, ok := in.get(key); ok && v == "auto" {
				in.used[key] = true
				*at(zeroOf(j)) = spec.AutoNumber{Set: true, Auto: true}
				return
			}
			if n, ok := in.number(key); ok {
				*at(zeroOf(j)) = spec.AutoNumber{Set: true, Value: n}
			}
		}, "parallelism.zero."+name)
}

func toggled(key, name string, at func(*spec.Zero) **bool) rule {
	return custom(
		func(s *Subject, d *document) {
			if z := s.Job.Parallelism.Zero; z != nil && *at(z) != nil {
				d.set(key, **at(z))
			}
		},
		func(in *source, j *spec.Job) {
			if on, ok := in.flag(key); ok {
				*at(zeroOf(j)) = &on
			}
		}, "parallelism.zero."+name)
}

// offloadDevices ties what lives on the host, and on which medium.
func offloadDevices(zero string) rule {
	kinds := []struct{ key, kind string }{{zero + "offload_optimizer.device", "optimizer"}, {zero + "offload_param.device", "parameters"}}
	return custom(
		func(s *Subject, d *document) {
			p := s.Job.Parallelism
			for _, k := range kinds {
				if !slices.Contains(p.Offload, k.kind) {
					continue
				}
				device := p.OffloadTo
				if device == "" {
					device = "cpu"
				}
				d.set(k.key, device)
			}
		},
		func(in *source, j *spec.Job) {
			p := &j.Parallelism
			for _, k := range kinds {
				if device, ok := in.word(k.key); ok && device != "none" {
					p.Offload, p.OffloadTo = append(p.Offload, k.kind), device
				}
			}
		}, "parallelism.offload", "parallelism.offload_to")
}

// deepspeedOptimizer ties the optimizers that the engine makes itself.
func deepspeedOptimizer() rule {
	choices := []choice[spec.Optimizer]{
		{spec.Optimizer{Name: "adamw", Library: "deepspeed"}, "AdamW"},
		{spec.Optimizer{Name: "adam", Library: "deepspeed"}, "Adam"},
		{spec.Optimizer{Name: "lamb", Library: "deepspeed"}, "Lamb"},
		{spec.Optimizer{Name: "lion", Library: "deepspeed"}, "Lion"},
		{spec.Optimizer{Name: "muon", Library: "deepspeed"}, "Muon"},
	}
	return custom(
		func(s *Subject, d *document) {
			for _, c := range choices {
				if c.ours.Name == s.Job.Training.Optimizer.Name && s.Job.Training.Optimizer.Library == "deepspeed" {
					d.set("optimizer.type", c.theirs)
				}
			}
		},
		func(in *source, j *spec.Job) {
			name, ok := in.word("optimizer.type")
			if !ok {
				return
			}
			for _, c := range choices {
				if strings.EqualFold(name, textOf(c.theirs)) {
					j.Training.Optimizer = c.ours
					return
				}
			}
			in.refuse("optimizer.type", name, "one of AdamW, Adam, Lamb, Lion, Muon")
		}, "training.optimizer.name", "training.optimizer.library")
}
