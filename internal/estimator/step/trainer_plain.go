package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
)

// plainLoop is a training loop written by hand: batch to the card, forward
// under autocast if mixed, backward, clip, step, zero.
type plainLoop struct {
	holds bool // the names outputs and loss live on into the next iteration
}

func (p *plainLoop) begin(r *Run) { p.holds = r.Job.Runtime.HoldsOutputs != spec.Off }

func (p *plainLoop) micro(r *Run, i, n int) {
	t := &r.Job.Training
	r.moveBatch()
	if t.ZeroGradAt == "before_forward" && i == 0 {
		r.zeroGrad()
	}
	loss := r.forward(n)
	if !p.holds {
		r.Outputs.Release(r.Loop)
	}
	r.End(ForwardPart)
	if t.ZeroGradAt == "between_forward_and_backward" && i == 0 {
		r.zeroGrad()
	}
	r.backward(loss)
	r.End(BackwardPart)
	if !p.holds {
		r.Loop.Del("loss")
	}
}

// forward runs the model and its loss, and names the results as a loop does.
func (r *Run) forward(n int) *graph.Tensor {
	f := r.Loop
	var out model.Outputs
	r.M.OnHost = offloadsActivations(r.Job)
	run := func() { out = r.callModel(f, func() model.Outputs { return r.Net.Forward(f, r.Batch) }) }
	if d := r.Job.Training.Precision.Mixed(); d != "" && r.shards == nil && r.engine == nil { // which have types of their own instead
		f.Autocast(DTypeOf(d), run)
	} else {
		run()
	}
	r.M.OnHost = false
	loss := f.Let("loss", f.Give(f.Keep(out.Loss))) // outputs.loss holds it too
	if r.Net.LossApart {
		f.Forget(out.Loss)
		out.Loss = nil
	}
	r.Outputs.Release(f)
	r.Outputs = out
	if n > 1 {
		loss = f.Let("loss", f.MulScalar(loss))
	}
	return loss
}

// callModel runs the wrapped model, whose own forward is given.
func (r *Run) callModel(f *graph.Frame, forward func() model.Outputs) model.Outputs {
	if r.ddp != nil {
		r.ddp.beforeForward(r)
	}
	switch {
	case r.engine != nil:
		return r.engine.zero.call(r, f, forward)
	case r.shards != nil:
		return r.shards.call(r, f, forward)
	}
	return forward()
}

// backward is loss.backward(), through the gradient scaler if there is one.
func (r *Run) backward(loss *graph.Tensor) {
	if r.scaling() {
		scaled := r.Loop.Let("scaled", r.Scaler.Scale(r, r.Loop, loss))
		r.M.Backward(scaled, nil)
		r.Loop.Del("scaled")
		return
	}
	r.M.Backward(loss, nil)
}

// scaling reports whether a GradScaler is on.
func (r *Run) scaling() bool {
	if r.engine != nil { // which scales by a number of its own
		return false
	}
	switch r.Job.Training.GradScaler {
	case spec.On:
		return true
	case spec.Off:
		return false
	}
	return r.Job.Training.Precision == spec.PrecisionFP16Mixed
}

func (p *plainLoop) finish(r *Run) {
	t := &r.Job.Training
	if enabled(t.OptimizerStep) {
		if enabled(t.GradClipping) {
			r.drop(r.clip())
		}
		r.stepOptimizer()
	}
	if t.ZeroGradAt == "after_step" || t.ZeroGradAt == "" {
		r.zeroGrad()
	}
	r.End(OptimizerPart)
}

// moveBatch copies a batch to the card; the one before dies when its names are
// bound again.
func (r *Run) moveBatch() {
	b := model.Batch{Inputs: r.inputs(), Padded: r.padded()}
	for _, in := range b.Inputs {
		t := r.Loop.Input(in.DType, in.Shape.Slice()...)
		if r.Job.Training.MemoryFormat == channelsLast {
			t.ChannelsLast()
		}
		b.Tensors = append(b.Tensors, t)
	}
	for i, in := range b.Inputs {
		r.Loop.Let(in.Name, b.Tensors[i])
	}
	r.Batch = b
}

// padded reports whether masks hide tokens: where the job says so, and where
// TRL's collator pads samples to the longest of a batch.
func (r *Run) padded() bool {
	p := r.Job.Training.Padding
	return p == "mask" || r.Job.Runtime.Trainer == "trl" && p != "ones"
}

// inputs are the tensors of a micro batch, as the network takes them.
func (r *Run) inputs() []model.Input { return r.inputsOf(r.Job.Training.MicroBatchSize) }

// inputsOf are the tensors of a batch of so many samples.
func (r *Run) inputsOf(batch int) []model.Input {
	t := &r.Job.Training
	s := model.Sizes{
		Batch: int64(batch), Tokens: int64(t.SequenceLength), DecoderTokens: int64(t.DecoderLength),
		Masked:     t.Padding != "none" && t.Padding != "" || r.Job.Runtime.Trainer == "trl", // whose collator makes a mask
		Continuous: DTypeOf(t.WeightsDType),
	}
	image := imageOf(t)
	s.Height, s.Width = image[0], image[1]
	s.Channels, s.Frames = int64(t.Channels), int64(t.NumFrames)
	s.TextTokens = int64(t.TextTokens)
	s.ImageIsLatent, s.LatentTokens = t.ImageIsLatent, int64(t.LatentTokens)
	for _, n := range t.LatentShape {
		s.Latent = append(s.Latent, int64(n))
	}
	if t.Precision.Mixed() != "" {
		s.Continuous = graph.F32 // autocast takes it from there
	}
	if t.Objective == "dpo" {
		return preferenceInputs(s, t.ReferenceModel)
	}
	if r.Net.Inputs == nil {
		return model.TokenInputs(s)
	}
	return r.Net.Inputs(s)
}

// zeroGrad drops every gradient, or fills it with zeros in place.
func (r *Run) zeroGrad() {
	if !enabled(r.Job.Training.ZeroGradToNone) || r.Job.Training.GradsResident {
		return
	}
	for _, p := range r.Params {
		if p.Grad != nil {
			r.M.Forget(p.Grad)
			p.Grad = nil
		}
	}
}
