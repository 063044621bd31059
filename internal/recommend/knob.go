package recommend

import (
	"slices"
	"strings"

	"memplan/internal/estimator/spec"
)

// knob is a value of a job that a recommendation may change.
type knob struct {
	path string
	get  func(j *spec.Job) any
	set  func(j *spec.Job, v any)
}

// Paths that goals turn themselves.
const (
	microBatchPath   = "training.micro_batch_size"
	accumulationPath = "training.gradient_accumulation_steps"
	sequencePath     = "training.sequence_length"
	countPath        = "target.count"
	dataPath         = "parallelism.data"
	gpuPath          = "target.gpu"
	shardingPath     = "parallelism.sharding"
	methodPath       = "training.method"
	quantizationPath = "training.quantization"
	fsdpPath         = "parallelism.fsdp"
)

// knobs lists every path that may change, in the order a patch names them.
func knobs() []knob {
	return []knob{
		{gpuPath, func(j *spec.Job) any { return j.Target.GPU }, func(j *spec.Job, v any) { j.Target.GPU = v.(string) }},
		{countPath, func(j *spec.Job) any { return j.Target.Count }, func(j *spec.Job, v any) { j.Target.Count = v.(int) }},
		{dataPath, func(j *spec.Job) any { return j.Parallelism.Data }, func(j *spec.Job, v any) { j.Parallelism.Data = v.(int) }},
		{shardingPath, func(j *spec.Job) any { return word(j.Parallelism.Sharding) }, func(j *spec.Job, v any) { j.Parallelism.Sharding = v.(string) }},
		{fsdpPath, getFSDP, func(j *spec.Job, _ any) { j.Parallelism.FSDP = nil }}, // only to be left out
		{"parallelism.fsdp.version", getFSDPVersion, setFSDPVersion},
		{"parallelism.ddp.gradient_as_bucket_view", getBucketView, setBucketView},
		{"parallelism.offload", func(j *spec.Job) any { return orEmpty(j.Parallelism.Offload) }, func(j *spec.Job, v any) { j.Parallelism.Offload = v.([]string) }},
		{methodPath, func(j *spec.Job) any { return j.Training.Method }, setMethod},
		{quantizationPath, getQuantization, setQuantization},
		{"training.precision", func(j *spec.Job) any { return string(j.Training.Precision) }, func(j *spec.Job, v any) { j.Training.Precision = spec.Precision(v.(string)) }},
		{"training.weights_dtype", func(j *spec.Job) any { return string(j.Training.WeightsDType) }, func(j *spec.Job, v any) { j.Training.WeightsDType = spec.DType(v.(string)) }},
		{"training.optimizer.name", func(j *spec.Job) any { return j.Training.Optimizer.Name }, func(j *spec.Job, v any) { j.Training.Optimizer.Name = v.(string) }},
		{"training.optimizer.library", func(j *spec.Job) any { return null(j.Training.Optimizer.Library) }, func(j *spec.Job, v any) { j.Training.Optimizer.Library = text(v) }},
		{"training.optimizer.implementation", func(j *spec.Job) any { return null(j.Training.Optimizer.Implementation) }, func(j *spec.Job, v any) { j.Training.Optimizer.Implementation = text(v) }},
		{"training.optimizer.state_bits", func(j *spec.Job) any { return max(j.Training.Optimizer.StateBits, 0) }, func(j *spec.Job, v any) { j.Training.Optimizer.StateBits = number(v) }},
		{"training.optimizer.paged", func(j *spec.Job) any { return j.Training.Optimizer.Paged }, func(j *spec.Job, v any) { j.Training.Optimizer.Paged = v.(bool) }},
		{"training.activation_checkpointing", func(j *spec.Job) any { return word(j.Training.Checkpointing.Mode) }, func(j *spec.Job, v any) { j.Training.Checkpointing = spec.Checkpointing{Mode: v.(string)} }},
		{"training.attention", func(j *spec.Job) any { return j.Training.Attention.Kernel }, func(j *spec.Job, v any) { j.Training.Attention = spec.Attention{Kernel: v.(string)} }},
		{"training.fused_kernels", func(j *spec.Job) any { return orEmpty(j.Training.FusedKernels) }, func(j *spec.Job, v any) { j.Training.FusedKernels = v.([]string) }},
		{"training.loss", func(j *spec.Job) any { return cmpOr(j.Training.Loss.Kind, "default") }, func(j *spec.Job, v any) { j.Training.Loss = spec.Loss{Kind: v.(string)} }},
		{"training.compile", func(j *spec.Job) any { return j.Training.Compile }, func(j *spec.Job, v any) { j.Training.Compile = v.(bool) }},
		{"runtime.allocator.expandable_segments", func(j *spec.Job) any { return j.Runtime.Allocator.ExpandableSegments }, func(j *spec.Job, v any) { j.Runtime.Allocator.ExpandableSegments = v.(bool) }},
		{microBatchPath, func(j *spec.Job) any { return j.Training.MicroBatchSize }, func(j *spec.Job, v any) { j.Training.MicroBatchSize = v.(int) }},
		{accumulationPath, func(j *spec.Job) any { return max(1, j.Training.GradAccumSteps) }, func(j *spec.Job, v any) { j.Training.GradAccumSteps = v.(int) }},
		{sequencePath, func(j *spec.Job) any { return j.Training.SequenceLength }, func(j *spec.Job, v any) { j.Training.SequenceLength = v.(int) }},
	}
}

// Paths lists the job paths that a recommendation may change.
func Paths() []string {
	var all []string
	for _, k := range knobs() {
		all = append(all, k.path)
	}
	return all
}

func cmpOr(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// word is a setting that is off where it is unset.
func word(s string) string { return cmpOr(s, "none") }

// null is a value to leave out where it is unset.
func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func number(v any) int {
	n, _ := v.(int)
	return n
}

// orEmpty is a list that is never null on the wire.
func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

func getFSDP(j *spec.Job) any {
	if j.Parallelism.FSDP == nil {
		return nil
	}
	return "set"
}

func getFSDPVersion(j *spec.Job) any {
	if j.Parallelism.FSDP == nil {
		return nil
	}
	return j.Parallelism.FSDP.Version
}

func setFSDPVersion(j *spec.Job, v any) {
	if v == nil {
		j.Parallelism.FSDP = nil
		return
	}
	var f spec.FSDP
	if j.Parallelism.FSDP != nil {
		f = *j.Parallelism.FSDP
	}
	f.Version = v.(int)
	j.Parallelism.FSDP = &f
}

func getBucketView(j *spec.Job) any {
	return j.Parallelism.DDP != nil && j.Parallelism.DDP.GradientAsBucketView
}

func setBucketView(j *spec.Job, v any) {
	var d spec.DDP
	if j.Parallelism.DDP != nil {
		d = *j.Parallelism.DDP
	}
	d.GradientAsBucketView = v.(bool)
	j.Parallelism.DDP = &d
}

func setMethod(j *spec.Job, v any) {
	j.Training.Method = v.(string)
	if j.Training.Method == "full" {
		j.Training.Adapter = nil
	}
}

func getQuantization(j *spec.Job) any {
	if j.Training.Quantization == nil {
		return "none"
	}
	return word(j.Training.Quantization.Type)
}

func setQuantization(j *spec.Job, v any) {
	j.Training.Quantization = nil
	if kind := v.(string); kind != "none" {
		j.Training.Quantization = &spec.Quantization{Type: kind}
	}
}

// allows reports whether a list of allowed paths covers one: itself, or what
// stands above it.
func allows(allowed []string, path string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool { return path == a || strings.HasPrefix(path, a+".") })
}
