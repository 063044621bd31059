package wire

import (
	"fmt"
	"strings"

	"memplan/internal/units"
)

// A measure is text with a unit, for the shared definitions that allow it.
type measure struct {
	parse func(string) error
	want  string
}

// measures reads the units of the shared definitions, by their names.
var measures = map[string]measure{
	"size_gib": {parseSize, "a number of GiB, or a size with its unit, as in 80 GB"},
	"count":    {parseCount, "a number above 0, with K, M, B or T if you like, as in 7B"},
}

func parseSize(s string) error {
	_, err := units.ParseBytes(s, units.GiB)
	return err
}

func parseCount(s string) error {
	v, err := units.ParseCount(s)
	if err == nil && v > largestNumber {
		return fmt.Errorf("%q is too many", s)
	}
	return err
}

// shorts are the objects that may be written as one text, and the key that
// text stands for.
var shorts = map[string]string{
	"training.optimizer":                "name",
	"training.activation_checkpointing": "mode",
	"training.attention":                "kernel",
	"training.loss":                     "kind",
	"training.quantization":             "type",
}

// nothings are the values that say the same as leaving the key out.
var nothings = map[string]string{
	"training.quantization": "none",
	"training.qat":          "none",
	"training.ema":          "false",
	"training.grad_scaler":  "auto",
	"runtime.holds_outputs": "auto",
	"parallelism.offload":   "none",
}

// dtypeSpellings are PyTorch's names of element types.
var dtypeSpellings = map[string]string{
	"float32": "fp32", "float": "fp32", "torch.float32": "fp32",
	"bfloat16": "bf16", "torch.bfloat16": "bf16",
	"float16": "fp16", "half": "fp16", "torch.float16": "fp16",
	"float8": "fp8", "torch.int8": "int8", "torch.uint8": "uint8",
}

// spellings are other ways of writing a scalar, by path: those of Lightning
// (precision), of transformers (attention), and switches of other tools.
var spellings = map[string]map[string]string{
	"training.precision": {
		"32": "fp32", "32-true": "fp32", "16": "fp16-mixed", "16-mixed": "fp16-mixed", "16-true": "fp16",
		"bf16-true": "bf16", "transformer-engine": "fp8-mixed",
	},
	"training.attention":                 attentionSpellings,
	"training.attention.kernel":          attentionSpellings,
	"training.activation_checkpointing":  {"true": "full", "false": "none"},
	"training.quantization":              {"false": "none"},
	"training.qat":                       {"false": "none"},
	"training.ema":                       {"none": "false"},
	"parallelism.pipeline_schedule":      {"1F1B": "1f1b"},
	"runtime.allocator.backend":          {"cuda_malloc_async": "cudaMallocAsync"},
	"training.adapter.target_modules":    {"all_linear": "all-linear"},
	"training.reference_model":           {"false": "none"},
	"training.checkpoint_save":           {"false": "none"},
	"training.packing":                   {"false": "none", "varlen": "padded-free"},
	"training.master_weights":            {"false": "none"},
	"parallelism.fsdp.backward_prefetch": {"BACKWARD_PRE": "pre", "BACKWARD_POST": "post"},
	"training.optimizer.implementation":  {"for_loop": "for-loop", "forloop": "for-loop"},
}

var attentionSpellings = map[string]string{
	"flash_attention_2": "flash", "flash_attention_3": "flash", "flash_attention": "flash", "flash_attn": "flash",
	"flash-attention-2": "flash", "flex_attention": "flex",
}

// annotate adds to the compiled schema what is ours: short forms, spellings,
// limits.
func annotate(r *rule, path string) {
	r.short, r.nothing, r.spellings = shorts[path], nothings[path], spellings[path]
	if r.ref == "dtype" || path == "training.gradient_dtype" {
		r.spellings = dtypeSpellings
	}
	if path == "training.optimizer" {
		r.expand = expandOptimizer
	}
	if whole := r.by[number]; whole != nil && whole.whole && whole.high.value == largestInt {
		whole.high.value = largestCount(path)
	}
	for _, reader := range r.by {
		if reader == nil || reader.index == nil {
			continue
		}
		for _, f := range reader.fields {
			annotate(f.rule, join(path, f.name))
		}
	}
	if reader := r.by[list]; reader != nil && reader.items != nil && !reader.items.free {
		annotate(reader.items, path+"[]")
	}
}

// limits bound the whole numbers that the engine multiplies with each other,
// so that its products stay exact.
var limits = map[string]float64{
	"training.micro_batch_size":        1e6,
	"training.sequence_length":         1e8,
	"training.image_size[]":            1e5,
	"training.latent_shape[]":          1e5,
	"training.channels":                1e5,
	"training.num_frames":              1e6,
	"parallelism.data":                 1e6,
	"parallelism.replicate":            1e6,
	"parallelism.tensor":               1e4,
	"parallelism.pipeline":             1e4,
	"parallelism.context":              1e4,
	"parallelism.expert":               1e5,
	"parallelism.expert_tensor":        1e4,
	"parallelism.gpus_per_node":        1e4,
	"target.count":                     1e6,
	"training.decoder_sequence_length": 1e8,
}

// largestCount bounds the whole number at a path: the counts of parameters to
// 10^15, and what has no limit of its own to 10^9.
func largestCount(path string) float64 {
	if limit, ok := limits[path]; ok {
		return limit
	}
	if strings.HasSuffix(path, "parameters") {
		return 1e15
	}
	return 1e9
}

// respell replaces other spellings of n by the format's own, and decides the
// kind of a value that was written where everything is text.
func (r *rule) respell(n *node) error {
	if n.loose == loose {
		r.settle(n)
	}
	if other, ok := r.spellings[n.text]; ok && n.kind <= text {
		n.text = other
		n.kind = text
		if r.by[text] == nil {
			n.kind = boolean
		}
	}
	if n.loose == plain && r.by[n.kind] == nil && r.onlyText() && (n.kind == number || n.kind == boolean) {
		n.kind = text
	}
	if r.expand != nil {
		return r.expand(n)
	}
	return nil
}

// onlyText reports whether the rule reads free text and nothing else, as that
// of a version does.
func (r *rule) onlyText() bool {
	return r.by[text] != nil && r.by[text].values == nil && r.by[object] == nil && r.by[list] == nil
}
