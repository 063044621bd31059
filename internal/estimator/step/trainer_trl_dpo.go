package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
)

// TRL's DPOTrainer (trl 1.16, trainer/dpo_trainer.py:_compute_loss, loss type
// sigmoid): log-probabilities of chosen and rejected answers, of the model and
// of a frozen one, then what is logged. All names live until it returns.

// computeDPOLoss is compute_loss.
func (h *hfLoop) computeDPOLoss(r *Run) *graph.Tensor {
	f := r.Loop
	return f.Own(f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		p := preference{r: r, h: h, batch: r.Batch}
		loss := p.loss(f)
		p.log(f)
		p.out.Release(f)
		p.ref.Release(f)
		return []*graph.Tensor{loss}
	})[0])
}

// preference is one call of _compute_loss.
type preference struct {
	r                        *Run
	h                        *hfLoop
	batch                    model.Batch
	shifted                  *graph.Tensor // completion_mask[..., 1:]
	out, ref                 model.Outputs
	chosen, rejected         *graph.Tensor // log-probabilities of whole answers
	chosenRatio, rejectRatio *graph.Tensor
}

func (p *preference) loss(f *graph.Frame) *graph.Tensor {
	mask := p.batch.Tensor(completionMask)
	p.shifted = f.Let("shift_completion_mask", f.Slice(mask, 1, 1, mask.Shape.D[1]))
	labels := f.Let("labels", f.MaskedFill(p.batch.Tensor(model.InputIDs), f.Compare(mask, nil)))
	scored := p.batch
	scored.Inputs = append(scored.Inputs[:len(scored.Inputs):len(scored.Inputs)], model.Input{Name: model.Labels})
	scored.Tensors = append(scored.Tensors[:len(scored.Tensors):len(scored.Tensors)], labels)
	p.r.Batch = scored
	p.out = p.h.forward(p.r, f)
	p.chosen, p.rejected = answers(f, "", p.out)
	refChosen, refRejected := p.reference(f)
	p.r.Batch = p.batch
	p.chosenRatio = f.Let("chosen_logratios", f.Sub(p.chosen, refChosen))
	p.rejectRatio = f.Let("rejected_logratios", f.Sub(p.rejected, refRejected))
	delta := f.Let("delta_score", f.Sub(p.chosenRatio, p.rejectRatio))
	each := f.Let("per_sequence_loss", f.Neg(f.LogSigmoid(f.MulScalar(delta))))
	return f.Let("loss", f.AddScalar(f.MulScalar(f.Mean(each, false, 0))))
}

// reference are the frozen model's log-probabilities of the answers.
func (p *preference) reference(f *graph.Frame) (chosen, rejected *graph.Tensor) {
	if p.r.Job.Training.ReferenceModel == "precomputed" {
		return p.batch.Tensor(refChosen), p.batch.Tensor(refRejected)
	}
	p.ref = p.r.scoreReference(f, func() model.Outputs { return p.h.forward(p.r, f) })
	f.NoGrad(func() { chosen, rejected = answers(f, "ref_", p.ref) })
	return chosen, rejected
}

// answers sums log-probabilities over the tokens of each answer.
func answers(f *graph.Frame, prefix string, out model.Outputs) (chosen, rejected *graph.Tensor) {
	perToken := f.Let(prefix+"per_token_logps", lastTokens(f, out.Others[model.ScoredLogProbs]))
	halves := f.Split(f.Let(prefix+"logps", f.TotalDim(perToken, 1)), 2, 0)
	return f.Let(prefix+"chosen_logps", halves[0]), f.Let(prefix+"rejected_logps", halves[1])
}

// lastTokens is t[:, -seq_len:], a view of all of t.
func lastTokens(f *graph.Frame, t *graph.Tensor) *graph.Tensor {
	return f.SliceLast(t, 1, t.Shape.D[1])
}

// log computes what the trainer logs. Sums over the ranks are sums of one number.
func (p *preference) log(f *graph.Frame) {
	p.logTokens(f)
	masks := f.Split(p.shifted, 2, 0)
	chosenMask, rejectedMask := f.Let("chosen_mask", masks[0]), f.Let("rejected_mask", masks[1])
	means := f.Split(lastTokens(f, p.out.Others[model.ScoredMeanLogits]), 2, 0)
	f.Let("chosen_mean_logits", means[0])
	f.Let("rejected_mean_logits", means[1])
	totals := []*graph.Tensor{}
	for i, mask := range []*graph.Tensor{chosenMask, rejectedMask} {
		name := []string{"chosen", "rejected"}[i]
		valid := f.Compare(mask, nil) // .bool()
		logits := f.MaskIndex(means[i], valid)
		f.Drop(valid)
		totals = append(totals, f.Let("total_"+name+"_logits", f.SumAll(logits)))
		totals = append(totals, f.Let("total_"+name+"_tokens", f.SumAll(mask)))
	}
	for i, name := range []string{"total_chosen_logits", "total_chosen_tokens", "total_rejected_logits", "total_rejected_tokens"} {
		f.Drop(f.SumAll(totals[i]))
		f.Del(name) // a number from here on
	}
	top := f.Split(lastTokens(f, p.out.Others[model.ScoredTop]), 2, 0)
	f.Drop(top[1])
	right := f.Let("correct_predictions", f.And(f.Let("chosen_is_top1", top[0]), f.Compare(chosenMask, nil)))
	tokens := f.Let("total_tokens", f.SumAll(chosenMask))
	correct := f.Let("correct_tokens", f.Sum(right))
	sum := f.Let("total_sum", f.SumAll(tokens))
	f.Drop(f.Compare(sum, nil))
	f.Drop(f.Div(f.SumAll(correct), sum))
	p.logRewards(f)
}

// logTokens counts tokens and takes their mean entropy.
func (p *preference) logTokens(f *graph.Frame) {
	entropy := f.Let("per_token_entropy", f.Detach(lastTokens(f, p.out.Others[model.ScoredEntropy])))
	sum := f.Let("entropy_sum", f.SumAll(f.Mul(entropy, p.shifted)))
	total := f.Let("total_tokens", f.SumAll(p.shifted))
	sum = f.Let("entropy_sum", f.SumAll(sum))
	total = f.Let("total_tokens", f.SumAll(total))
	f.Drop(f.Compare(total, nil))
	f.Drop(f.DivScalar(sum))
	f.Drop(f.SumAll(f.SumAll(p.batch.Tensor(model.AttentionMask))))
}

// logRewards takes means of the rewards, their order and their margins.
func (p *preference) logRewards(f *graph.Frame) {
	mean := func(t *graph.Tensor) { f.Drop(f.Mean(t, false, 0)) }
	chosen := f.Let("chosen_rewards", f.MulScalar(f.Detach(p.chosenRatio)))
	rejected := f.Let("rejected_rewards", f.MulScalar(f.Detach(p.rejectRatio)))
	mean(chosen)
	mean(rejected)
	mean(f.Let("reward_accuracies", f.To(f.Compare(chosen, rejected), graph.F32)))
	mean(f.Let("margins", f.Sub(chosen, rejected)))
	mean(p.chosen)
	mean(p.rejected)
}
