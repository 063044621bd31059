package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// TRL's SFTTrainer is the Trainer with a loss of its own (trl 1.16,
// trainer/sft_trainer.py:compute_loss): the model gives log-probabilities, and
// entropy and accuracy are taken for the log.

// beyondTRL lists what is not run with that trainer.
func beyondTRL(j *spec.Job, f *fault.Fields) {
	if j.Runtime.Trainer != "trl" {
		return
	}
	known := map[string]bool{"llama": true, "mistral": true, "qwen2": true, "qwen3": true, "gpt2": true}
	if kind, _ := j.Model.Config["model_type"].(string); kind != "" && !known[kind] {
		f.Add("runtime.trainer", "trl", "hf for "+kind+": TRL is modelled for "+names(known), "hf")
	}
	switch o := j.Training.Objective; o {
	case "sft", "pretrain", "":
	case "dpo":
		beyondDPO(j, f)
	default:
		f.Add("training.objective", o, "one of sft, dpo (others are not modelled with TRL)", "sft")
	}
	if n := j.Parallelism.Ranks(); n > 1 {
		f.Add("runtime.trainer", "trl", "hf on several ranks (TRL is not modelled there)", "hf")
	}
	if j.Training.Loss.Kind == fusedLinear {
		f.Add("training.loss", fusedLinear, "default: TRL has a fused head of its own", "default")
	}
}

// beyondDPO lists references that contradict the method.
func beyondDPO(j *spec.Job, f *fault.Fields) {
	t := &j.Training
	switch {
	case t.ReferenceModel == "copy" && t.Adapter != nil:
		f.Add("training.reference_model", "copy", "adapter-off or precomputed: with an adapter the base is the reference", "adapter-off")
	case t.ReferenceModel == "adapter-off" && t.Adapter == nil:
		f.Add("training.reference_model", "adapter-off", "copy or precomputed: there is no adapter to switch off", "copy")
	case t.ReferenceModel == "none":
		f.Add("training.reference_model", "none", "one of copy, adapter-off, precomputed: DPO compares with a reference", "copy")
	}
}

// computeTRLLoss runs the model, averages over the step's labels, and sums what
// is logged; the sums live until it returns.
func (h *hfLoop) computeTRLLoss(r *Run) *graph.Tensor {
	if r.Job.Training.Objective == "dpo" {
		return h.computeDPOLoss(r)
	}
	f := r.Loop
	r.Batch.NumItems, r.Batch.Counted = h.numItems, true
	out := r.callModel(f, func() model.Outputs { return h.forward(r, f) })
	kept := f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		perToken := f.Let("per_token_loss", f.Neg(out.Others[model.ScoredLogProbs]))
		loss := f.Let("loss", f.DivTensor(f.Total(perToken), f.Clamp(h.numItems)))
		loss = f.Let("loss", f.MulScalar(loss)) // times the number of ranks
		f.NoGrad(func() { h.logTRL(f, r.Batch, out) })
		return []*graph.Tensor{loss}
	})
	out.Release(f)
	return f.Own(kept[0])
}

// logTRL sums over the ranks what one rank summed over its tokens, and takes the
// means where any token counts.
func (h *hfLoop) logTRL(f *graph.Frame, b model.Batch, out model.Outputs) {
	valid := f.Let("num_valid", f.SumAll(f.Sum(out.Others[model.ScoredMask])))
	entropy := f.Let("entropy_sum", f.SumAll(f.SumAll(out.Others[model.ScoredEntropy])))
	f.Let("num_correct", f.SumAll(f.Sum(out.Others[model.ScoredTop])))
	for range 2 {
		f.Drop(f.Compare(valid, nil))
		f.Drop(f.DivScalar(entropy))
	}
	tokens := f.Let("tokens", f.SumAll(b.Tensor(model.AttentionMask)))
	f.Let("num_tokens_in_batch", f.SumAll(tokens))
}
