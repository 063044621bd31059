package step

import (
	"fmt"
	"slices"
	"strings"

	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// beyond lists every setting of a resolved job that the engine does not run.
// A setting is refused by name and never ignored: an answer to another job
// than the one asked about is worse than none.
func beyond(j *spec.Job) fault.Fields {
	var f fault.Fields
	t, p := &j.Training, &j.Parallelism
	if j.Runtime.Trainer == megatronTrainer || j.Model.Implementation == model.Megatron {
		return beyondMegatron(j)
	}
	oneOf := func(path, got string, allowed ...string) {
		if got != "" && !slices.Contains(allowed, got) {
			f.Add(path, got, "one of "+strings.Join(allowed, ", ")+" (others are not modelled)", allowed[0])
		}
	}
	one := func(path string, got int) {
		if got > 1 {
			f.Add(path, got, "1 (more is not modelled)", "1")
		}
	}
	off := func(path string, on bool) {
		if on {
			f.Add(path, "true", "not modelled", "false")
		}
	}
	absent := func(path string, set bool) {
		if set {
			f.Add(path, "a value", "nothing: it is not modelled", "")
		}
	}
	oneOf("runtime.framework", j.Runtime.Framework, "pytorch")
	oneOf("runtime.allocator.backend", j.Runtime.Allocator.Backend, "native")
	oneOf("model.implementation", j.Model.Implementation, "hf", model.Timm, model.Torchvision, model.Diffusers, model.MMSegmentation, model.MMAction, model.LitGPT, model.Plain)
	if m := &j.Model; m.Implementation == model.Plain && (m.ID != "" || len(m.Config)+len(m.Architecture) > 0) {
		f.Add("model.implementation", model.Plain, "a library's, or the module's own graph as model.graph", "hf")
	}
	if model.IsGraph(j.Model) {
		oneOf("runtime.trainer", j.Runtime.Trainer, "plain", "hf", "deepspeed")
		oneOf("training.loss", j.Training.Loss.Kind, "", "default")
	}
	oneOf("training.method", t.Method, "full", "lora", "dora")
	oneOf("training.precision", string(t.Precision), "fp32", "tf32", "bf16", "fp16", "bf16-mixed", "fp16-mixed")
	oneOf("training.weights_dtype", string(t.WeightsDType), "fp32", "bf16", "fp16")
	if !zero(p) {
		oneOf("training.master_weights", t.MasterWeights, "none")
	}
	oneOf("training.objective", t.Objective, "sft", "pretrain", "classification", "segmentation", "diffusion", "dpo")
	oneOf("training.memory_format", t.MemoryFormat, "contiguous", channelsLast)
	oneOf("training.packing", t.Packing, "none", "concatenated")
	oneOf("training.activation_checkpointing", t.Checkpointing.Mode, "none", "full", "selective")
	beyondSelective(&t.Checkpointing, &f)
	if j.Model.Implementation == model.Torchvision {
		oneOf("training.activation_checkpointing", t.Checkpointing.Mode, "none") // its models have no switch for it
	}
	if library := j.Model.Implementation; library == model.Torchvision || library == model.Timm {
		oneOf("runtime.trainer", j.Runtime.Trainer, "plain")
		oneOf("training.method", t.Method, "full")
	}
	oneOf("training.attention", t.Attention.Kernel, "sdpa", "flash", "eager", "math")
	oneOf("training.attention.backend", t.Attention.Backend, "flash", "efficient", "math", "cudnn")
	if j.Model.Implementation == model.LitGPT || j.Runtime.Trainer == "lightning" {
		beyondLitGPT(j, &f)
	} else {
		oneOf("training.loss", t.Loss.Kind, "default", fusedLinear)
	}
	if t.Objective == "dpo" {
		oneOf("training.reference_model", t.ReferenceModel, "copy", "adapter-off", "precomputed", "none")
		oneOf("runtime.trainer", j.Runtime.Trainer, "trl")
	} else {
		oneOf("training.reference_model", t.ReferenceModel, "none")
	}
	oneOf("parallelism.sharding", p.Sharding, "none", "ddp", "fsdp", "zero1", "zero2", "zero3")
	one("parallelism.tensor", p.Tensor)
	one("parallelism.pipeline", p.Pipeline)
	one("parallelism.context", p.Context)
	one("parallelism.expert", p.Expert)
	if p.Sharding != "fsdp" {
		one("parallelism.replicate", p.Replicate)
	}
	off("training.label_smoothing", t.LabelSmoothing)
	beyondQuantization(j, &f)
	absent("training.qat", t.QAT != nil)
	beyondLiger(j, &f)
	beyondTRL(j, &f)
	beyondAsides(j, &f)
	beyondLengths(j, &f)
	absent("training.teacher", t.Teacher != nil)
	absent("parallelism.offload", len(p.Offload) > 0 && !offloadsFSDP1(j) && !offloadsGradients(j) && !offloadsActivations(j) && !zero(p))
	for i, m := range t.ModulesToTrain {
		f.Add(fmt.Sprintf("training.modules_to_train[%d]", i), m, "nothing: it is not modelled", "")
	}
	f = append(f, beyondZeRO(j)...)
	return append(f, beyondFSDP(j)...)
}

// offloadsGradients reports whether gradients go to the host with an optimizer
// that steps there.
func offloadsGradients(j *spec.Job) bool {
	return j.Training.Optimizer.CPUOffload && len(j.Parallelism.Offload) == 1 && j.Parallelism.Offload[0] == "gradients"
}

// beyondAsides lists what is not modelled of the phases between steps and of
// what lies beside the model.
func beyondAsides(j *spec.Job, f *fault.Fields) {
	t := &j.Training
	if s := j.Parallelism.Sharding; s == "fsdp" || strings.HasPrefix(s, "zero") { // whose gathers of a whole state have no rule
		for _, s := range []struct {
			path string
			on   bool
		}{
			{"training.evaluation", t.Evaluation != nil},
			{"training.generation", t.Generation != nil},
			{"training.checkpoint_save", t.CheckpointSave != "" && t.CheckpointSave != "none"},
			{"training.ema", t.EMA != nil},
			{"training.gradients_resident_before_step", t.GradsResident},
		} {
			if s.on {
				f.Add(s.path, "a value", "nothing: it is not modelled with sharded parameters", "")
			}
		}
	}
	for i, m := range t.ResidentModules {
		if m.Trained {
			f.Add(fmt.Sprintf("training.resident_modules[%d].trained", i), "true", "false (a second trained model is not modelled)", "false")
		}
	}
	if l := t.Load; l != nil && l.DType != "" && l.DType != t.WeightsDType {
		f.Add("training.load.dtype", string(l.DType), string(t.WeightsDType)+", the type the weights are kept in (a cast after loading is not modelled)", string(t.WeightsDType))
	}
	if g := t.Generation; g != nil && len(j.Model.Config) > 0 && j.Model.Config["vocab_size"] == nil {
		f.Add("training.generation", "a value", "nothing: the model generates no text", "")
	}
}

// offloadsActivations reports whether what is saved for backward goes to the
// host: a loop's forward under torch.autograd.graph.save_on_cpu.
func offloadsActivations(j *spec.Job) bool {
	o := j.Parallelism.Offload
	return len(o) == 1 && o[0] == "activations" && j.Runtime.Trainer == "plain" && j.Parallelism.Ranks() == 1
}

// beyondSelective lists what is not modelled of recomputing a part: blocks are
// recomputed whole or not at all.
func beyondSelective(c *spec.Checkpointing, f *fault.Fields) {
	if c.Mode == "selective" && (c.Every < 1 || c.Policy != "" || len(c.Modules) > 0) {
		f.Add("training.activation_checkpointing", "selective", "{mode: selective, every: n}: every n-th block is recomputed (policies by operation and by module are not modelled)", "full")
	}
}

// beyondLengths lists what is not modelled with samples of several lengths.
func beyondLengths(j *spec.Job, f *fault.Fields) {
	l := j.Training.SequenceLengths
	if l == nil {
		return
	}
	if j.Parallelism.Ranks() > 1 {
		f.Add("training.sequence_lengths", "a value", "nothing: lengths that vary are not modelled on several ranks", "")
	}
	if l.Longest < 1 {
		f.Add("training.sequence_lengths.longest", l.Longest, "the tokens of the longest sample", "")
	}
}
