package jobfile

import (
	"memplan/internal/estimator/spec"
)

// llamaFactory is the YAML of LLaMA-Factory. Keys of
// hiyouga/LLaMA-Factory:src/llamafactory/hparams@0.9.
func llamaFactory() Format {
	lora := loraNumbers("lora_rank", "lora_alpha", "lora_dropout")
	return Format{
		Name: "llamafactory", Title: "LLaMA-Factory", File: "train.yaml", Kind: Training, Source: "LLaMA-Factory 0.9",
		syntax: yamlSyntax(), implies: trainer("hf"), suits: finetunes,
		fixed: func(*Subject) document { return lines(entry{"do_train", true}) },
		rules: append([]rule{
			modelID("model_name_or_path"),
			custom(func(*Subject, *document) {}, func(in *source, _ *spec.Job) { in.value("do_train") }),
			choose("stage", "training.objective", func(j *spec.Job) *string { return &j.Training.Objective },
				choice[string]{"sft", "sft"}, choice[string]{"pretrain", "pt"}, choice[string]{"dpo", "dpo"}, choice[string]{"kto", "kto"},
				choice[string]{"reward", "rm"}, choice[string]{"ppo", "ppo"}),
			factoryMethod(),
			factoryQuantization(),
			sequenceLength("cutoff_len"),
			packing("packing", "neat_packing"),
			microBatch("per_device_train_batch_size"),
			accumulation("gradient_accumulation_steps"),
			factoryPrecision(),
			optimizer("optim"),
			clipping("max_grad_norm", 0.0),
			factoryCheckpointing(),
			choose("flash_attn", "training.attention.kernel", func(j *spec.Job) *string { return &j.Training.Attention.Kernel },
				choice[string]{"sdpa", "sdpa"}, choice[string]{"flash", "fa2"}, choice[string]{"eager", "disabled"}),
			factoryLiger(),
		}, append(lora,
			targets("lora_target", "all"),
			trainedWhole("additional_target"),
			ifAdapter(flag("use_rslora", "training.adapter.use_rslora", func(j *spec.Job) *bool { return &adapter(j).UseRSLoRA })),
		)...),
	}
}

func factoryMethod() rule {
	return custom(
		func(s *Subject, d *document) {
			switch s.Job.Training.Method {
			case "full", "lora":
				d.set("finetuning_type", s.Job.Training.Method)
			case "dora":
				d.set("finetuning_type", "lora")
				d.set("use_dora", true)
			case "frozen":
				d.set("finetuning_type", "freeze")
			}
		},
		func(in *source, j *spec.Job) {
			kind, ok := in.word("finetuning_type")
			dora, _ := in.flag("use_dora")
			m := &j.Training.Method
			switch {
			case dora:
				*m = "dora"
			case kind == "freeze":
				*m = "frozen"
			case kind == "full", kind == "lora":
				*m = kind
			case ok:
				in.refuse("finetuning_type", kind, "one of full, lora, freeze")
			default:
				*m = "lora" // finetuning_args.py's default
			}
		}, "training.method")
}

func factoryQuantization() rule {
	return custom(
		func(s *Subject, d *document) {
			q := s.Job.Training.Quantization
			if q == nil {
				return
			}
			switch q.Type {
			case "int8":
				d.set("quantization_bit", 8)
			case "nf4", "nf4-double", "fp4", "fp4-double":
				d.set("quantization_bit", 4)
				d.set("quantization_type", q.Type[:3])
				d.set("double_quantization", len(q.Type) > 3)
			}
		},
		func(in *source, j *spec.Job) {
			bits, ok := in.whole("quantization_bit")
			kind, double := "nf4", true // model_args.py's defaults
			if k, ok := in.word("quantization_type"); ok {
				kind = k
			}
			if on, ok := in.flag("double_quantization"); ok {
				double = on
			}
			if double {
				kind += "-double"
			}
			switch {
			case !ok:
			case bits == 8:
				j.Training.Quantization = &spec.Quantization{Type: "int8"}
			case bits == 4:
				j.Training.Quantization = &spec.Quantization{Type: kind}
			default:
				in.refuse("quantization_bit", bits, "4 or 8")
			}
		}, "training.quantization.type")
}

// factoryPrecision ties precision and the type of the weights: trained weights
// are fp32 under autocast unless pure_bf16 is set, frozen ones are in the type
// computed in (hparams/parser.py sets compute_dtype; model/patcher.py).
func factoryPrecision() rule {
	return custom(
		func(s *Subject, d *document) {
			t := s.Job.Training
			half := t.Precision.Mixed()
			switch {
			case half == spec.BF16 && t.WeightsDType == factoryWeights(t.Method, half):
				d.set("bf16", true)
			case half == spec.FP16 && t.WeightsDType == factoryWeights(t.Method, half):
				d.set("fp16", true)
			case t.Precision == spec.PrecisionBF16 && t.WeightsDType == spec.BF16:
				d.set("pure_bf16", true)
			case t.Precision == spec.PrecisionFP32:
				d.set("bf16", false)
			}
		},
		func(in *source, j *spec.Job) {
			t := &j.Training
			bf16, given := in.flag("bf16")
			fp16, _ := in.flag("fp16")
			pure, _ := in.flag("pure_bf16")
			switch {
			case pure:
				t.Precision, t.WeightsDType = spec.PrecisionBF16, spec.BF16
			case bf16:
				t.Precision, t.WeightsDType = spec.PrecisionBF16Mixed, factoryWeights(t.Method, spec.BF16)
			case fp16:
				t.Precision, t.WeightsDType = spec.PrecisionFP16Mixed, factoryWeights(t.Method, spec.FP16)
			case given:
				t.Precision, t.WeightsDType = spec.PrecisionFP32, spec.FP32
			}
		}, "training.precision", "training.weights_dtype")
}

// factoryWeights is the type weights are kept in under autocast to half.
func factoryWeights(method string, half spec.DType) spec.DType {
	if method == "full" {
		return spec.FP32
	}
	return half
}

// factoryCheckpointing ties checkpointing, which is on unless it is disabled
// (model_args.py: disable_gradient_checkpointing, use_reentrant_gc).
func factoryCheckpointing() rule {
	return custom(
		func(s *Subject, d *document) {
			switch c := s.Job.Training.Checkpointing; {
			case c.Mode == "none":
				d.set("disable_gradient_checkpointing", true)
			case c.Mode == "full" && c.Every <= 1:
				d.set("disable_gradient_checkpointing", false)
				if c.Reentrant != nil {
					d.set("use_reentrant_gc", *c.Reentrant)
				}
			}
		},
		func(in *source, j *spec.Job) {
			c := &j.Training.Checkpointing
			off, _ := in.flag("disable_gradient_checkpointing")
			reentrant, given := in.flag("use_reentrant_gc")
			if c.Mode = "full"; off {
				c.Mode = "none"
				return
			}
			if given {
				c.Reentrant = &reentrant
			}
		}, "training.activation_checkpointing.mode", "training.activation_checkpointing.reentrant")
}

// factoryLiger ties the one switch for all of Liger's kernels; other sets of
// kernels cannot be said.
func factoryLiger() rule {
	r := liger(ligerKeys{use: "enable_liger_kernel"})
	write := r.write
	r.write = func(s *Subject, d *document) {
		t := s.Job.Training
		if len(t.FusedKernels) == 3 && containsAll(t.FusedKernels, []string{"rope", "rms_norm", "swiglu"}) && t.Loss.Kind == "fused-linear" {
			write(s, d)
		}
	}
	return r
}
