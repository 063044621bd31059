package jobfile

import (
	"slices"

	"memplan/internal/estimator/spec"
)

// megatron is the command line of Megatron-LM. Options of
// NVIDIA/Megatron-LM:megatron/training/arguments.py@core_v0.12.
func megatron() Format {
	return Format{
		Name: "megatron", Title: "Megatron-LM", File: "pretrain.sh", Kind: Training, Source: "Megatron-LM core 0.12",
		syntax: flagSyntax("pretrain_gpt.py"), suits: func(j *spec.Job) bool {
			return j.Runtime.Trainer == "megatron" && slices.Contains([]string{"", "none", "ddp", "zero1"}, j.Parallelism.Sharding)
		},
		implies: trainer("megatron"),
		rules: []rule{
			microBatch("micro-batch-size"),
			sequenceLength("seq-length"),
			size("tensor-model-parallel-size", "parallelism.tensor", func(p *spec.Parallelism) *int { return &p.Tensor }),
			size("pipeline-model-parallel-size", "parallelism.pipeline", func(p *spec.Parallelism) *int { return &p.Pipeline }),
			size("context-parallel-size", "parallelism.context", func(p *spec.Parallelism) *int { return &p.Context }),
			size("expert-model-parallel-size", "parallelism.expert", func(p *spec.Parallelism) *int { return &p.Expert }),
			size("expert-tensor-parallel-size", "parallelism.expert_tensor", func(p *spec.Parallelism) *int { return &p.ExpertTensor }),
			size("num-virtual-stages-per-pipeline-rank", "parallelism.virtual_pipeline", func(p *spec.Parallelism) *int { return &p.VirtualPipeline }),
			flag("sequence-parallel", "parallelism.sequence_parallel", func(j *spec.Job) *bool { return &j.Parallelism.SequenceParallel }),
			megatronData(),
			megatronSharding(),
			megatronPrecision(),
			megatronRecompute(),
			inMegatron(choose("transformer-impl", "parallelism.megatron.transformer_implementation", func(j *spec.Job) *string { return &megatronOf(j).TransformerImplementation },
				choice[string]{"transformer_engine", "transformer_engine"}, choice[string]{"local", "local"})),
			inMegatron(flag("overlap-grad-reduce", "parallelism.megatron.overlap_grad_reduce", func(j *spec.Job) *bool { return &megatronOf(j).OverlapGradReduce })),
			inMegatron(flag("overlap-param-gather", "parallelism.megatron.overlap_param_gather", func(j *spec.Job) *bool { return &megatronOf(j).OverlapParamGather })),
			inMegatron(flag("tp-comm-overlap", "parallelism.megatron.tp_comm_overlap", func(j *spec.Job) *bool { return &megatronOf(j).TPCommOverlap })),
			choose("optimizer", "training.optimizer.name", func(j *spec.Job) *string { return &j.Training.Optimizer.Name },
				choice[string]{"adamw", "adam"}, choice[string]{"sgd", "sgd"}, choice[string]{"muon", "muon"}),
		},
	}
}

// size ties a parallel size; 1 is what every size is unless it is said.
func size(key, path string, at func(*spec.Parallelism) *int) rule {
	return whole(key, path, func(j *spec.Job) *int { return at(&j.Parallelism) })
}

func megatronOf(j *spec.Job) *spec.Megatron {
	if j.Parallelism.Megatron == nil {
		j.Parallelism.Megatron = new(spec.Megatron)
	}
	return j.Parallelism.Megatron
}

func inMegatron(r rule) rule {
	write := r.write
	r.write = func(s *Subject, d *document) {
		if s.Job.Parallelism.Megatron != nil {
			write(s, d)
		}
	}
	return r
}

// megatronData ties what Megatron derives from the world's size and the global
// batch: data-parallel ranks and micro batches a step.
func megatronData() rule {
	return custom(
		func(s *Subject, d *document) {
			p, t := s.Job.Parallelism, s.Job.Training
			data, micro := max(p.Data, 1), max(t.MicroBatchSize, 1)
			if all, node := perNode(s.Job); all > node {
				d.set("nnodes", (all+node-1)/node)
				d.set("nproc-per-node", node)
			} else {
				d.set("nproc-per-node", all)
			}
			d.set("global-batch-size", data*micro*max(t.GradAccumSteps, 1))
		},
		func(in *source, j *spec.Job) {
			p, t := &j.Parallelism, &j.Training
			world, ok := in.whole("nproc-per-node")
			if nodes, several := in.whole("nnodes"); several && nodes > 1 {
				p.GPUsPerNode = world
				world *= nodes
			}
			global, given := in.whole("global-batch-size")
			if !ok {
				return
			}
			rest := max(p.Tensor, 1) * max(p.Pipeline, 1) * max(p.Context, 1)
			j.Target.Count, p.Data = world, max(world/rest, 1)
			if per := p.Data * max(t.MicroBatchSize, 1); given {
				if global%per != 0 {
					in.refuse("global-batch-size", global, "a multiple of micro batch × data-parallel ranks")
					return
				}
				t.GradAccumSteps = global / per
			}
		}, "parallelism.data", "parallelism.gpus_per_node", "target.count", "training.gradient_accumulation_steps")
}

func megatronSharding() rule {
	return custom(
		func(s *Subject, d *document) {
			if s.Job.Parallelism.Sharding == "zero1" {
				d.set("use-distributed-optimizer", true)
			}
		},
		func(in *source, j *spec.Job) {
			p := &j.Parallelism
			on, _ := in.flag("use-distributed-optimizer")
			switch {
			case on:
				p.Sharding = "zero1"
			case p.Data > 1:
				p.Sharding = "ddp"
			}
		}, "parallelism.sharding")
}

// megatronPrecision ties 16-bit weights with an fp32 master copy.
func megatronPrecision() rule {
	return custom(
		func(s *Subject, d *document) {
			switch t := s.Job.Training; {
			case t.Precision == spec.PrecisionBF16Mixed && t.WeightsDType == spec.BF16 && t.MasterWeights == "fp32":
				d.set("bf16", true)
			case t.Precision == spec.PrecisionFP16Mixed && t.WeightsDType == spec.FP16 && t.MasterWeights == "fp32":
				d.set("fp16", true)
			}
		},
		func(in *source, j *spec.Job) {
			t := &j.Training
			b, _ := in.flag("bf16")
			f, _ := in.flag("fp16")
			switch {
			case b:
				t.Precision, t.WeightsDType, t.MasterWeights = spec.PrecisionBF16Mixed, spec.BF16, "fp32"
			case f:
				t.Precision, t.WeightsDType, t.MasterWeights = spec.PrecisionFP16Mixed, spec.FP16, "fp32"
			}
		}, "training.precision", "training.weights_dtype", "training.master_weights")
}

// megatronRecompute ties recomputation: full by method and layers, selective
// by modules.
func megatronRecompute() rule {
	return custom(
		func(s *Subject, d *document) {
			c := s.Job.Training.Checkpointing
			switch c.Mode {
			case "full":
				d.set("recompute-granularity", "full")
				method := c.Method
				if method == "" {
					method = "uniform"
				}
				d.set("recompute-method", method)
				d.set("recompute-num-layers", max(c.NumLayers, 1))
			case "selective":
				d.set("recompute-granularity", "selective")
				if len(c.Modules) > 0 {
					d.set("recompute-modules", list(c.Modules))
				}
			}
		},
		func(in *source, j *spec.Job) {
			c := &j.Training.Checkpointing
			g, _ := in.word("recompute-granularity")
			method, _ := in.word("recompute-method")
			layers, _ := in.whole("recompute-num-layers")
			modules, _ := in.words("recompute-modules")
			switch g {
			case "full":
				c.Mode, c.Method, c.NumLayers = "full", method, layers
				if method == "uniform" && layers == 1 { // every layer: what full alone means
					c.Method, c.NumLayers = "", 0
				}
			case "selective":
				c.Mode, c.Modules = "selective", modules
			case "":
				c.Mode = "none"
			default:
				in.refuse("recompute-granularity", g, "full or selective")
			}
		}, "training.activation_checkpointing.mode", "training.activation_checkpointing.method",
		"training.activation_checkpointing.num_layers", "training.activation_checkpointing.modules")
}
