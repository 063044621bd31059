package step

import (
	"slices"
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// chunked is the kind of loss whose logits are made in chunks of tokens.
const chunked = "chunked"

// lightningLoop is a loop over Lightning Fabric, as LitGPT writes it
// (litgpt/finetune/lora.py:fit @v0.4.8; lightning/fabric/wrappers.py:
// _FabricModule.forward). The model's outputs are cast to fp32 behind its back,
// whatever it computed in; the names logits and loss outlive an iteration.
type lightningLoop struct{}

func (lightningLoop) begin(*Run) {}

func (lightningLoop) micro(r *Run, _, n int) {
	f := r.Loop
	r.moveBatch()
	var out model.Outputs
	run := func() { out = r.callModel(f, func() model.Outputs { return r.Net.Forward(f, r.Batch) }) }
	if d := r.Job.Training.Precision.Mixed(); d != "" {
		f.Autocast(DTypeOf(d), run)
	} else {
		run()
	}
	convertOutput(f, &out)
	r.Outputs.Release(f)
	r.Outputs = out
	loss := f.Let("loss", r.Net.Criterion(f, r.Batch, &r.Outputs))
	if n > 1 {
		loss = f.Let("tensor", f.MulScalar(loss)) // an argument of fabric.backward
	}
	r.End(ForwardPart)
	r.backward(loss)
	f.Del("tensor")
	r.End(BackwardPart)
}

// convertOutput is Precision.convert_output: a list of casts is made before the
// list it was made of dies.
func convertOutput(f *graph.Frame, out *model.Outputs) {
	given := *out
	out.Others = make([]*graph.Tensor, len(given.Others))
	for i, t := range given.Others {
		out.Others[i] = f.Own(f.To(t, graph.F32))
	}
	given.Release(f)
}

func (lightningLoop) finish(r *Run) {
	if enabled(r.Job.Training.GradClipping) {
		r.drop(r.clip())
	}
	if enabled(r.Job.Training.OptimizerStep) {
		r.stepOptimizer()
	}
	r.zeroGrad()
	r.End(OptimizerPart)
}

// beyondLitGPT lists what is not run of LitGPT's models and its loop, which
// only go together.
func beyondLitGPT(j *spec.Job, f *fault.Fields) {
	t := &j.Training
	for _, s := range []struct {
		path, got string
		allowed   []string
	}{
		{"model.implementation", j.Model.Implementation, []string{model.LitGPT}},
		{"runtime.trainer", j.Runtime.Trainer, []string{"lightning"}},
		{"training.method", t.Method, []string{"full", "lora"}},
		{"training.attention", t.Attention.Kernel, []string{"sdpa"}},
		{"training.loss", t.Loss.Kind, []string{"default", chunked}},
		{"training.loss.upcast", t.Loss.Upcast, []string{"none"}},
		{"parallelism.sharding", j.Parallelism.Sharding, []string{"none", "fsdp"}},
		{"training.objective", t.Objective, []string{"sft", "pretrain"}},
		{"training.padding", t.Padding, []string{"none"}},
		{"training.quantization", quantizationOf(t), append([]string{"none"}, fourBit...)},
	} {
		if s.got != "" && !slices.Contains(s.allowed, s.got) {
			f.Add(s.path, s.got, "one of "+strings.Join(s.allowed, ", ")+" (others are not modelled with LitGPT)", s.allowed[0])
		}
	}
}

// quantizationOf is how the base is stored, "none" for as it is.
func quantizationOf(t *spec.Training) string {
	if t.Quantization == nil {
		return "none"
	}
	return t.Quantization.Type
}
