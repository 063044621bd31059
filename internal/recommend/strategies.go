package recommend

import (
	"strings"

	"memplan/internal/estimator/spec"
)

// Risk says what a change may do to what is learnt.
type Risk int

// The risks, from none to most.
const (
	Same    Risk = iota // the same result, to rounding
	Rounds              // the same method with coarser numbers
	Another             // another way of training
)

// setting is one value of a patch.
type setting struct {
	path  string
	value any
}

// choice is one way to go on an axis: a patch of job paths, what it is called,
// and what it costs.
type choice struct {
	what  string // what to do, as an order
	cost  string // what it costs, in words
	risk  Risk
	saves int // its place among the axis's choices, the higher the less memory; apart: not to be compared
	patch []setting
	needs func(s *situation) bool // nil: always
}

// apart is the place of a choice of which it is not known whether it saves more
// than another.
const apart = -1

// axis is choices of which a job has one. A job that has none of them keeps what
// it has, and can take any.
type axis struct {
	name    string
	asked   bool // searched only where the user names its paths
	class   bool // its choices are not compared by what they save
	choices []choice
}

// situation is what decides whether a choice applies: the job with its defaults
// filled in, and the card.
type situation struct {
	now  spec.Job
	card spec.Device
}

// hasBF16 reports whether the card computes in bf16 and has flash attention:
// NVIDIA's from Ampere on, and AMD's of the catalogue.
func (s *situation) hasBF16() bool {
	return s.card.Vendor == "amd" || s.card.ComputeCapability.AtLeast(spec.Version{8, 0})
}

func (s *situation) half() bool {
	p := s.now.Training.Precision
	return p.Mixed() != "" || p.Pure() == spec.BF16 || p.Pure() == spec.FP16
}

func (s *situation) full() bool    { return s.now.Training.Method == "full" }
func (s *situation) several() bool { return s.now.Parallelism.Data > 1 }
func (s *situation) adam() bool {
	o := s.now.Training.Optimizer
	return o.Name == "adamw" || o.Name == "adam"
}

func (s *situation) trainer(names ...string) bool {
	for _, n := range names {
		if s.now.Runtime.Trainer == n {
			return true
		}
	}
	return false
}

func (s *situation) modelType() string {
	kind, _ := s.now.Model.Config["model_type"].(string)
	return kind
}

// ligerModels are those whose kernels Liger replaces.
func (s *situation) ligerModels() bool {
	switch s.modelType() {
	case "llama", "mistral", "qwen2", "qwen3", "granite":
		return true
	}
	return false
}

// unquantized reports a base that is not quantised already.
func (s *situation) unquantized() bool {
	q := s.now.Training.Quantization
	return q == nil || q.Type == "none" || q.Type == ""
}

// axes is the space of strategies.
func axes() []axis {
	return []axis{
		{name: "attention", choices: []choice{
			{
				what: "Use scaled-dot-product attention", cost: "the same result", saves: 1,
				patch: []setting{{"training.attention", "sdpa"}},
				needs: func(s *situation) bool {
					k := s.now.Training.Attention.Kernel
					return k == "eager" || k == "math" || k == "sdpa"
				},
			},
			{
				what: "Take flash attention", cost: "the same result; needs the flash-attn package", saves: 2,
				patch: []setting{{"training.attention", "flash"}},
				needs: func(s *situation) bool {
					return s.half() && s.hasBF16() && (s.now.Training.Attention.Kernel != "sdpa" || s.now.Training.Padding == "mask")
				},
			},
		}},
		{name: "checkpointing", choices: []choice{
			{
				what: "Turn off activation checkpointing", cost: "more memory for activations", saves: 0,
				patch: []setting{{"training.activation_checkpointing", "none"}},
			},
			{
				what: "Turn on activation checkpointing", cost: "recomputes the forward pass: about a third more compute", saves: 1,
				patch: []setting{{"training.activation_checkpointing", "full"}},
			},
		}},
		{name: "loss", choices: []choice{
			{
				what: "Keep the plain head", cost: "logits of the whole batch", saves: 0,
				patch: []setting{{"training.loss", "default"}},
			},
			{
				what: "Fuse the head with its loss", cost: "the same result to rounding; needs Liger kernels", saves: 1,
				patch: []setting{{"training.loss", "fused-linear"}},
				needs: (*situation).ligerModels,
			},
		}},
		{name: "kernels", choices: []choice{
			{
				what: "Use fused norms, rotary positions and gated MLPs", cost: "the same result to rounding; needs Liger kernels", saves: 1,
				patch: []setting{{"training.fused_kernels", []string{"rms_norm", "swiglu", "rope"}}},
				needs: (*situation).ligerModels,
			},
		}},
		{name: "optimizer", choices: []choice{
			{
				what: "Step with fused AdamW", cost: "the same result to rounding", saves: 1,
				patch: []setting{{"training.optimizer.implementation", "fused"}},
				needs: func(s *situation) bool {
					return s.adam() && s.now.Training.Optimizer.Library == "torch" && s.now.Training.Optimizer.StateBits == 32
				},
			},
			{
				what: "Keep the optimizer state in 8 bits", cost: "AdamW of bitsandbytes: quantised state, seldom worse", risk: Rounds, saves: 2,
				patch: []setting{{"training.optimizer.library", "bitsandbytes"}, {"training.optimizer.implementation", nil}, {"training.optimizer.state_bits", 8}},
				needs: (*situation).adam,
			},
			{
				what: "Page the 8-bit optimizer state to the host", cost: "AdamW of bitsandbytes: quantised state in host memory, slower when it is paged", risk: Rounds, saves: 3,
				patch: []setting{{"training.optimizer.library", "bitsandbytes"}, {"training.optimizer.implementation", nil}, {"training.optimizer.state_bits", 8}, {"training.optimizer.paged", true}},
				needs: (*situation).adam,
			},
			{
				what: "Train with Adafactor", cost: "another optimizer: its learning rate must be found anew", risk: Another, saves: apart,
				patch: []setting{{"training.optimizer.name", "adafactor"}, {"training.optimizer.library", "transformers"}, {"training.optimizer.implementation", nil}, {"training.optimizer.state_bits", 32}},
				needs: (*situation).adam,
			},
		}},
		{name: "precision", choices: []choice{
			{
				what: "Compute in bf16 under autocast", cost: "fp32 weights, activations in 16 bits", risk: Rounds, saves: 1,
				patch: []setting{{"training.precision", "bf16-mixed"}},
				needs: func(s *situation) bool { return s.now.Training.Precision.Pure() == spec.FP32 && s.hasBF16() },
			},
			{
				what: "Compute in fp16 under autocast", cost: "fp32 weights, activations in 16 bits, a scaled loss", risk: Rounds, saves: 1,
				patch: []setting{{"training.precision", "fp16-mixed"}},
				needs: func(s *situation) bool { return s.now.Training.Precision.Pure() == spec.FP32 && !s.hasBF16() },
			},
			{
				what: "Keep weights and gradients in bf16", cost: "no fp32 copy of the weights: small updates are rounded away", risk: Rounds, saves: 2,
				patch: []setting{{"training.precision", "bf16"}, {"training.weights_dtype", "bf16"}},
				needs: func(s *situation) bool {
					return s.full() && s.now.Training.WeightsDType == spec.FP32 && s.now.Training.MasterWeights != "fp32" && s.hasBF16()
				},
			},
		}},
		{name: "method", asked: true, class: true, choices: []choice{
			{
				what: "Train LoRA adapters", cost: "another method: the base stays frozen, and learns less", risk: Another, saves: 1,
				patch: []setting{{methodPath, "lora"}, {"training.weights_dtype", "bf16"}},
				needs: func(s *situation) bool { return s.full() && s.hasBF16() },
			},
			{
				what: "Train LoRA adapters on a base in 4 bits", cost: "another method: the base is frozen and quantised, each layer dequantised as it runs", risk: Another, saves: 2,
				patch: []setting{{methodPath, "lora"}, {"training.weights_dtype", "bf16"}, {quantizationPath, "nf4"}},
				needs: func(s *situation) bool { return s.full() && s.hasBF16() },
			},
			{
				what: "Quantise the frozen base to 4 bits", cost: "a coarser base, each layer dequantised as it runs", risk: Another, saves: 2,
				patch: []setting{{quantizationPath, "nf4"}},
				needs: func(s *situation) bool { return !s.full() && s.unquantized() },
			},
		}},
		{name: "sharding", class: true, choices: shardings()},
		{name: "compilation", asked: true, choices: []choice{
			{
				what: "Compile the model", cost: "the same result to rounding; minutes of compilation, and an estimate that is less certain", saves: apart,
				patch: []setting{{"training.compile", true}},
			},
		}},
		{name: "allocator", choices: []choice{
			{
				what: "Let segments grow (expandable_segments)", cost: "the same result; less fragmentation", saves: 1,
				patch: []setting{{"runtime.allocator.expandable_segments", true}},
			},
		}},
	}
}

// shardings are the ways of spreading what every rank would hold.
func shardings() []choice {
	fsdp := func(version int) []setting {
		return []setting{{shardingPath, "fsdp"}, {"parallelism.fsdp.version", version}}
	}
	return []choice{
		{
			what: "Keep the model whole on every card (DDP)", cost: "every card holds all of it", saves: 0,
			patch: []setting{{shardingPath, "ddp"}, {fsdpPath, nil}}, needs: (*situation).several,
		},
		{
			what: "Let gradients lie in DDP's buckets", cost: "the same result", saves: 1,
			patch: []setting{{shardingPath, "ddp"}, {fsdpPath, nil}, {"parallelism.ddp.gradient_as_bucket_view", true}}, needs: (*situation).several,
		},
		{
			what: "Shard gradients and optimizer state (ZeRO-2)", cost: "needs DeepSpeed", saves: 2,
			patch: []setting{{shardingPath, "zero2"}, {fsdpPath, nil}},
			needs: func(s *situation) bool { return s.several() && s.trainer("hf", "deepspeed", "trl", "accelerate") },
		},
		{
			what: "Shard all of the model with FSDP", cost: "gathers each layer for forward and backward", saves: 3,
			patch: fsdp(1), needs: func(s *situation) bool { return s.several() && !s.trainer("plain") },
		},
		{
			what: "Shard all of the model with FSDP 2", cost: "gathers each layer for forward and backward", saves: 3,
			patch: fsdp(2), needs: func(s *situation) bool { return s.several() && s.trainer("plain") },
		},
		{
			what: "Shard all of the model with ZeRO-3", cost: "needs DeepSpeed; gathers each layer for forward and backward", saves: 3,
			patch: []setting{{shardingPath, "zero3"}, {fsdpPath, nil}},
			needs: func(s *situation) bool { return s.several() && s.trainer("hf", "deepspeed", "trl", "accelerate") },
		},
	}
}

// lower is an order within a sentence.
func lower(what string) string { return strings.ToLower(what[:1]) + what[1:] }
