package jobfile

import (
	"strings"

	"memplan/internal/estimator/spec"
)

// torchtune is the YAML of torchtune's recipes. Keys of
// pytorch/torchtune:recipes/configs@0.6.
func torchtune() Format {
	return Format{
		Name: "torchtune", Title: "torchtune", File: "recipe.yaml", Kind: Training, Source: "torchtune 0.6",
		syntax: yamlSyntax(), implies: trainer("torchtune"), suits: func(j *spec.Job) bool {
			return j.Training.SequenceLength > 0 && trainedBy("torchtune", "plain", "")(j)
		},
		rules: append([]rule{
			sequenceLength("tokenizer.max_seq_len"),
			microBatch("batch_size"),
			accumulation("gradient_accumulation_steps"),
			tunePrecision(),
			tuneOptimizer(),
			flag("optimizer_in_bwd", "training.optimizer.in_backward", func(j *spec.Job) *bool { return &j.Training.Optimizer.InBackward }),
			clipping("clip_grad_norm", nil),
			checkpointing("enable_activation_checkpointing", ""),
			offloaded("enable_activation_offloading", true, "activations"),
			compile("compile"),
			packing("dataset.packed", ""),
			tuneLoss(),
			method("model.use_dora", "model.lora_rank"),
			tuneQuantization(),
		}, append(loraNumbers("model.lora_rank", "model.lora_alpha", "model.lora_dropout"),
			targets("model.lora_attn_modules", ""))...),
	}
}

// tunePrecision ties the one type of weights and arithmetic.
func tunePrecision() rule {
	return custom(
		func(s *Subject, d *document) {
			switch t := s.Job.Training; {
			case t.Precision == spec.PrecisionBF16 && t.WeightsDType == spec.BF16:
				d.set("dtype", "bf16")
			case t.Precision == spec.PrecisionFP32 && t.WeightsDType == spec.FP32:
				d.set("dtype", "fp32")
			}
		},
		func(in *source, j *spec.Job) {
			t := &j.Training
			switch w, ok := in.word("dtype"); {
			case !ok:
			case w == "bf16":
				t.Precision, t.WeightsDType = spec.PrecisionBF16, spec.BF16
			case w == "fp32":
				t.Precision, t.WeightsDType = spec.PrecisionFP32, spec.FP32
			default:
				in.refuse("dtype", w, "bf16 or fp32")
			}
		}, "training.precision", "training.weights_dtype")
}

// tuneComponents are optimizers by the Python path torchtune builds them from.
var tuneComponents = []choice[spec.Optimizer]{
	{spec.Optimizer{Name: "adamw", Library: "torch"}, "torch.optim.AdamW"},
	{spec.Optimizer{Name: "adam", Library: "torch"}, "torch.optim.Adam"},
	{spec.Optimizer{Name: "sgd", Library: "torch"}, "torch.optim.SGD"},
	{spec.Optimizer{Name: "adafactor", Library: "torch"}, "torch.optim.Adafactor"},
	{spec.Optimizer{Name: "adamw", Library: "bitsandbytes", StateBits: 8, Paged: true}, "bitsandbytes.optim.PagedAdamW8bit"},
	{spec.Optimizer{Name: "adamw", Library: "bitsandbytes", StateBits: 32, Paged: true}, "bitsandbytes.optim.PagedAdamW"},
	{spec.Optimizer{Name: "adamw", Library: "bitsandbytes", StateBits: 8}, "bitsandbytes.optim.AdamW8bit"},
	{spec.Optimizer{Name: "adamw", Library: "torchao", StateBits: 8}, "torchao.optim.AdamW8bit"},
	{spec.Optimizer{Name: "adamw", Library: "torchao", StateBits: 4}, "torchao.optim.AdamW4bit"},
}

func tuneOptimizer() rule {
	same := func(a, b spec.Optimizer) bool {
		return a.Name == b.Name && a.Library == b.Library && bitsOf(a) == bitsOf(b) && a.Paged == b.Paged
	}
	return custom(
		func(s *Subject, d *document) {
			o := s.Job.Training.Optimizer
			for _, c := range tuneComponents {
				if same(c.ours, o) {
					d.set("optimizer._component_", c.theirs)
					if o.Library == "torch" && o.Implementation != "" {
						d.set("optimizer.fused", o.Implementation == "fused")
					}
				}
			}
		},
		func(in *source, j *spec.Job) {
			name, ok := in.word("optimizer._component_")
			fused, given := in.flag("optimizer.fused")
			if !ok {
				return
			}
			for _, c := range tuneComponents {
				if textOf(c.theirs) != name {
					continue
				}
				o := c.ours
				if given {
					o.Implementation = map[bool]string{true: "fused", false: "foreach"}[fused]
				}
				j.Training.Optimizer = o
				return
			}
			in.refuse("optimizer._component_", name, "an optimizer of torch, bitsandbytes or torchao")
		}, "training.optimizer.name", "training.optimizer.library", "training.optimizer.state_bits",
		"training.optimizer.paged", "training.optimizer.implementation")
}

func tuneLoss() rule {
	const key, chunked, whole = "loss._component_", "torchtune.modules.loss.CEWithChunkedOutputLoss", "torch.nn.CrossEntropyLoss"
	return custom(
		func(s *Subject, d *document) {
			switch s.Job.Training.Loss.Kind {
			case "chunked":
				d.set(key, chunked)
			case "default":
				d.set(key, whole)
			}
		},
		func(in *source, j *spec.Job) {
			switch name, ok := in.word(key); {
			case !ok:
			case strings.Contains(name, "Chunked"), strings.HasSuffix(name, "LinearCrossEntropyLoss"):
				j.Training.Loss.Kind = "chunked"
			default:
				j.Training.Loss.Kind = "default"
			}
		}, "training.loss.kind")
}

// tuneQuantization ties the NF4 base of QLoRA, which torchtune takes from
// torchao.
func tuneQuantization() rule {
	return custom(
		func(s *Subject, d *document) {
			if q := s.Job.Training.Quantization; q != nil && q.Type == "nf4-double" && q.Library == "torchao" {
				d.set("model.quantize_base", true)
			}
		},
		func(in *source, j *spec.Job) {
			if on, _ := in.flag("model.quantize_base"); on {
				j.Training.Quantization = &spec.Quantization{Type: "nf4-double", Library: "torchao"}
			}
		}, "training.quantization.type", "training.quantization.library")
}
