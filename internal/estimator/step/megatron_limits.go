package step

import (
	"fmt"
	"slices"
	"strings"

	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// beyondMegatron lists every setting of a job of Megatron-LM that the engine
// does not run.
func beyondMegatron(j *spec.Job) fault.Fields {
	var f fault.Fields
	t, p := &j.Training, &j.Parallelism
	oneOf := func(path, got string, allowed ...string) {
		if got != "" && !slices.Contains(allowed, got) {
			f.Add(path, got, "one of "+strings.Join(allowed, ", ")+" (others are not modelled under megatron)", allowed[0])
		}
	}
	no := func(path string, got any, set bool) {
		if set {
			f.Add(path, got, "nothing: it is not modelled under megatron", "")
		}
	}
	oneOf("runtime.framework", j.Runtime.Framework, "pytorch")
	oneOf("runtime.trainer", j.Runtime.Trainer, megatronTrainer)
	oneOf("runtime.allocator.backend", j.Runtime.Allocator.Backend, "native")
	oneOf("model.implementation", j.Model.Implementation, model.Megatron)
	if family, ok := j.Model.Architecture["family"].(string); ok {
		oneOf("model.architecture.family", family, "gpt", "llama")
	}
	oneOf("training.method", t.Method, "full")
	oneOf("training.precision", string(t.Precision), "bf16-mixed", "bf16", "fp32")
	oneOf("training.optimizer.name", t.Optimizer.Name, "adamw", "adam")
	oneOf("training.objective", t.Objective, "pretrain", "sft")
	oneOf("training.activation_checkpointing", t.Checkpointing.Mode, "none", "full", "selective")
	for i, m := range t.Checkpointing.Modules {
		oneOf(fmt.Sprintf("training.activation_checkpointing.modules[%d]", i), m, "core_attn")
	}
	no("training.activation_checkpointing.policy", t.Checkpointing.Policy, t.Checkpointing.Policy != "")
	oneOf("training.activation_checkpointing.method", t.Checkpointing.Method, "uniform", "block")
	no("training.activation_checkpointing.every", t.Checkpointing.Every, t.Checkpointing.Every > 1)
	oneOf("training.attention", t.Attention.Kernel, "eager")
	oneOf("training.loss", t.Loss.Kind, "default")
	oneOf("training.packing", t.Packing, "none")
	oneOf("parallelism.sharding", p.Sharding, "none", "ddp", "zero1")
	oneOf("parallelism.pipeline_schedule", p.PipelineSchedule, "1f1b")
	no("parallelism.virtual_pipeline", p.VirtualPipeline, p.VirtualPipeline > 1)
	no("parallelism.pipeline_layout", p.PipelineLayout, p.PipelineLayout != "")
	no("parallelism.context", p.Context, p.Context > 1)
	no("parallelism.expert", p.Expert, p.Expert > 1)
	no("parallelism.offload", "a value", len(p.Offload) > 0 || t.Optimizer.CPUOffload)
	no("training.quantization", "a value", t.Quantization != nil && t.Quantization.Type != "none")
	no("training.evaluation", "a value", t.Evaluation != nil)
	no("training.generation", "a value", t.Generation != nil)
	no("training.ema", "a value", t.EMA != nil)
	no("training.sequence_lengths", "a value", t.SequenceLengths != nil)
	no("training.compile", "true", t.Compile)
	no("training.qat", "a value", t.QAT != nil)
	no("training.fused_kernels", "a value", len(t.FusedKernels) > 0)
	if m := p.Megatron; m != nil {
		oneOf("parallelism.megatron.transformer_implementation", m.TransformerImplementation, "local")
		no("parallelism.megatron.overlap_grad_reduce", "true", m.OverlapGradReduce)
		no("parallelism.megatron.overlap_param_gather", "true", m.OverlapParamGather)
	}
	return f
}
