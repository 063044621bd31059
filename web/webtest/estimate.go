package webtest

import (
	"fmt"
	"slices"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

const layers = 32

// Estimate is a made-up answer to a job: a first and a steady step over 32
// layers whose activations grow with the micro batch. Its parts add up.
func Estimate(job spec.Job) *estimator.Estimate {
	batch := units.Bytes(max(job.Training.MicroBatchSize, 1))
	job.Version = 1
	job.Training.MicroBatchSize = int(batch)
	if job.Training.SequenceLength == 0 {
		job.Training.SequenceLength = 2048
	}
	e := &estimator.Estimate{
		Version: 1, Engine: estimator.Engine{Version: "0.1.0", Catalog: "2026.12.1"}, Job: job,
		Timeline:   timeline(batch),
		Parameters: estimator.Parameters{Total: 8030261248, Trainable: 8030261248, Active: 8030261248, PerRank: 8030261248},
	}
	top := peakMoment(e.Timeline)
	e.Peak = peak(top)
	e.Breakdown = breakdown(top, e.Peak)
	e.Target = estimator.TargetAnswer{
		GPU: "H100-SXM5-80GB", Usable: 79 * units.GiB, Headroom: 79*units.GiB - e.Peak.Required, Verdict: estimator.Fits, ProbabilityFits: 0.996,
	}
	if e.Peak.Required > e.Target.Usable {
		e.Target.Verdict, e.Target.ProbabilityFits = estimator.Exceeds, 0.003
	}
	e.Summary = fmt.Sprintf("needs %s", e.Peak.Required)
	e.Phases, e.Tensors = phases(e.Timeline), tensors(batch)
	e.Assumptions = []estimator.Assumption{
		{Path: "training.weights_dtype", Value: "fp32", Why: "transformers 5 loads in fp32 for training under bf16 autocast", Decides: true, Effect: -15 * units.GiB},
		{Path: "training.attention", Value: "sdpa", Why: "the default of transformers; the flash backend is chosen", Decides: true, Effect: 2 * units.GiB},
		{Path: "runtime.trainer", Value: "hf", Why: "no trainer was named"},
	}
	e.Warnings = []estimator.Warning{{Code: "allocator_retries", Text: "Completes only by releasing cached segments.", Bytes: units.GiB}}
	return e
}

// timeline walks forward and backward over the layers, then the optimizer.
func timeline(batch units.Bytes) []estimator.Moment {
	var out []estimator.Moment
	weights := 15 * units.GiB
	var optimizer, reserved units.Bytes
	at := func(phase, part, module string, grads, acts, logits, temps units.Bytes) {
		by := estimator.ByCategory{
			{Category: "parameters", Bytes: weights},
			{Category: "gradients", Bytes: grads},
			{Category: "optimizer", Bytes: optimizer},
			{Category: "activations", Bytes: acts},
			{Category: "logits", Bytes: logits},
			{Category: "temporaries", Bytes: temps},
			{Category: "rounding", Bytes: 1000},
		}
		var sum units.Bytes
		for _, s := range by {
			sum += s.Bytes
		}
		reserved = max(reserved, (sum + units.GiB/3).RoundUp(2*units.MiB))
		out = append(out, estimator.Moment{
			Event: 150 * len(out), Phase: phase, Part: part, Module: module, Allocated: sum, Reserved: reserved, ByCategory: by,
		})
	}
	for _, phase := range []string{"first_step", "steady_step"} {
		act, grad := batch*300*units.MiB, weights/layers
		for i := range units.Bytes(layers) {
			at(phase, "forward", fmt.Sprintf("model.layers.%d.mlp", i), 0, act*i, 0, act/4)
		}
		at(phase, "loss", "lm_head", 0, act*layers, batch*2*units.GiB, 0)
		for i := range units.Bytes(layers) {
			at(phase, "backward", fmt.Sprintf("model.layers.%d.mlp", layers-1-i), grad*(i+1), act*(layers-1-i), 0, act/2)
		}
		optimizer = 2 * weights
		for i := range units.Bytes(6) {
			at(phase, "optimizer", "", weights, 0, 0, (i%3)*units.GiB)
		}
	}
	return out
}

func peakMoment(all []estimator.Moment) estimator.Moment {
	top := all[0]
	for _, m := range all {
		if m.Allocated > top.Allocated {
			top = m
		}
	}
	return top
}

func peak(m estimator.Moment) estimator.Peak {
	process := m.Reserved + 512*units.MiB
	required := process - 200*units.MiB
	return estimator.Peak{
		Tensor: m.Allocated - 1000, Requested: m.Allocated - 1000, Allocated: m.Allocated, Reserved: m.Reserved, Process: process, Required: required,
		Activations: m.Allocated - m.ByCategory.Of("parameters"),
		Interval:    estimator.Interval{Low: required - units.GiB, High: required + units.GiB, Level: 0.9, Of: "required_bytes", Source: "prior"},
		At:          estimator.Where{Phase: m.Phase, Part: m.Part, Module: m.Module, Op: "silu", MicroBatch: 1},
	}
}

func breakdown(m estimator.Moment, p estimator.Peak) []estimator.Share {
	out := slices.Clone([]estimator.Share(m.ByCategory))
	return append(out,
		estimator.Share{Category: "fragmentation", Bytes: p.Reserved - p.Allocated},
		estimator.Share{Category: "context", Bytes: p.Process - p.Reserved})
}

func phases(all []estimator.Moment) []estimator.Phase {
	out := []estimator.Phase{{Name: "load", PeakAllocated: 15 * units.GiB, PeakReserved: 15 * units.GiB, PeakProcess: 16 * units.GiB, EndAllocated: 15 * units.GiB}}
	for _, m := range all {
		last := &out[len(out)-1]
		if last.Name != m.Phase {
			out = append(out, estimator.Phase{Name: m.Phase, StartAllocated: m.Allocated})
			last = &out[len(out)-1]
		}
		if n := len(last.Parts); n == 0 || last.Parts[n-1].Name != m.Part {
			last.Parts = append(last.Parts, estimator.Part{Name: m.Part})
		}
		part := &last.Parts[len(last.Parts)-1]
		part.PeakAllocated, part.EndAllocated = max(part.PeakAllocated, m.Allocated), m.Allocated
		last.PeakAllocated, last.PeakReserved = max(last.PeakAllocated, m.Allocated), max(last.PeakReserved, m.Reserved)
		last.PeakProcess, last.EndAllocated = last.PeakReserved+512*units.MiB, m.Allocated
	}
	return out
}

func tensors(batch units.Bytes) []estimator.Tensor {
	return []estimator.Tensor{
		{Module: "lm_head", Op: "linear", Shape: []int64{int64(batch), 2048, 128256}, DType: "bf16", Bytes: batch * 2048 * 128256 * 2, Category: "logits", Rule: "linear", Source: "the output of the head"},
		{Module: "model.embed_tokens", Op: "weight", Shape: []int64{128256, 4096}, DType: "fp32", Bytes: 128256 * 4096 * 4, Category: "parameters", Rule: "parameter", Source: "the module's weight"},
	}
}
