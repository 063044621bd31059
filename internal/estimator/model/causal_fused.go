package model

import "memplan/internal/estimator/graph"

// lossFunc computes a loss from rows of logits and their targets.
type lossFunc = func(f *graph.Frame, logits, target *graph.Tensor) *graph.Tensor

// linearCausalLMLoss is LigerForCausalLMLoss: hidden states go to the loss with
// the head's weight (liger_kernel 0.8.5, transformers/model/loss_utils.py).
func linearCausalLMLoss(f *graph.Frame, b Batch, hidden *graph.Tensor, head *graph.Module, fused func(f *graph.Frame, hidden, weight, target *graph.Tensor) *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		var loss *graph.Tensor
		f.As(graph.Logits, func() {
			labels := f.Let("labels", f.PadLast(in[1], 1))
			shifted := f.Let("shift_labels", f.Contiguous(f.Slice(labels, -1, 1, labels.Shape.At(-1))))
			hidden := f.Let("hidden_states", f.View(in[0], -1, in[0].Shape.At(-1)))
			shifted = f.Let("shift_labels", f.View(shifted, -1))
			loss = f.Let("loss", fused(f, hidden, head.Params[0].T(), shifted))
		})
		return one(perItem(f, b, loss))
	}, hidden, b.Tensor(Labels))[0]
}

// perItem divides the sum in the frame's name loss by the number of labels
// where a trainer passes it.
func perItem(f *graph.Frame, b Batch, loss *graph.Tensor) *graph.Tensor {
	switch {
	case b.NumItems != nil:
		return f.Let("loss", f.DivTensor(loss, b.NumItems))
	case b.Counted:
		return f.Let("loss", f.MulScalar(loss))
	}
	return loss
}
