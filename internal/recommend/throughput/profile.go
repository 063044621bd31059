package throughput

import (
	"slices"

	"memplan/internal/estimator"
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// Profile is what one rank of a job computes in a micro batch, as a function of
// the micro batch: the kernels of two sizes, between and beyond which every
// number is a straight line.
type Profile struct {
	small, large *estimator.Work
	sizes        [2]int
}

// profiled are the sizes a profile is taken at. The larger is small enough to
// be quick and large enough that the smaller one's special kernels do not count.
var profiled = [2]int{2, 4}

// NewProfile asks for the work of a job at two micro batches. Work fails where
// the engine has no rules for the job.
func NewProfile(job spec.Job, work func(spec.Job) (*estimator.Work, error)) (*Profile, error) {
	p := &Profile{sizes: profiled}
	for i, at := range []**estimator.Work{&p.small, &p.large} {
		varied := job
		varied.Training.MicroBatchSize = p.sizes[i]
		w, err := work(varied)
		if err != nil {
			return nil, err
		}
		*at = w
	}
	return p, nil
}

// Parameters are the model's, all and the trained ones.
func (p *Profile) Parameters() (total, trainable int64) { return p.large.Total, p.large.Trainable }

// Stored is the bytes of the model's parameters, all and the trained ones, as
// they lie on the card.
func (p *Profile) Stored() (all, trained int64) { return p.large.Stored, p.large.Trained }

// each calls f with every kernel at a micro batch. Where the two sizes ran
// different kernels, those of the larger one are scaled.
func (p *Profile) each(micro int, f func(k *kernel)) {
	a, b := p.small.Kernels, p.large.Kernels
	alike := len(a) == len(b)
	for i := 0; alike && i < len(a); i++ {
		alike = a[i].Kind == b[i].Kind && a[i].Count == b[i].Count
	}
	if !alike {
		scale := float64(micro) / float64(p.sizes[1])
		for _, k := range b {
			k.FLOPs *= scale
			k.Bytes *= scale
			k.Rows = max(1, int64(float64(k.Rows)*scale))
			f(&k)
		}
		return
	}
	t := float64(micro-p.sizes[0]) / float64(p.sizes[1]-p.sizes[0])
	line := func(x, y float64) float64 { return max(x+(y-x)*t, 0) }
	whole := func(x, y int64) int64 {
		if x == y {
			return x
		}
		return max(1, int64(line(float64(x), float64(y))))
	}
	for i := range a {
		k := b[i]
		k.FLOPs, k.Bytes = line(a[i].FLOPs, k.FLOPs), line(a[i].Bytes, k.Bytes)
		k.Batch, k.Rows = whole(a[i].Batch, k.Batch), whole(a[i].Rows, k.Rows)
		k.Inner, k.Columns = whole(a[i].Inner, k.Inner), whole(a[i].Columns, k.Columns)
		f(&k)
	}
}

// kernel is one of the graph.
type kernel = graph.Kernel

// Base is the job whose work one rank would do alone, by an eager loop of one's
// own: sharding, exchange, compilation and number formats that only change how
// fast it is done are priced on top of it.
func Base(job spec.Job) spec.Job {
	t := job.Training
	foreign := job.Model.Implementation
	job.Model = standIn(job.Model)
	job.Parallelism = spec.Parallelism{}
	job.Target.Count = 1
	job.Runtime.Trainer = "plain"
	job.Runtime.Allocator = spec.AllocatorSettings{}
	job.Runtime.HoldsOutputs = spec.Auto
	t.Optimizer = spec.Optimizer{Name: "sgd"}
	t.OptimizerStep, t.GradientDType, t.MasterWeights, t.GradScaler = nil, "", "", spec.Off
	t.GradAccumSteps, t.Compile, t.FP8, t.QAT, t.EMA = 1, false, nil, nil, nil
	t.Evaluation, t.Generation, t.Load, t.CheckpointSave = nil, nil, nil, ""
	t.LabelSmoothing, t.DropoutDisabled, t.GradsResident, t.ResidentModules, t.BlocksToSwap = false, false, false, nil, 0
	t.Packing, t.SequenceLengths, t.Losses = "", nil, nil
	eager(&t)
	if a := t.Adapter; a != nil && (foreign != "" && foreign != job.Model.Implementation) { // whose modules have other names
		a.TargetModules = spec.Targets{AllLinear: true}
	}
	job.Training = t
	return job
}

// eager replaces what is only faster or smaller by what it is made from.
func eager(t *spec.Training) {
	switch t.Precision {
	case spec.PrecisionFP8Mixed, spec.PrecisionINT8Mixed:
		t.Precision = spec.PrecisionBF16Mixed
		if t.WeightsDType == spec.BF16 {
			t.Precision = spec.PrecisionBF16
		}
	}
	if d := t.Precision.Pure(); d != "" {
		t.WeightsDType = d
	}
	if t.Attention.Kernel == "flex" {
		t.Attention = spec.Attention{Kernel: "flash"}
	}
	t.FusedKernels = slices.DeleteFunc(slices.Clone(t.FusedKernels), func(k string) bool { return k == "lora_linear" || k == "adam" || k == "layer_norm" })
	if t.Loss.Kind != "fused-linear" {
		t.Loss = spec.Loss{}
	}
	t.Quantization = stored(t.Quantization)
	switch c := &t.Checkpointing; c.Mode {
	case "selective":
		if c.Every > 1 {
			c.Mode = "full"
		} else {
			c.Mode = "none" // products are kept, and what lies between them is cheap
		}
		*c = spec.Checkpointing{Mode: c.Mode, Every: c.Every}
	case "full":
		*c = spec.Checkpointing{Mode: "full", Every: c.Every}
	}
	if a := t.Adapter; a != nil {
		b := *a
		b.ModulesToSave = nil
		t.Adapter = &b
	}
}

// stored is a quantised base as bitsandbytes keeps it in 4 bits, which every
// layer restores as those of other libraries do. One whose packed weights are to
// be sharded, or of another library, is not prepared by casts to fp32.
func stored(q *spec.Quantization) *spec.Quantization {
	if q == nil || q.Type == "" || q.Type == "none" {
		return nil
	}
	kept := &spec.Quantization{Type: "nf4", KBitPrepare: q.KBitPrepare}
	switch q.Type {
	case "nf4-double", "fp4", "fp4-double":
		kept.Type = q.Type
	}
	if kept.KBitPrepare == nil && (q.StorageDType == spec.BF16 || q.Library != "" && q.Library != "bitsandbytes" || q.Type == "gptq-4bit" || q.Type == "awq-4bit") {
		no := false
		kept.KBitPrepare = &no
	}
	return kept
}
