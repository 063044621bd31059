package planner

import (
	"slices"

	"memplan/internal/estimator/spec"
)

// Paths that a remedy's text refers to.
const (
	microBatchPath   = "training.micro_batch_size"
	accumulationPath = "training.gradient_accumulation_steps"
)

// hasBF16 reports whether a card computes in bf16 and has flash attention:
// NVIDIA's from Ampere on, and AMD's of the catalogue. A card of unknown
// capability is taken not to.
func hasBF16(card spec.Device) bool {
	return card.Vendor == "amd" || card.ComputeCapability.AtLeast(spec.Version{8, 0})
}

func fuseAttention(job *spec.Job, now spec.Job, _ spec.Device) []Change {
	kernel := now.Training.Attention.Kernel
	if kernel != "eager" && kernel != "math" {
		return nil
	}
	job.Training.Attention = spec.Attention{Kernel: "sdpa"}
	return []Change{{Path: "training.attention", From: kernel, To: "sdpa"}}
}

func flashAttention(job *spec.Job, now spec.Job, card spec.Device) []Change {
	kernel := now.Training.Attention.Kernel
	half := now.Training.Precision.Mixed() != "" || now.Training.Precision.Pure() == spec.BF16 || now.Training.Precision.Pure() == spec.FP16
	if kernel == "flash" || kernel == "" || !half || !hasBF16(card) {
		return nil
	}
	job.Training.Attention = spec.Attention{Kernel: "flash"}
	return []Change{{Path: "training.attention", From: kernel, To: "flash"}}
}

// halveMicroBatch keeps the global batch: an odd micro batch is not halved.
func halveMicroBatch(job *spec.Job, now spec.Job, _ spec.Device) []Change {
	micro, steps := now.Training.MicroBatchSize, max(now.Training.GradAccumSteps, 1)
	if micro < 2 || micro%2 != 0 {
		return nil
	}
	job.Training.MicroBatchSize, job.Training.GradAccumSteps = micro/2, steps*2
	return []Change{
		{Path: microBatchPath, From: micro, To: micro / 2},
		{Path: accumulationPath, From: steps, To: steps * 2},
	}
}

func checkpointAll(job *spec.Job, now spec.Job, _ spec.Device) []Change {
	mode := now.Training.Checkpointing.Mode
	if mode == "full" {
		return nil
	}
	job.Training.Checkpointing = spec.Checkpointing{Mode: "full"}
	return []Change{{Path: "training.activation_checkpointing", From: orNone(mode), To: "full"}}
}

func mixPrecision(job *spec.Job, now spec.Job, card spec.Device) []Change {
	precision := now.Training.Precision
	if precision != spec.PrecisionFP32 && precision != spec.PrecisionTF32 {
		return nil
	}
	to := spec.PrecisionBF16Mixed
	if !hasBF16(card) {
		to = spec.PrecisionFP16Mixed
	}
	job.Training.Precision = to
	return []Change{{Path: "training.precision", From: string(precision), To: string(to)}}
}

func eightBitAdam(job *spec.Job, now spec.Job, _ spec.Device) []Change {
	o := now.Training.Optimizer
	if (o.Name != "adamw" && o.Name != "adam") || (o.StateBits != 0 && o.StateBits <= 8) || slices.Contains(now.Parallelism.Offload, "optimizer") {
		return nil
	}
	changes := []Change{
		{Path: "training.optimizer.library", From: o.Library, To: "bitsandbytes"},
		{Path: "training.optimizer.state_bits", From: max(o.StateBits, 32), To: 8},
	}
	if asked := job.Training.Optimizer.Implementation; asked != "" {
		changes = append(changes, Change{Path: "training.optimizer.implementation", From: asked, To: nil}) // it is torch's
	}
	job.Training.Optimizer = spec.Optimizer{Name: o.Name, Library: "bitsandbytes", StateBits: 8}
	return changes
}

// pureBF16 is for full fine-tuning in mixed precision over fp32 weights.
func pureBF16(job *spec.Job, now spec.Job, card spec.Device) []Change {
	t := now.Training
	if t.WeightsDType != spec.FP32 || t.Method != "full" || t.MasterWeights == "fp32" || !hasBF16(card) {
		return nil
	}
	job.Training.Precision, job.Training.WeightsDType = spec.PrecisionBF16, spec.BF16
	return []Change{
		{Path: "training.precision", From: string(t.Precision), To: string(spec.PrecisionBF16)},
		{Path: "training.weights_dtype", From: string(t.WeightsDType), To: string(spec.BF16)},
	}
}

func orNone(mode string) string {
	if mode == "" {
		return "none"
	}
	return mode
}
