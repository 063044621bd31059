package jobfile

import (
	"cmp"

	"memplan/internal/estimator/spec"
)

// axolotl is the YAML of axolotl. Keys of
// axolotl-ai-cloud/axolotl:src/axolotl/utils/schemas@0.9.
func axolotl() Format {
	lora := append([]rule{axolotlMethod()}, loraNumbers("lora_r", "lora_alpha", "lora_dropout")...)
	return Format{
		Name: "axolotl", Title: "Axolotl", File: "axolotl.yaml", Kind: Training, Source: "axolotl 0.9",
		syntax: yamlSyntax(), implies: trainer("hf"), suits: finetunes,
		rules: append([]rule{
			modelID("base_model"),
			sequenceLength("sequence_len"),
			packing("sample_packing", ""),
			microBatch("micro_batch_size"),
			accumulation("gradient_accumulation_steps"),
			axolotlPrecision(),
			optimizer("optimizer"),
			clipping("max_grad_norm", 0.0),
			checkpointing("gradient_checkpointing", "gradient_checkpointing_kwargs.use_reentrant"),
			attention("attn_implementation"),
			flashSwitch("flash_attention"),
			compile("torch_compile"),
			axolotlLiger(),
		}, append(lora,
			axolotlTargets(),
			trainedWhole("lora_modules_to_save"),
			ifAdapter(flag("peft_use_rslora", "training.adapter.use_rslora", func(j *spec.Job) *bool { return &adapter(j).UseRSLoRA })),
		)...),
	}
}

// axolotlMethod ties the adapter and the quantisation of its base, which one
// key decides together: qlora is LoRA over NF4 with double quantisation
// (axolotl/loaders/model.py sets both).
func axolotlMethod() rule {
	return custom(
		func(s *Subject, d *document) {
			t := s.Job.Training
			if t.Method != "lora" && t.Method != "dora" {
				return
			}
			kind := ""
			if t.Quantization != nil {
				kind = t.Quantization.Type
			}
			switch kind {
			case "nf4-double":
				d.set("adapter", "qlora")
				d.set("load_in_4bit", true)
			case "int8":
				d.set("adapter", "lora")
				d.set("load_in_8bit", true)
			default:
				d.set("adapter", "lora")
			}
			if t.Method == "dora" {
				d.set("peft_use_dora", true)
			}
		},
		func(in *source, j *spec.Job) {
			t := &j.Training
			t.Method = "full"
			kind, _ := in.word("adapter")
			four, _ := in.flag("load_in_4bit")
			eight, _ := in.flag("load_in_8bit")
			dora, _ := in.flag("peft_use_dora")
			switch kind {
			case "lora", "qlora":
				t.Method = "lora"
			case "":
			default:
				in.refuse("adapter", kind, "one of lora, qlora")
			}
			if dora {
				t.Method = "dora"
			}
			switch {
			case kind == "qlora" || four:
				t.Quantization = &spec.Quantization{Type: "nf4-double"}
			case eight:
				t.Quantization = &spec.Quantization{Type: "int8"}
			}
		}, "training.method", "training.quantization.type")
}

// axolotlPrecision ties autocast (bf16, fp16) and arithmetic without it
// (bfloat16, float16). Axolotl loads weights in the type it computes in
// (src/axolotl/utils/config/__init__.py: normalize_config), so a job that keeps
// fp32 weights under autocast cannot be said.
func axolotlPrecision() rule {
	keys := []choice[spec.Precision]{
		{spec.PrecisionBF16Mixed, "bf16"}, {spec.PrecisionFP16Mixed, "fp16"}, {spec.PrecisionBF16, "bfloat16"}, {spec.PrecisionFP16, "float16"}, {spec.PrecisionTF32, "tf32"},
	}
	return custom(
		func(s *Subject, d *document) {
			for _, k := range keys {
				if k.ours == s.Job.Training.Precision {
					d.set(textOf(k.theirs), true)
					return
				}
			}
			if s.Job.Training.Precision == spec.PrecisionFP32 {
				d.set("bf16", false)
			}
		},
		func(in *source, j *spec.Job) {
			t := &j.Training
			for _, k := range keys {
				key := textOf(k.theirs)
				v, ok := in.get(key)
				on := v == "auto" || v == "full" // axolotl's own words: where the card has it, and for evaluation too
				if on {
					in.used[key] = true
				} else if ok {
					on, _ = in.flag(key)
				}
				switch {
				case on && (t.Precision == "" || t.Precision == spec.PrecisionFP32):
					t.Precision, t.WeightsDType = k.ours, spec.FP32
					if half := cmp.Or(k.ours.Mixed(), k.ours.Pure()); k.ours != spec.PrecisionTF32 {
						t.WeightsDType = half
					}
				case ok && t.Precision == "":
					t.Precision, t.WeightsDType = spec.PrecisionFP32, spec.FP32
				}
			}
		}, "training.precision", "training.weights_dtype")
}

// flashSwitch reads a switch that means flash attention; it is not written.
func flashSwitch(key string) rule {
	return custom(func(*Subject, *document) {}, func(in *source, j *spec.Job) {
		if on, _ := in.flag(key); on {
			j.Training.Attention.Kernel = "flash"
		}
	})
}

// axolotlTargets ties the adapter's modules; every linear layer has a switch
// of its own.
func axolotlTargets() rule {
	named := targets("lora_target_modules", "")
	return ifAdapter(custom(
		func(s *Subject, d *document) {
			if s.Job.Training.Adapter.TargetModules.AllLinear {
				d.set("lora_target_linear", true)
				return
			}
			named.write(s, d)
		},
		func(in *source, j *spec.Job) {
			if on, _ := in.flag("lora_target_linear"); on {
				adapter(j).TargetModules = spec.Targets{AllLinear: true}
				return
			}
			named.read(in, j)
		}, "training.adapter.target_modules"))
}

// axolotlLiger is Liger as a plugin with a switch for each kernel.
func axolotlLiger() rule {
	const plugin = "axolotl.integrations.liger.LigerPlugin"
	r := liger(ligerKeys{"", "liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_cross_entropy", "liger_fused_linear_cross_entropy"})
	write, read := r.write, r.read
	r.write = func(s *Subject, d *document) {
		n := len(d.entries)
		write(s, d)
		if len(d.entries) > n {
			d.set("plugins", []any{plugin})
		}
	}
	r.read = func(in *source, j *spec.Job) {
		in.value("plugins")
		read(in, j)
	}
	return r
}
