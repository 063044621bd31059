package jobfile

import (
	"slices"
	"strings"

	"memplan/internal/estimator/spec"
	"memplan/internal/wire"
)

// Rules of settings that several tools spell with several keys each.

// optimizer ties transformers' `optim` names, which most tools of its family
// take. aliases are read and not written.
func optimizer(key string, more ...choice[spec.Optimizer]) rule {
	names := wire.HuggingFaceOptimizers()
	for _, plain := range []string{"sgd", "adagrad", "rmsprop", "lion", "lomo", "adalomo"} {
		names[plain] = spec.Optimizer{Name: plain}
	}
	names["adafactor"] = spec.Optimizer{Name: "adafactor", Library: "transformers"}
	for _, m := range more {
		names[textOf(m.theirs)] = m.ours
	}
	return custom(
		func(s *Subject, d *document) {
			if name := nameOf(s.Job.Training.Optimizer, names); name != "" {
				d.set(key, name)
			}
		},
		func(in *source, j *spec.Job) {
			name, ok := in.word(key)
			if !ok {
				return
			}
			o, known := names[strings.ToLower(name)]
			if !known {
				in.wrong.Add(key, name, "an optimizer of transformers", nearest(name, sorted(names)))
				return
			}
			j.Training.Optimizer = o
		}, "training.optimizer.name", "training.optimizer.implementation", "training.optimizer.library",
		"training.optimizer.state_bits", "training.optimizer.paged", "training.optimizer.in_backward")
}

// nameOf finds the name that says most of an optimizer and nothing against it.
func nameOf(o spec.Optimizer, names map[string]spec.Optimizer) string {
	best, most := "", 0
	for _, name := range sorted(names) {
		have := names[name]
		if have.Name != o.Name || bitsOf(have) != bitsOf(o) || have.Paged != o.Paged || have.InBackward != o.InBackward ||
			against(have.Library, o.Library) || against(have.Implementation, o.Implementation) {
			continue
		}
		said := 1
		if have.Library != "" {
			said++
		}
		if have.Implementation != "" {
			said++
		}
		if said > most {
			best, most = name, said
		}
	}
	return best
}

// against says that a name means something else than the job does.
func against(theirs, ours string) bool { return theirs != "" && theirs != ours }

// bitsOf is the size of an optimizer's state where it is stated or plain.
func bitsOf(o spec.Optimizer) int {
	if o.StateBits == 0 {
		return 32
	}
	return o.StateBits
}

func sorted[T any](m map[string]T) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// attention ties the attention kernel by transformers' names.
func attention(key string) rule {
	return choose(key, "training.attention.kernel", func(j *spec.Job) *string { return &j.Training.Attention.Kernel },
		choice[string]{"sdpa", "sdpa"}, choice[string]{"flash", "flash_attention_2"}, choice[string]{"eager", "eager"}, choice[string]{"flex", "flex_attention"},
		choice[string]{"flash", "flash_attention_3"})
}

// checkpointing ties a switch, and the variant of torch's checkpoint where the
// tool has a key for it.
func checkpointing(key, reentrant string) rule {
	paths := []string{"training.activation_checkpointing.mode"}
	if reentrant != "" {
		paths = append(paths, "training.activation_checkpointing.reentrant")
	}
	return custom(
		func(s *Subject, d *document) {
			c := s.Job.Training.Checkpointing
			switch {
			case c.Mode == "full" && c.Every <= 1:
				d.set(key, true)
			case c.Mode == "none":
				d.set(key, false)
				return
			default:
				return
			}
			if reentrant != "" && c.Reentrant != nil {
				d.set(reentrant, *c.Reentrant)
			}
		},
		func(in *source, j *spec.Job) {
			c := &j.Training.Checkpointing
			if on, ok := in.flag(key); ok {
				c.Mode = map[bool]string{true: "full", false: "none"}[on]
			}
			if reentrant == "" {
				return
			}
			if on, ok := in.flag(reentrant); ok {
				c.Reentrant = &on
			}
		}, paths...)
}

// ligerKeys are a tool's keys for the kernels of Liger; an empty one it lacks.
type ligerKeys struct{ use, rope, rmsNorm, swiglu, crossEntropy, fusedLinear string }

// liger ties the fused kernels. Only the switch is read as what it turns on
// for a decoder (liger_kernel/transformers/monkey_patch.py@0.8: rope, rms_norm,
// swiglu and the fused linear cross-entropy).
func liger(k ligerKeys) rule {
	kernels := [][2]string{{k.rope, "rope"}, {k.rmsNorm, "rms_norm"}, {k.swiglu, "swiglu"}, {k.crossEntropy, "cross_entropy"}}
	return custom(
		func(s *Subject, d *document) {
			t := &s.Job.Training
			fused := t.Loss.Kind == "fused-linear"
			if len(t.FusedKernels) == 0 && !fused {
				return
			}
			if k.use != "" {
				d.set(k.use, true)
			}
			for _, x := range kernels {
				if x[0] != "" {
					d.set(x[0], slices.Contains(t.FusedKernels, x[1]))
				}
			}
			if k.fusedLinear != "" {
				d.set(k.fusedLinear, fused)
			}
		},
		func(in *source, j *spec.Job) {
			t := &j.Training
			use, _ := false, false
			if k.use != "" {
				use, _ = in.flag(k.use)
			}
			named := false
			for _, x := range kernels {
				if x[0] == "" {
					continue
				}
				on, ok := in.flag(x[0])
				named = named || ok
				if on {
					t.FusedKernels = append(t.FusedKernels, x[1])
				}
			}
			if k.fusedLinear != "" {
				on, ok := in.flag(k.fusedLinear)
				named = named || ok
				if on {
					t.Loss.Kind = "fused-linear"
				}
			}
			if use && !named {
				t.FusedKernels, t.Loss.Kind = []string{"rope", "rms_norm", "swiglu"}, "fused-linear"
			}
		}, "training.fused_kernels", "training.loss.kind")
}

// mixed ties precision to two switches for autocast. Neither is full precision
// in the type the weights are stored in, which has a rule of its own that must
// stand before this one.
func mixed(bf16, fp16, tf32 string) rule {
	return custom(
		func(s *Subject, d *document) {
			switch s.Job.Training.Precision {
			case spec.PrecisionBF16Mixed:
				d.set(bf16, true)
			case spec.PrecisionFP16Mixed:
				d.set(fp16, true)
			case spec.PrecisionTF32:
				d.set(bf16, false)
				if tf32 != "" {
					d.set(tf32, true)
				}
			case spec.PrecisionFP32, spec.PrecisionBF16, spec.PrecisionFP16:
				d.set(bf16, false)
			}
		},
		func(in *source, j *spec.Job) {
			b, okB := in.flag(bf16)
			f, okF := in.flag(fp16)
			t := false
			if tf32 != "" {
				t, _ = in.flag(tf32)
			}
			weights := j.Training.WeightsDType
			switch p := &j.Training.Precision; {
			case b:
				*p = spec.PrecisionBF16Mixed
			case f:
				*p = spec.PrecisionFP16Mixed
			case t:
				*p = spec.PrecisionTF32
			case (okB || okF) && weights != "":
				*p = spec.Precision(weights)
			}
		}, "training.precision")
}

// torchTypes are the element types by torch's names.
var torchTypes = []choice[spec.DType]{{spec.FP32, "float32"}, {spec.BF16, "bfloat16"}, {spec.FP16, "float16"}, {spec.FP32, "torch.float32"}, {spec.BF16, "torch.bfloat16"}, {spec.FP16, "torch.float16"}}

// weightsType ties the type the weights are loaded in.
func weightsType(key string) rule {
	return choose(key, "training.weights_dtype", func(j *spec.Job) *spec.DType { return &j.Training.WeightsDType }, torchTypes...)
}

// trainer says whose loop a format's files run, where the job did not say.
func trainer(name string) func(*spec.Job) {
	return func(j *spec.Job) { j.Runtime.Trainer = name }
}

// finetunes says that a tool of the transformers family could run the job: a
// language model, by its Trainer or by nobody named.
func finetunes(j *spec.Job) bool {
	return j.Training.SequenceLength > 0 && trainedBy("hf", "trl", "unsloth", "accelerate", "plain", "")(j)
}

func trainedBy(names ...string) func(*spec.Job) bool {
	return func(j *spec.Job) bool { return slices.Contains(names, j.Runtime.Trainer) }
}
