package step

// mmengineLoop is the loop of MMEngine (mmengine/model/wrappers/distributed.py:
// train_step, optim/optimizer/optimizer_wrapper.py:update_params@v0.10.7). The
// network returns losses and no logits; the batch is a local of train_step until
// the optimizer has stepped, which then clears the gradients. DDP leaves every
// rank its own buffers.
type mmengineLoop struct{}

func (mmengineLoop) begin(r *Run) {
	if r.ddp != nil {
		r.ddp.own = true
	}
}

func (mmengineLoop) micro(r *Run, i, n int) {
	r.moveBatch()
	loss := r.forward(n)
	r.End(ForwardPart)
	r.backward(loss)
	r.End(BackwardPart)
}

func (mmengineLoop) finish(r *Run) {
	if enabled(r.Job.Training.GradClipping) {
		r.drop(r.clip())
	}
	if enabled(r.Job.Training.OptimizerStep) {
		r.stepOptimizer()
	}
	r.zeroGrad()
	for _, in := range r.Batch.Inputs {
		r.Loop.Del(in.Name)
	}
	r.Loop.Del("loss")
	r.End(OptimizerPart)
}
