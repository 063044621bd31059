package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
)

// hfLoop is transformers.Trainer on one process, with accelerate beneath it
// (transformers/trainer.py:_run_epoch and training_step @v5.24.0,
// _inner_training_loop @v4.49.0; accelerate/accelerator.py @v1.15.0).
type hfLoop struct {
	loss     func(h *hfLoop, r *Run) *graph.Tensor // compute_loss
	batches  []model.Batch                         // of the step in hand, all on the card from its start
	numItems *graph.Tensor                         // labels counted over the step's batches
	lossStep *graph.Tensor                         // tr_loss_step
	trLoss   *graph.Tensor
	gradNorm *graph.Tensor // kept for the log until the next step's
	divides  bool          // the model divides the loss by numItems, a tensor
}

// The Trainer keeps the number of items as a tensor since 4.50; before, it was
// a Python number.
var tensorItemsSince = spec.Version{4, 50}

var (
	countRule  = &graph.Rule{Name: "sum", Source: "transformers/trainer.py:_get_num_items_in_batch"}
	nanRule    = &graph.Rule{Name: "isnan", Source: "transformers/trainer.py:_run_epoch"}
	trLossRule = &graph.Rule{Name: "tr_loss", Source: "transformers/trainer.py:_run_epoch"}
)

func (h *hfLoop) begin(r *Run) {
	if r.reference != nil {
		r.M.ToDevice(r.reference.Root)
	}
	h.divides = r.M.Versions.Transformers.AtLeast(tensorItemsSince)
	h.trLoss = r.M.Make(trLossRule, graph.Temporaries, graph.F32, graph.D())
}

func (h *hfLoop) micro(r *Run, i, n int) {
	if i == 0 {
		h.collect(r, n)
	}
	r.Batch = h.batches[i]
	loss := h.loss(h, r)
	r.End(ForwardPart)
	if h.averages(r) {
		loss = r.Loop.Own(r.Loop.MulScalar(r.Loop.Give(loss)))
	}
	h.backward(r, loss)
	r.End(BackwardPart)
	if r.engine != nil && r.lastMicro { // the engine's wrapper steps at the end of backward
		r.engine.step(r)
	}
	h.track(r, loss)
}

// collect is get_batch_samples: every micro batch of the step goes to the card
// and its labels are counted, before the batches of the step before are let go.
func (h *hfLoop) collect(r *Run, n int) {
	fresh := make([]model.Batch, n)
	for i := range fresh {
		r.moveBatch()
		fresh[i] = r.Batch.Hold(r.Loop)
		for _, in := range r.Batch.Inputs {
			r.Loop.Del(in.Name)
		}
	}
	items := h.countItems(r, fresh)
	for i := range h.batches {
		h.batches[i].Release(r.Loop)
	}
	if h.numItems != nil {
		r.M.Forget(h.numItems)
	}
	h.batches, h.numItems = fresh, items
}

// countItems sums labels.ne(-100) over the batches. Before 4.50 it does so for
// every batch with labels, since then where the model takes the number.
func (h *hfLoop) countItems(r *Run, batches []model.Batch) *graph.Tensor {
	m := r.M
	items := r.Net.Items
	if batches[0].Tensor(model.Labels) == nil || h.divides && items.Uncounted {
		return nil
	}
	long := func() *graph.Tensor { return m.Make(countRule, graph.Temporaries, graph.I64, graph.D()) }
	var sums []*graph.Tensor
	var total *graph.Tensor
	for _, b := range batches {
		shape := b.Tensor(model.Labels).Shape
		if h.divides && !items.Aligned {
			shape = shape.With(-1, shape.At(-1)-1) // labels[..., 1:]
		}
		valid := m.Make(countRule, graph.Temporaries, graph.Bool, shape)
		sum := long()
		m.Scratch(countRule, graph.Temporaries, shape.Numel()*graph.I64.Size())
		m.Forget(valid)
		if !h.divides {
			sums = append(sums, sum)
			continue
		}
		next := long()
		if total != nil {
			m.Forget(total)
		}
		m.Forget(sum)
		total = next
	}
	if h.divides {
		items := m.Make(countRule, graph.Temporaries, graph.F32, graph.D())
		m.Forget(total)
		return items
	}
	for range sums {
		next := long()
		if total != nil {
			m.Forget(total)
		}
		total = next
	}
	for _, s := range sums {
		m.Forget(s)
	}
	m.Forget(total)
	return nil
}

// computeLoss runs the prepared model. The outputs die when it returns; the loss is the caller's.
func (h *hfLoop) computeLoss(r *Run) *graph.Tensor {
	f := r.Loop
	r.Batch.NumItems, r.Batch.Counted = h.numItems, h.counted(r)
	out := r.callModel(f, func() model.Outputs { return h.forward(r, f) })
	if h.numItems != nil {
		out.Loss = f.Own(f.MulScalarInPlace(f.Give(out.Loss))) // loss *= number of processes
	}
	loss := f.Keep(out.Loss)
	out.Release(f)
	return loss
}

// forward is the model's as accelerate prepared it: under autocast, its outputs
// in fp32 (accelerate/accelerator.py:prepare_model).
func (h *hfLoop) forward(r *Run, f *graph.Frame) model.Outputs {
	d := r.Job.Training.Precision.Mixed()
	if d == "" || r.engine != nil { // DeepSpeed has cast the model itself
		return r.Net.Forward(f, r.Batch)
	}
	var out model.Outputs
	f.Autocast(DTypeOf(d), func() { out = r.Net.Forward(f, r.Batch) })
	convertOutputs(f, &out)
	return out
}

// convertOutputs is accelerate's convert_outputs_to_fp32: field by field, and
// then the old output goes.
func convertOutputs(f *graph.Frame, out *model.Outputs) {
	converted := model.Outputs{Loss: f.Own(f.To(out.Loss, graph.F32)), Cache: out.Cache}
	if out.Logits != nil {
		converted.Logits = f.Own(f.To(out.Logits, graph.F32))
	}
	for _, t := range out.Others {
		if t == nil {
			converted.Others = append(converted.Others, nil)
			continue
		}
		d := t.DType
		if d.Floating() {
			d = graph.F32
		}
		converted.Others = append(converted.Others, f.Own(f.To(t, d)))
	}
	out.Cache = nil
	out.Release(f)
	*out = converted
}

// counted reports whether the model is passed the number of labels.
func (h *hfLoop) counted(r *Run) bool {
	return !r.Net.Items.Uncounted && r.Batch.Tensor(model.Labels) != nil
}

// averages reports whether the Trainer divides the loss by the number of micro
// batches: where the loss was not divided by the number of labels.
func (h *hfLoop) averages(r *Run) bool {
	if h.divides {
		return !h.counted(r)
	}
	return r.Net.Items.Uncounted
}

// backward is accelerator.backward: the loss divided by accelerate's own
// accumulation count, scaled, and run back.
func (h *hfLoop) backward(r *Run, loss *graph.Tensor) {
	if r.engine != nil {
		r.engine.backward(r, loss)
		r.M.DropGraph(loss)
		return
	}
	divided := r.Loop.Let("loss", r.Loop.MulScalar(loss))
	r.backward(divided)
	r.Loop.Del("loss")
	r.M.DropGraph(loss) // training_step returns loss.detach()
}

// track adds the detached loss to the running sum, after asking whether it is
// a number.
func (h *hfLoop) track(r *Run, loss *graph.Tensor) {
	m := r.M
	if h.lossStep != nil {
		m.Forget(h.lossStep)
	}
	h.lossStep = loss
	m.Scratch(nanRule, graph.Temporaries, 1)
	abs := m.Make(nanRule, graph.Temporaries, loss.DType, graph.D())
	inf := m.Make(nanRule, graph.Temporaries, graph.Bool, graph.D())
	m.Forget(abs)
	m.Forget(inf)
	if !h.divides { // tr_loss = tr_loss + tr_loss_step
		sum := m.Make(trLossRule, graph.Temporaries, graph.F32, graph.D())
		m.Forget(h.trLoss)
		h.trLoss = sum
	}
}

// normAlwaysSince is the transformers version whose Trainer computes the norm
// of the gradients for its log even where it clips nothing (not in 4.49).
var normAlwaysSince = spec.Version{5}

// clip clips the gradients and keeps their norm. Since transformers 5 the name
// is set to None before; earlier it held the old norm until the new was there.
func (h *hfLoop) clip(r *Run) {
	old := h.gradNorm
	switch {
	case r.M.Versions.Transformers.AtLeast(normAlwaysSince):
		r.drop(old)
		h.gradNorm = r.clip()
	case enabled(r.Job.Training.GradClipping):
		h.gradNorm = r.clip()
		r.drop(old)
	}
}

func (h *hfLoop) finish(r *Run) {
	if r.engine != nil {
		r.End(OptimizerPart)
		return
	}
	h.clip(r)
	r.stepOptimizer()
	r.zeroGrad()
	r.End(OptimizerPart)
}
