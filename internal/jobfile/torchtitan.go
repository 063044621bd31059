package jobfile

import (
	"slices"
	"strconv"
	"strings"

	"memplan/internal/estimator/spec"
)

// torchtitan is the TOML of torchtitan. Keys of
// pytorch/torchtitan:torchtitan/config/job_config.py@0.2.
func torchtitan() Format {
	return Format{
		Name: "torchtitan", Title: "torchtitan", File: "train.toml", Kind: Training, Source: "torchtitan 0.2",
		syntax: tomlSyntax(), implies: trainer("torchtitan"), suits: func(j *spec.Job) bool {
			return j.Training.SequenceLength > 0 && trainedBy("torchtitan", "plain", "")(j) && slices.Contains([]string{"", "none", "ddp", "fsdp"}, j.Parallelism.Sharding)
		},
		rules: []rule{
			microBatch("training.local_batch_size"),
			sequenceLength("training.seq_len"),
			choose("training.dtype", "training.weights_dtype", func(j *spec.Job) *spec.DType { return &j.Training.WeightsDType }, torchTypes[:2]...),
			titanPrecision(),
			clipping("training.max_norm", 0.0),
			titanGradients(),
			choose("optimizer.name", "training.optimizer.name", func(j *spec.Job) *string { return &j.Training.Optimizer.Name },
				choice[string]{"adamw", "AdamW"}, choice[string]{"adam", "Adam"}),
			choose("optimizer.implementation", "training.optimizer.implementation", func(j *spec.Job) *string { return &j.Training.Optimizer.Implementation },
				choice[string]{"fused", "fused"}, choice[string]{"foreach", "foreach"}, choice[string]{"for-loop", "for-loop"}),
			titanDegrees(),
			size("parallelism.tensor_parallel_degree", "parallelism.tensor", func(p *spec.Parallelism) *int { return &p.Tensor }),
			size("parallelism.pipeline_parallel_degree", "parallelism.pipeline", func(p *spec.Parallelism) *int { return &p.Pipeline }),
			size("parallelism.context_parallel_degree", "parallelism.context", func(p *spec.Parallelism) *int { return &p.Context }),
			flag("parallelism.enable_async_tensor_parallel", "parallelism.async_tensor", func(j *spec.Job) *bool { return &j.Parallelism.AsyncTensor }),
			choose("parallelism.pipeline_parallel_schedule", "parallelism.pipeline_schedule", func(j *spec.Job) *string { return &j.Parallelism.PipelineSchedule },
				choice[string]{"1f1b", "1F1B"}, choice[string]{"gpipe", "GPipe"}, choice[string]{"interleaved", "Interleaved1F1B"}, choice[string]{"zero-bubble", "InterleavedZeroBubble"}),
			titanReshard(),
			titanCheckpointing(),
			compile("compile.enable"),
		},
	}
}

// titanPrecision ties mixed precision: the type parameters are cast to when
// gathered; equal to the weights' own it is none.
func titanPrecision() rule {
	const key = "training.mixed_precision_param"
	return custom(
		func(s *Subject, d *document) {
			switch t := s.Job.Training; {
			case t.Precision == spec.PrecisionBF16Mixed && t.WeightsDType == spec.FP32, t.Precision == spec.PrecisionBF16 && t.WeightsDType == spec.BF16:
				d.set(key, "bfloat16")
			case t.Precision == spec.PrecisionFP32:
				d.set(key, "float32")
			}
		},
		func(in *source, j *spec.Job) {
			t := &j.Training
			switch w, ok := in.word(key); {
			case !ok:
			case w == "bfloat16" && t.WeightsDType == spec.BF16:
				t.Precision = spec.PrecisionBF16
			case w == "bfloat16":
				t.Precision = spec.PrecisionBF16Mixed
			case w == "float32":
				t.Precision = spec.PrecisionFP32
			default:
				in.refuse(key, w, "bfloat16 or float32")
			}
		}, "training.precision")
}

// titanGradients ties accumulation, which torchtitan derives from the global
// batch.
func titanGradients() rule {
	const key = "training.global_batch_size"
	return custom(
		func(s *Subject, d *document) {
			t := s.Job.Training
			d.set(key, max(t.MicroBatchSize, 1)*max(t.GradAccumSteps, 1)*max(s.Job.Parallelism.Data, 1))
		},
		func(in *source, j *spec.Job) {
			global, ok := in.whole(key)
			shard, _ := in.whole("parallelism.data_parallel_shard_degree")
			replicate, _ := in.whole("parallelism.data_parallel_replicate_degree")
			per := max(j.Training.MicroBatchSize, 1) * max(shard, 1) * max(replicate, 1)
			switch {
			case !ok || global < 0: // -1: no accumulation
			case global%per != 0:
				in.refuse(key, global, "a multiple of "+strconv.Itoa(per))
			default:
				j.Training.GradAccumSteps = global / per
			}
		}, "training.gradient_accumulation_steps")
}

func titanDegrees() rule {
	const shard, replicate = "parallelism.data_parallel_shard_degree", "parallelism.data_parallel_replicate_degree"
	return custom(
		func(s *Subject, d *document) {
			p := s.Job.Parallelism
			switch data := max(p.Data, 1); {
			case p.Sharding == "fsdp":
				d.set(shard, data/max(p.Replicate, 1))
				d.set(replicate, max(p.Replicate, 1))
			default:
				d.set(shard, 1)
				d.set(replicate, data)
			}
		},
		func(in *source, j *spec.Job) {
			p := &j.Parallelism
			n, ok := in.whole(shard)
			m, several := in.whole(replicate)
			if !ok && !several || n < 0 { // -1: what the world's size leaves
				return
			}
			p.Data = max(n, 1) * max(m, 1)
			switch {
			case n > 1:
				if p.Sharding = "fsdp"; m > 1 {
					p.Replicate = m
				}
			case m > 1:
				p.Sharding = "ddp"
			default:
				p.Sharding = "none"
			}
		}, "parallelism.data", "parallelism.sharding", "parallelism.replicate")
}

func titanReshard() rule {
	const key = "parallelism.fsdp_reshard_after_forward"
	return inFSDP(custom(
		func(s *Subject, d *document) {
			if r := s.Job.Parallelism.FSDP.ReshardAfterForward; r != nil {
				d.set(key, map[bool]string{true: "always", false: "never"}[*r])
			}
		},
		func(in *source, j *spec.Job) {
			if w, ok := in.word(key); ok && w != "default" {
				on := w == "always"
				fsdp(j).ReshardAfterForward = &on
			}
		}, "parallelism.fsdp.reshard_after_forward"))
}

func titanCheckpointing() rule {
	const mode, option = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
	return custom(
		func(s *Subject, d *document) {
			switch c := s.Job.Training.Checkpointing; {
			case c.Mode == "none":
				d.set(mode, "none")
			case c.Every > 1:
				d.set(mode, "selective")
				d.set(option, strconv.Itoa(c.Every))
			case c.Mode == "full":
				d.set(mode, "full")
			case c.Mode == "selective":
				d.set(mode, "selective")
				d.set(option, "op")
			}
		},
		func(in *source, j *spec.Job) {
			c := &j.Training.Checkpointing
			m, ok := in.word(mode)
			o, _ := in.word(option)
			n, err := strconv.Atoi(o)
			switch {
			case !ok:
			case m == "selective" && err == nil:
				c.Mode, c.Every = "full", n
			case m == "selective":
				c.Mode, c.Policy = "selective", "op"
			case strings.Contains(" none full ", " "+m+" "):
				c.Mode = m
			default:
				in.refuse(mode, m, "one of none, full, selective")
			}
		}, "training.activation_checkpointing.mode", "training.activation_checkpointing.every", "training.activation_checkpointing.policy")
}
