package step

import (
	"slices"
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// Frozen weights in few bits: every linear layer but the head becomes a
// bitsandbytes Linear4bit (or Linear8bitLt) under the same pointer before the
// run, and its weight is quantised on its way to the card. Read from bitsandbytes 0.50.2 and
// 0.45.3, nn/modules.py, transformers/integrations/bitsandbytes.py, and peft
// 0.21.2, utils/other.py:prepare_model_for_kbit_training.

// fourBit lists the 4-bit types. NF4 and FP4 differ in values, not in bytes;
// "double" quantises the scales too.
var fourBit = []string{"nf4", "nf4-double", "fp4", "fp4-double"}

// linear4bit is the class of a quantised layer.
const linear4bit = "Linear4bit"

// defaultBlock is how many weights share a scale where the job does not say.
const defaultBlock = 64

// quantized reports whether a job's base is quantised.
func quantized(j *spec.Job) bool {
	q := j.Training.Quantization
	return q != nil && q.Type != "none" && q.Type != ""
}

// beyondQuantization lists what of the job's quantisation is not run.
func beyondQuantization(j *spec.Job, f *fault.Fields) {
	if !quantized(j) {
		return
	}
	q := j.Training.Quantization
	if types := append(slices.Clone(fourBit), "int8"); !slices.Contains(types, q.Type) {
		f.Add("training.quantization.type", q.Type, "one of "+strings.Join(types, ", ")+" (others are not modelled)", "nf4")
	}
	if q.Library != "" && q.Library != "bitsandbytes" {
		f.Add("training.quantization.library", q.Library, "bitsandbytes (others are not modelled)", "bitsandbytes")
	}
	if blocks := []int{0, 32, 64, 128, 256, 512, 1024, 2048, 4096}; !slices.Contains(blocks, q.GroupSize) {
		f.Add("training.quantization.group_size", q.GroupSize, "a power of two from 32 to 4096", "64")
	}
	if t := q.StorageDType; t != "" && t != spec.FP32 && t != spec.BF16 && t != spec.FP16 && t != "uint8" {
		f.Add("training.quantization.storage_dtype", string(t), "uint8, fp32, bf16 or fp16", "uint8")
	}
	if m := j.Training.Method; m != "lora" && m != "dora" {
		f.Add("training.method", m, "lora or dora: quantised weights are frozen", "lora")
	}
	if n := j.Parallelism.Ranks(); n > 1 {
		f.Add("training.quantization", q.Type, "none on several ranks (not modelled)", "none")
	}
}

// quantize rewrites the module tree as replace_with_bnb_linear does. It fails
// with fault.Fields for a head that is to be quantised and shares its weight
// with the embeddings.
func quantize(r *Run) error {
	if !quantized(r.Job) {
		return nil
	}
	q, head := r.Job.Training.Quantization, r.Net.Head
	if q.QuantizedHead != nil && *q.QuantizedHead {
		if head != nil && head.Params[0].Tied != nil {
			var f fault.Fields
			f.Add("training.quantization.quantized_head", true, "false: the head is the embeddings' weight, which is not quantised", "false")
			return f
		}
		head = nil
	}
	config := &graph.FourBit{BlockSize: defaultBlock, Nested: strings.HasSuffix(q.Type, "-double"), Storage: graph.U8}
	if q.GroupSize > 0 {
		config.BlockSize = int64(q.GroupSize)
	}
	if q.StorageDType != "" && q.StorageDType != "uint8" {
		config.Storage = DTypeOf(q.StorageDType)
	}
	r.quantized = true
	compute := computeType(r.Job)
	r.Net.Root.Walk(func(m *graph.Module) {
		switch {
		case m.Class != "Linear" || m == head || skipped(m.Path, q.SkipModules):
		case q.Type == "int8":
			toInt8(m)
		default:
			toFourBit(m, config, compute)
			if r.Job.Model.Implementation == model.LitGPT { // Fabric quantises what it cast to fp16 (fabric/plugins/precision/bitsandbytes.py)
				m.Params[0].DType = graph.F16
			}
		}
		for _, b := range m.Buffers { // the loader makes them anew, in fp32
			if b.DType.Floating() {
				b.DType = graph.F32
			}
		}
	})
	return nil
}

// computeType is the type products are computed in: that of autocast, or of
// the weights.
func computeType(j *spec.Job) graph.DType {
	if d := j.Training.Precision.Mixed(); d != "" {
		return DTypeOf(d)
	}
	if d := j.Training.WeightsDType; d != spec.FP32 {
		return DTypeOf(d)
	}
	return graph.BF16
}

// skipped reports whether a module is left as it is: a name among
// llm_int8_skip_modules is the end of its path, or a beginning of it in whole
// parts (transformers/quantizers/quantizers_utils.py:should_convert_module).
func skipped(path string, names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		return strings.HasSuffix(path, n) || path == n || strings.HasPrefix(path, n+".")
	})
}

// computeGivenSince is the bitsandbytes whose layers keep the compute type they
// were given; before, the first input decided.
var computeGivenSince = spec.Version{0, 50}

// toFourBit makes m a Linear4bit: inputs are cast to the compute type, results
// back to that of the input, and the bias follows for good.
func toFourBit(m *graph.Module, config *graph.FourBit, compute graph.DType) {
	weight := m.Params[0]
	var bias *graph.Param
	if len(m.Params) > 1 {
		bias = m.Params[1]
	}
	weight.FourBit = config
	m.Class = linear4bit
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		given := in[0].DType
		to := compute
		if f.Versions.BitsAndBytes.AtLeast(computeGivenSince) {
			x := f.Let("x", f.To(in[0], to))
			return []*graph.Tensor{f.To(f.MatMul4Bit(x, weight, castBias(f, bias, to)), given)}
		}
		if given != graph.F16 {
			to = given
		}
		b := castBias(f, bias, given)
		x := f.Let("x", f.To(in[0], to))
		if b != nil {
			b = f.Let("bias", f.To(b, to))
		}
		return []*graph.Tensor{f.To(f.MatMul4Bit(x, weight, b), given)}
	}
}

// castBias is bias.data = bias.data.to(d): it stays so.
func castBias(f *graph.Frame, bias *graph.Param, d graph.DType) *graph.Tensor {
	if bias == nil {
		return nil
	}
	if bias.DType != d {
		f.Recast(bias, d)
	}
	return bias.T()
}

// prepares reports whether prepare_model_for_kbit_training runs.
func prepares(t *spec.Training) bool {
	return t.Quantization != nil && t.Quantization.KBitPrepare != nil && *t.Quantization.KBitPrepare
}

// baseType is what PEFT takes for the type of a base layer when it puts an
// adapter beside it (BaseTunerLayer._get_base_layer_device_and_dtype).
func baseType(r *Run, m *graph.Module) graph.DType {
	switch {
	case m.Class == linear4bit:
		return computeType(r.Job)
	case m.Class == linear8bit: // integers are no type for an adapter: it stays as it was made
		return graph.F32
	case r.quantized && prepares(&r.Job.Training):
		return graph.F32
	}
	return m.Params[0].DType
}

// loadQuantized brings a quantised model to the card in the order of a script:
// the base, its preparation, adapters in the type of their layer, copies of
// modules that are trained whole, and adapters in their own type.
func loadQuantized(r *Run) {
	root := r.Net.Root
	r.M.ToDeviceIf(root, func(p *graph.Param) bool { return !p.Trained })
	if prepares(&r.Job.Training) {
		prepareKBit(r)
	}
	var casts []func()
	root.Walk(func(m *graph.Module) {
		if m.Class != "lora.Linear" {
			return
		}
		made := baseType(r, m.Children[0])
		for _, p := range m.Parameters() {
			if own := p.DType; p.Category == graph.Adapters && own != made {
				p.DType = made
				casts = append(casts, func() { r.M.Recast(p, own) })
			}
		}
		r.M.ToDeviceIf(m, func(p *graph.Param) bool { return p.Category == graph.Adapters && p.Shape.N == 2 })
		if r.Job.Training.Method == "dora" {
			initMagnitude(r, m)
		}
	})
	r.M.ToDevice(root)
	for _, cast := range casts {
		cast()
	}
}

// prepareKBit casts what is not quantised to fp32 and hands cached segments
// back, and gives modules the job names another type again.
func prepareKBit(r *Run) {
	for _, p := range r.Net.Root.Parameters() {
		switch {
		case p.Quantized() || p.DType != graph.F16 && p.DType != graph.BF16:
		case !p.Trained:
			r.M.Recast(p, graph.F32)
		case p.Category != graph.Adapters: // a copy to come, of what was just cast
			p.DType = graph.F32
		}
	}
	r.M.EmptyCache()
	recast := r.Job.Training.Quantization.KBitRecast
	if recast == nil {
		return
	}
	r.Net.Root.Walk(func(m *graph.Module) {
		if !endsWith(m.Path, recast.Modules) {
			return
		}
		for _, p := range m.Params {
			if p.Tied == nil && !p.Quantized() && p.DType != DTypeOf(recast.DType) {
				r.M.Recast(p, DTypeOf(recast.DType))
			}
		}
	})
}

// refuseQuantized fails for modules to be trained whole that hold quantised
// weights, which have no gradient.
func refuseQuantized(saved []*graph.Module) error {
	var fields fault.Fields
	for _, m := range saved {
		if slices.ContainsFunc(m.Parameters(), (*graph.Param).Quantized) {
			fields.Add("training.adapter.modules_to_save", m.Path, "modules that are not quantised: name it in training.quantization.skip_modules", "lm_head")
		}
	}
	return fields.Err()
}

// lora4bit is Linear4bit.forward of tuners/lora/bnb.py: the result is copied
// before anything is added to it, and casts are left to autocast where it is
// on.
func (p pair) lora4bit(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	result := f.Let("result", f.Call1(p.base, in[0]))
	result = f.Let("result", f.Clone(result))
	return p.besideQuantized(f, result, in[0])
}

// besideQuantized adds the pair's product to a quantised layer's result.
func (p pair) besideQuantized(f *graph.Frame, result, x *graph.Tensor) []*graph.Tensor {
	_, casting := f.Autocasting()
	if !casting {
		x = f.Let("x", f.To(x, p.dtype))
	}
	output := f.Let("output", f.MulScalar(f.Call1(p.up, f.Call1(p.down, f.Call1(p.dropout, x)))))
	if !casting {
		output = f.Let("output", f.To(output, result.DType))
	}
	return []*graph.Tensor{f.Let("result", f.Add(result, output))}
}
