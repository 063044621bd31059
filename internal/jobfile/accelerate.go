package jobfile

import (
	"strings"

	"memplan/internal/estimator/spec"
)

// accelerateFSDP is the configuration file of `accelerate launch` for sharded
// training. Keys of huggingface/accelerate:src/accelerate/commands/config and
// utils/dataclasses.py@1.15 (FullyShardedDataParallelPlugin).
func accelerateFSDP() Format {
	return Format{
		Name: "accelerate", Title: "accelerate FSDP", File: "fsdp.yaml", Kind: Training, Source: "accelerate 1.15",
		syntax: yamlSyntax(),
		suits:  func(j *spec.Job) bool { return j.Parallelism.Sharding == "fsdp" },
		fixed: func(*Subject) document {
			return lines(entry{"compute_environment", "LOCAL_MACHINE"}, entry{"distributed_type", "FSDP"})
		},
		rules: []rule{
			sharding(),
			gpus("num_processes"),
			custom(func(*Subject, *document) {}, func(in *source, _ *spec.Job) { in.value("compute_environment") }),
			choose("mixed_precision", "training.precision", func(j *spec.Job) *spec.Precision { return &j.Training.Precision },
				choice[spec.Precision]{spec.PrecisionBF16Mixed, "bf16"}, choice[spec.Precision]{spec.PrecisionFP16Mixed, "fp16"}, choice[spec.Precision]{spec.PrecisionFP32, "no"}),
			inFSDP(choose("fsdp_config.fsdp_version", "parallelism.fsdp.version", func(j *spec.Job) *int { return &fsdp(j).Version },
				choice[int]{2, 2}, choice[int]{1, 1})),
			wrapping(),
			reshard(),
			offloaded("fsdp_config.fsdp_offload_params", true, "parameters", "optimizer"),
			inFSDP(choose("fsdp_config.fsdp_backward_prefetch", "parallelism.fsdp.backward_prefetch", func(j *spec.Job) *string { return &fsdp(j).BackwardPrefetch },
				choice[string]{"pre", "BACKWARD_PRE"}, choice[string]{"post", "BACKWARD_POST"}, choice[string]{"none", "NO_PREFETCH"})),
			checkpointing("fsdp_config.fsdp_activation_checkpointing", ""),
		},
	}
}

// fsdp returns the job's FSDP settings, made when absent.
func fsdp(j *spec.Job) *spec.FSDP {
	if j.Parallelism.FSDP == nil {
		j.Parallelism.FSDP = new(spec.FSDP)
	}
	return j.Parallelism.FSDP
}

func inFSDP(r rule) rule {
	write := r.write
	r.write = func(s *Subject, d *document) {
		if s.Job.Parallelism.FSDP != nil {
			write(s, d)
		}
	}
	return r
}

func sharding() rule {
	return custom(
		func(*Subject, *document) {},
		func(in *source, j *spec.Job) {
			kind, _ := in.word("distributed_type")
			n, _ := in.number("num_processes")
			switch strings.ToUpper(kind) {
			case "FSDP":
				j.Parallelism.Sharding = "fsdp"
			case "MULTI_GPU":
				j.Parallelism.Sharding = "ddp"
			}
			if j.Parallelism.Sharding != "" && n > 0 {
				j.Parallelism.Data = int(n)
			}
		}, "parallelism.sharding", "parallelism.data")
}

// wrapping ties the unit that is sharded: decoder layers, or modules by name.
func wrapping() rule {
	const policy, size, names = "fsdp_config.fsdp_auto_wrap_policy", "fsdp_config.fsdp_min_num_params", "fsdp_config.fsdp_transformer_layer_cls_to_wrap"
	return inFSDP(custom(
		func(s *Subject, d *document) {
			w := s.Job.Parallelism.FSDP.Wrap
			switch {
			case w == nil:
			case w.MinParameters > 0:
				d.set(policy, "SIZE_BASED_WRAP")
				d.set(size, int(w.MinParameters))
			case len(w.Modules) > 0:
				d.set(policy, "TRANSFORMER_BASED_WRAP")
				d.set(names, strings.Join(w.Modules, ","))
			default:
				d.set(policy, "TRANSFORMER_BASED_WRAP")
			}
		},
		func(in *source, j *spec.Job) {
			p, ok := in.word(policy)
			if !ok {
				return
			}
			n, _ := in.number(size)
			modules, _ := in.words(names)
			switch {
			case p == "SIZE_BASED_WRAP":
				fsdp(j).Wrap = &spec.Wrap{MinParameters: n}
			case len(modules) > 0:
				fsdp(j).Wrap = &spec.Wrap{Modules: modules}
			case p == "TRANSFORMER_BASED_WRAP":
				fsdp(j).Wrap = &spec.Wrap{Policy: "decoder-layer"}
			}
		}, "parallelism.fsdp.wrap"))
}

// reshard ties what FSDP 2 takes as true or false and FSDP 1 as a strategy.
func reshard() rule {
	const key = "fsdp_config.fsdp_reshard_after_forward"
	return inFSDP(custom(
		func(s *Subject, d *document) {
			switch f := s.Job.Parallelism.FSDP; {
			case f.Version == 1 && f.Strategy != "":
				d.set(key, f.Strategy)
			case f.Version != 1 && f.ReshardAfterForward != nil:
				d.set(key, *f.ReshardAfterForward)
			}
		},
		func(in *source, j *spec.Job) {
			switch w, ok := in.word(key); {
			case !ok:
			case strings.EqualFold(w, "true"), strings.EqualFold(w, "false"):
				on := strings.EqualFold(w, "true")
				fsdp(j).ReshardAfterForward = &on
			default:
				fsdp(j).Strategy = w
			}
		}, "parallelism.fsdp.reshard_after_forward", "parallelism.fsdp.strategy"))
}

// offloaded ties a switch to kinds of state that live on the host.
func offloaded(key string, on any, kinds ...string) rule {
	return custom(
		func(s *Subject, d *document) {
			if containsAll(s.Job.Parallelism.Offload, kinds) {
				d.set(key, on)
			}
		},
		func(in *source, j *spec.Job) {
			if w, ok := in.word(key); ok && strings.EqualFold(w, textOf(on)) {
				for _, k := range kinds {
					if !containsAll(j.Parallelism.Offload, []string{k}) {
						j.Parallelism.Offload = append(j.Parallelism.Offload, k)
					}
				}
			}
		}, "parallelism.offload")
}

func containsAll(have, want []string) bool {
	for _, w := range want {
		found := false
		for _, h := range have {
			found = found || h == w
		}
		if !found {
			return false
		}
	}
	return true
}
