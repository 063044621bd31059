package model

import "memplan/internal/estimator/graph"

// scored is the forward that TRL puts on a causal language model
// (trl 1.16, trainer/utils.py:add_fused_lm_head): the base, and for every next
// token its log-probability, without logits. Everything is zero where a label
// is ignored.
func (lm *causalLM) scored(f *graph.Frame, b Batch) Outputs {
	tokens, mask := b.Tensor(InputIDs), b.Tensor(AttentionMask)
	out := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		base := f.Let("backbone_outputs", f.Call1(lm.base, tokens, mask))
		last := base.Shape.D[1]
		hidden := f.Let("hidden_states", f.Slice(base, 1, 0, last-1))
		labels := f.Let("labels", f.Slice(in[0], 1, 1, last))
		valid := f.Let("mask", f.Compare(labels, nil))
		rows, targets := f.MaskIndex(hidden, valid), f.MaskIndex(labels, valid)
		perToken := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			logProbs, entropy, mean, top := f.ChunkedLogProb(in[0], lm.head.Params[0].T(), in[1], *lm.build.Patches.Scored)
			return []*graph.Tensor{logProbs, entropy, mean, top}
		}, rows, targets)
		fields := f.Func(scatter, append(perToken, valid)...)
		logProbs := f.Let("log_probs", fields[0])
		var loss, count *graph.Tensor
		f.NoGrad(func() { // nobody runs it back: of its graph only the count matters, which lives with the loss
			total := f.Neg(f.Total(logProbs))
			count = f.Let("count", f.Clamp(f.Sum(valid)))
			loss = f.Quotient(total, count)
		})
		if !f.GradEnabled() { // the graph does not keep it
			count = nil
		}
		return []*graph.Tensor{loss, logProbs, fields[1], fields[2], fields[3], valid, count}
	}, b.Tensor(Labels))
	return Outputs{Loss: f.Own(out[0]), Others: owned(f, out[1:])}
}

// The fields of the output, by their place among Outputs.Others; nil where they
// were not asked for.
const (
	ScoredLogProbs = iota
	ScoredEntropy
	ScoredMeanLogits
	ScoredTop
	ScoredMask
)

// scatter brings what was computed of valid tokens back to their places.
func scatter(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	valid := in[4]
	fields := []*graph.Tensor{f.Let("log_probs", f.ScatterZeros(valid, in[0])), nil, nil, nil}
	f.NoGrad(func() { // nobody runs them back
		for i, name := range []string{"entropy", "mean_logits", "is_top1"} {
			if in[i+1] != nil {
				fields[i+1] = f.Let(name, f.ScatterZeros(valid, in[i+1]))
			}
		}
	})
	return fields
}

func owned(f *graph.Frame, ts []*graph.Tensor) []*graph.Tensor {
	for i, t := range ts {
		if t != nil {
			ts[i] = f.Own(t)
		}
	}
	return ts
}
