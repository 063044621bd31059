package jobfile

import "memplan/internal/estimator/spec"

const fromPretrained = `AutoModelForCausalLM\.from_pretrained`

// trainingArguments is the Trainer of transformers: the calls a script makes.
// Keys of huggingface/transformers:src/transformers/training_args.py@5.24,
// huggingface/peft:src/peft/tuners/lora/config.py@0.21 and
// utils/quantization_config.py.
func trainingArguments() Format {
	return Format{
		Name: "transformers", Title: "Hugging Face TrainingArguments", File: "train.py", Kind: Training,
		Source: "transformers 5.24, peft 0.21",
		syntax: pythonSyntax(),
		rules:  huggingFace("TrainingArguments"), implies: trainer("hf"), suits: trainedBy("hf", "trl", "accelerate", "plain", ""),
	}
}

// sftConfig is the SFTTrainer of TRL: TrainingArguments and what it adds.
// Keys of huggingface/trl:trl/trainer/sft_config.py@1.16.
func sftConfig() Format {
	return Format{
		Name: "trl", Title: "TRL SFTConfig", File: "sft.py", Kind: Training, Source: "trl 1.16",
		syntax: pythonSyntax(), suits: finetunes,
		rules: append(huggingFace("SFTConfig"),
			sequenceLength("SFTConfig.max_length"),
			packing("SFTConfig.packing", "SFTConfig.padding_free"),
		),
		implies: func(j *spec.Job) { j.Runtime.Trainer, j.Training.Objective = "trl", "sft" },
	}
}

// huggingFace are the rules of a script around a Trainer, whose arguments are
// of the given class.
func huggingFace(args string) []rule {
	args += "."
	lora := []rule{method("LoraConfig.use_dora", "LoraConfig.r")}
	lora = append(lora, loraNumbers("LoraConfig.r", "LoraConfig.lora_alpha", "LoraConfig.lora_dropout")...)
	lora = append(lora, targets("LoraConfig.target_modules", "all-linear"), trainedWhole("LoraConfig.modules_to_save"),
		ifAdapter(flag("LoraConfig.use_rslora", "training.adapter.use_rslora", func(j *spec.Job) *bool { return &adapter(j).UseRSLoRA })))
	return append([]rule{
		bitsAndBytes("BitsAndBytesConfig.load_in_4bit", "BitsAndBytesConfig.load_in_8bit", "BitsAndBytesConfig.bnb_4bit_quant_type", "BitsAndBytesConfig.bnb_4bit_use_double_quant"),
		modelID(fromPretrained + ".0"),
		renamed(fromPretrained+".torch_dtype", fromPretrained+".dtype"),
		weightsType(fromPretrained + ".dtype"),
		attention(fromPretrained + ".attn_implementation"),
		quantized(),
		microBatch(args + "per_device_train_batch_size"),
		accumulation(args + "gradient_accumulation_steps"),
		mixed(args+"bf16", args+"fp16", args+"tf32"),
		optimizer(args + "optim"),
		clipping(args+"max_grad_norm", 0.0),
		checkpointing(args+"gradient_checkpointing", args+"gradient_checkpointing_kwargs.use_reentrant"),
		compile(args + "torch_compile"),
		liger(ligerKeys{
			args + "use_liger_kernel", args + "liger_kernel_config.rope", args + "liger_kernel_config.rms_norm", args + "liger_kernel_config.swiglu",
			args + "liger_kernel_config.cross_entropy", args + "liger_kernel_config.fused_linear_cross_entropy",
		}),
	}, lora...)
}

// quantized hands the quantisation to the model; it is no setting of its own.
func quantized() rule {
	const key = fromPretrained + ".quantization_config"
	return custom(
		func(s *Subject, d *document) {
			if s.Job.Training.Quantization != nil {
				d.set(key, expression("quantization_config"))
			}
		},
		func(in *source, _ *spec.Job) { in.value(key) })
}

// method ties full training, LoRA and DoRA: an adapter's rank is there or not,
// and a switch decides between the two.
func method(dora, rank string) rule {
	return custom(
		func(s *Subject, d *document) {
			if s.Job.Training.Method == "dora" {
				d.set(dora, true)
			}
		},
		func(in *source, j *spec.Job) {
			on, _ := in.flag(dora)
			switch _, adapted := in.get(rank); {
			case on:
				j.Training.Method = "dora"
			case adapted:
				j.Training.Method = "lora"
			default:
				j.Training.Method = "full"
			}
		}, "training.method")
}

// bitsAndBytes ties the quantisation of the base by transformers' keys.
func bitsAndBytes(four, eight, kind, double string) rule {
	return custom(
		func(s *Subject, d *document) {
			q := s.Job.Training.Quantization
			if q == nil {
				return
			}
			switch q.Type {
			case "int8":
				d.set(eight, true)
			case "nf4", "nf4-double", "fp4", "fp4-double":
				d.set(four, true)
				if kind != "" {
					d.set(kind, q.Type[:3])
				}
				if double != "" && len(q.Type) > 3 {
					d.set(double, true)
				}
			}
		},
		func(in *source, j *spec.Job) {
			if on, _ := in.flag(eight); on {
				j.Training.Quantization = &spec.Quantization{Type: "int8"}
			}
			name, twice := "fp4", false // transformers' own default
			if kind != "" {
				if k, ok := in.word(kind); ok {
					name = k
				}
			}
			if double != "" {
				twice, _ = in.flag(double)
			}
			if twice {
				name += "-double"
			}
			if on, _ := in.flag(four); on {
				j.Training.Quantization = &spec.Quantization{Type: name}
			}
		}, "training.quantization.type")
}

// packing ties samples laid end to end, and batches without padding.
func packing(packed, free string) rule {
	return custom(
		func(s *Subject, d *document) {
			switch p := s.Job.Training.Packing; {
			case p == "concatenated":
				d.set(packed, true)
			case p == "padded-free" && free != "":
				d.set(free, true)
			case p == "none":
				d.set(packed, false)
			}
		},
		func(in *source, j *spec.Job) {
			p, given := in.flag(packed)
			f := false
			if free != "" {
				f, _ = in.flag(free)
			}
			switch t := &j.Training; {
			case p:
				t.Packing = "concatenated"
			case f:
				t.Packing = "padded-free"
			case given:
				t.Packing = "none"
			}
		}, "training.packing")
}
