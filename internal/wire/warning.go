package wire

import (
	"fmt"
	"slices"
	"strings"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
)

// idle is a setting that may have nothing to act on.
type idle struct {
	path string
	set  func(spec.Job) bool
	acts func(spec.Job) bool
	need string // what it would act on, in words
}

// NoEffect is the code of the warnings that Warnings gives.
const NoEffect = "no_effect"

// Warnings names the settings of a job that have nothing to act on, such as a
// pipeline schedule without a pipeline.
func Warnings(job spec.Job) []estimator.Warning {
	out := []estimator.Warning{}
	for _, s := range idles() {
		if s.set(job) && !s.acts(job) {
			out = append(out, estimator.Warning{
				Code: NoEffect, Path: s.path,
				Text: fmt.Sprintf("%s has no effect: %s.", s.path, s.need),
			})
		}
	}
	return out
}

// idles lists the settings that act only beside another.
func idles() []idle {
	return append(append(trainingIdles(), parallelIdles()...), runtimeIdles()...)
}

func trainingIdles() []idle {
	return []idle{
		{
			"training.attention", func(j spec.Job) bool {
				return j.Training.Attention != spec.Attention{} && j.Training.Attention.Kernel != "eager"
			}, mayAttend,
			"the model is convolutional, without attention",
		},
		{
			"training.sequence_length", func(j spec.Job) bool { return j.Training.SequenceLength > 0 }, mayAttend,
			"the model is convolutional and takes images",
		},
		{
			"training.packing", func(j spec.Job) bool { return named(j.Training.Packing) }, mayAttend,
			"the model is convolutional and takes images",
		},
		{
			"training.fp8", func(j spec.Job) bool { return j.Training.FP8 != nil },
			func(j spec.Job) bool { return j.Training.Precision == spec.PrecisionFP8Mixed }, "precision is not fp8-mixed",
		},
		{
			"training.modules_to_train", func(j spec.Job) bool { return len(j.Training.ModulesToTrain) > 0 },
			func(j spec.Job) bool { m := j.Training.Method; return m != "" && m != "full" }, "under method full every module is trained",
		},
		{
			"training.optimizer.muon_modules", func(j spec.Job) bool { return len(j.Training.Optimizer.MuonModules) > 0 },
			func(j spec.Job) bool { return strings.Contains(j.Training.Optimizer.Name, "muon") }, "the optimizer is not muon",
		},
		{
			"training.image_size_is_latent", func(j spec.Job) bool { return j.Training.ImageIsLatent },
			func(j spec.Job) bool { return len(j.Training.ImageSize) > 0 }, "no image_size is given",
		},
		{
			"training.reference_model", func(j spec.Job) bool { return named(j.Training.ReferenceModel) },
			func(j spec.Job) bool {
				switch j.Training.Objective {
				case "dpo", "kto", "ppo", "grpo", "distillation":
					return true
				}
				return false
			}, "the objective has no reference model",
		},
	}
}

func parallelIdles() []idle {
	pipelined := func(j spec.Job) bool { return j.Parallelism.Pipeline > 1 }
	tensor := func(j spec.Job) bool { return j.Parallelism.Tensor > 1 }
	expert := func(j spec.Job) bool { return j.Parallelism.Expert > 1 }
	alone := "pipeline is 1"
	return []idle{
		{"parallelism.pipeline_schedule", func(j spec.Job) bool { return j.Parallelism.PipelineSchedule != "" }, pipelined, alone},
		{"parallelism.virtual_pipeline", func(j spec.Job) bool { return j.Parallelism.VirtualPipeline > 1 }, pipelined, alone},
		{"parallelism.pipeline_layout", func(j spec.Job) bool { return j.Parallelism.PipelineLayout != "" }, pipelined, alone},
		{"parallelism.microbatch_group_size", func(j spec.Job) bool { return j.Parallelism.MicrobatchGroup > 0 }, pipelined, alone},
		{
			"parallelism.context_comm", func(j spec.Job) bool { return j.Parallelism.ContextComm != "" },
			func(j spec.Job) bool { return j.Parallelism.Context > 1 }, "context is 1",
		},
		{"parallelism.sequence_parallel", func(j spec.Job) bool { return j.Parallelism.SequenceParallel }, tensor, "tensor is 1"},
		{"parallelism.async_tensor", func(j spec.Job) bool { return j.Parallelism.AsyncTensor }, tensor, "tensor is 1"},
		{"parallelism.expert_tensor", func(j spec.Job) bool { return j.Parallelism.ExpertTensor > 1 }, expert, "expert is 1"},
		{"parallelism.expert_load", func(j spec.Job) bool { return j.Parallelism.ExpertLoad != nil }, expert, "expert is 1"},
		{"parallelism.ddp", func(j spec.Job) bool { return j.Parallelism.DDP != nil }, sharded("ddp"), "sharding is not ddp"},
		{"parallelism.fsdp", func(j spec.Job) bool { return j.Parallelism.FSDP != nil }, sharded("fsdp"), "sharding is not fsdp"},
		{"parallelism.zero", func(j spec.Job) bool { return j.Parallelism.Zero != nil }, sharded("zero"), "sharding is not zero1, zero2 or zero3"},
		{
			"parallelism.megatron", func(j spec.Job) bool { return j.Parallelism.Megatron != nil },
			func(j spec.Job) bool { return j.Runtime.Trainer == "megatron" || j.Model.Implementation == "megatron" }, "the trainer is not megatron",
		},
		{
			"parallelism.offload_to", func(j spec.Job) bool { return j.Parallelism.OffloadTo != "" },
			func(j spec.Job) bool { return len(j.Parallelism.Offload) > 0 || j.Training.Optimizer.CPUOffload }, "nothing is offloaded",
		},
	}
}

func runtimeIdles() []idle {
	return []idle{
		{"runtime.allocator", func(j spec.Job) bool { return j.Runtime.Allocator != spec.AllocatorSettings{} }, framework("pytorch"), "the framework is not pytorch"},
		{"runtime.tensorflow", func(j spec.Job) bool { return j.Runtime.TensorFlow != nil }, framework("tensorflow"), "the framework is not tensorflow"},
		{"runtime.jax", func(j spec.Job) bool { return j.Runtime.JAX != nil }, framework("jax"), "the framework is not jax"},
		{
			"runtime.holds_outputs", func(j spec.Job) bool { return j.Runtime.HoldsOutputs != spec.Auto },
			func(j spec.Job) bool { return j.Runtime.Trainer == "plain" }, "only plain loops may hold their outputs or not",
		},
		{
			"runtime.sync_batch_norm", func(j spec.Job) bool { return j.Runtime.SyncBatchNorm },
			func(j spec.Job) bool { return j.Parallelism.Ranks() > 1 || j.Target.Count > 1 }, "there is one rank",
		},
	}
}

// named reports whether a choice is one other than none.
func named(s string) bool { return s != "" && s != "none" }

// sharded reports whether the job's sharding is of a kind, or left open.
func sharded(kind string) func(spec.Job) bool {
	return func(j spec.Job) bool {
		return j.Parallelism.Sharding == "" || strings.HasPrefix(j.Parallelism.Sharding, kind)
	}
}

// framework reports whether the job runs on a framework; none given is PyTorch.
func framework(name string) func(spec.Job) bool {
	return func(j spec.Job) bool {
		return j.Runtime.Framework == name || j.Runtime.Framework == "" && name == "pytorch"
	}
}

// attentionless are beginnings of names of networks without attention.
var attentionless = []string{
	"resne", "wide_resnet", "seresne", "tresnet", "vgg", "alexnet", "densenet", "mobilenet", "efficientnet", "tf_efficientnet",
	"convnext", "regnet", "inception", "xception", "squeezenet", "shufflenet", "hrnet", "poolformer", "mixer",
	"deeplabv3_", "lraspp_", "fcn_", "r3d", "r2plus1d", "mc3", "c3d", "slowfast", "frame2d",
}

// mayAttend reports whether the model may have attention: every model whose
// name does not say otherwise.
func mayAttend(j spec.Job) bool {
	family, _ := j.Model.Architecture["family"].(string)
	modelType, _ := j.Model.Config["model_type"].(string)
	id := strings.ToLower(j.Model.ID)
	for _, name := range []string{family, modelType, id[strings.LastIndexByte(id, '/')+1:]} {
		begins := func(start string) bool { return strings.HasPrefix(name, start) }
		if name == "unet" || slices.ContainsFunc(attentionless, begins) {
			return false
		}
	}
	return true
}
