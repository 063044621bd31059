package step

import "memplan/internal/estimator/graph"

// megatronLoop is Megatron-LM's training loop: gradients are zeroed in their
// buffer, a schedule runs the micro batches forward and backward
// (megatron/core/pipeline_parallel/schedules.py @core_v0.16.1), the optimizer
// steps.
type megatronLoop struct {
	losses   []*graph.Tensor // of the step before, which a name of the script holds
	received *object         // what the model holds of the stage before
}

var (
	scheduleRule = &graph.Rule{Name: "schedule", Source: "megatron/core/pipeline_parallel/schedules.py@core_v0.16.1"}
	communicate  = &graph.Rule{Name: "p2p_communication", Source: "megatron/core/pipeline_parallel/p2p_communication.py@core_v0.16.1"}
	finalizeRule = &graph.Rule{Name: "finalize_model_grads", Source: "megatron/core/distributed/finalize_model_grads.py@core_v0.16.1"}
)

func (l *megatronLoop) begin(*Run) {}

// micro is a step of one micro batch: the schedule runs them all.
func (l *megatronLoop) micro(r *Run, _, _ int) { l.run(r, 1) }

// object is a Python tensor that several names and lists hold: its storage, and
// its gradient, die with the last of them.
type object struct {
	t    *graph.Tensor
	leaf *graph.Leaf // of what another stage sent; nil for a result
	// graph is the leaf that the graph of a result ends in, which lives as long.
	graph *object
	held  int
}

func (o *object) hold() *object {
	if o != nil {
		o.held++
	}
	return o
}

func (o *object) drop(m *graph.Machine) {
	if o == nil {
		return
	}
	if o.held--; o.held > 0 {
		return
	}
	m.Forget(o.t)
	o.graph.drop(m)
	if o.leaf != nil && o.leaf.Grad != nil {
		m.Forget(o.leaf.Grad)
		o.leaf.Grad = nil
	}
}

// rebind lets a name hold another object.
func rebind(m *graph.Machine, name **object, o *object) {
	old := *name
	*name = o
	old.drop(m)
}

// schedule is one call of the schedule: the names of its function, and the
// micro batches that are still to be run back.
type schedule struct {
	*megatronLoop
	r               *Run
	f               *graph.Frame
	n               int
	input, output   *object
	inputs, outputs []*object
	grad            *graph.Tensor   // output_tensor_grad
	store           []*graph.Tensor // forward_data_store
}

// run is forward_backward_no_pipelining, or with more than one stage
// forward_backward_pipelining_without_interleaving (1F1B).
func (l *megatronLoop) run(r *Run, n int) {
	if r.gathered != nil {
		r.gathered()
		r.gathered = nil
	}
	m := r.M
	m.Run(func(f *graph.Frame) {
		s := &schedule{megatronLoop: l, r: r, f: f, n: n}
		f.Let("total_num_tokens", unnamed(f, scheduleRule, graph.I32, graph.D()))
		warmup := min(r.stages()-1-r.stage, n)
		for range warmup {
			rebind(m, &s.input, s.receive())
			s.forward()
			s.push()
		}
		if n > warmup {
			rebind(m, &s.input, s.receive())
		}
		for i := range n - warmup {
			s.forward()
			s.receiveGrad()
			s.push()
			s.pop()
			s.backward()
			var next *object
			if i < n-warmup-1 {
				next = s.receive()
			}
			rebind(m, &s.input, next)
		}
		for range warmup {
			s.pop()
			s.receiveGrad()
			s.backward()
		}
		r.finalizeGrads()
		rebind(m, &s.input, nil)
		rebind(m, &s.output, nil)
		l.losses, s.store = s.store, l.losses
		defer forgetList(m, s.store)
	})
}

// receive is recv_forward: what the stage before sent, nil on the first.
func (s *schedule) receive() *object {
	if s.r.stage == 0 {
		return nil
	}
	t := s.r.M.Make(communicate, graph.Activations, DTypeOf(s.r.Job.Training.WeightsDType), s.r.sent())
	return (&object{t: t, leaf: s.r.M.MakeLeaf(t)}).hold()
}

// receiveGrad is recv_backward: the gradient of what was sent on.
func (s *schedule) receiveGrad() {
	if s.r.stage < s.r.stages()-1 {
		s.grad = s.f.Let("output_tensor_grad", unnamed(s.f, communicate, DTypeOf(s.r.Job.Training.WeightsDType), s.r.sent()))
	}
}

// push puts the micro batch behind those that wait to be run back; of its
// result only the place in the graph is kept.
func (s *schedule) push() {
	s.inputs, s.outputs = append(s.inputs, s.input.hold()), append(s.outputs, s.output.hold())
	if s.r.stages() > 1 {
		s.r.M.PseudoFree(scheduleRule, s.output.t)
	}
}

// pop takes the oldest micro batch.
func (s *schedule) pop() {
	rebind(s.r.M, &s.input, s.inputs[0])
	rebind(s.r.M, &s.output, s.outputs[0])
	s.inputs, s.outputs = s.inputs[1:], s.outputs[1:]
}

// forward is forward_step.
func (s *schedule) forward() {
	r, m := s.r, s.r.M
	if s.input != nil {
		s.r.Net.Stage.Receive(s.input.t)
		rebind(m, &s.received, s.input.hold())
	}
	var store *graph.Tensor
	out := s.f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		made := f.Func(s.forwardFunc)
		output, mask := f.Let("output_tensor", made[0]), f.Let("loss_func", made[1])
		if r.stage < r.stages()-1 {
			return []*graph.Tensor{output}
		}
		loss := f.Func(sumLoss, output, mask)
		store = f.Own(loss[2])
		count := f.Let("num_tokens", loss[1])
		output = f.Let("outputs", loss[0])
		output = f.Let("outputs", f.DivideInPlace(output, unnamed(f, scheduleRule, graph.I32, graph.D())))
		output = f.Let("outputs", f.MulScalarInPlace(output))
		return []*graph.Tensor{output, count}
	})
	rebind(m, &s.output, (&object{t: s.f.Own(out[0]), graph: s.input.hold()}).hold())
	if len(out) > 1 {
		s.f.Let("num_tokens", out[1])
		s.store = append(s.store, store)
	}
	r.End(ForwardPart)
}

// forwardFunc is the script's forward_step: a batch, made on the card, and the
// model.
func (s *schedule) forwardFunc(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
	t := &s.r.Job.Training
	b, n := int64(t.MicroBatchSize), int64(t.SequenceLength)
	tokens, labels := f.Let("tokens", f.Input(graph.I64, b, n)), f.Let("labels", f.Input(graph.I64, b, n))
	mask := f.Let("loss_mask", f.Input(graph.F32, b, n))
	positions := f.Let("position_ids", f.Input(graph.I64, b, n))
	attention := f.Let("attention_mask", f.Input(graph.Bool, b, 1, n, n))
	return []*graph.Tensor{s.r.Net.Stage.Run(f, tokens, positions, attention, labels), mask}
}

// sumLoss is the script's loss: the sum over tokens, their number, and both for
// the log.
func sumLoss(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	losses, mask := f.Let("losses", f.View(in[0], -1)), f.Let("mask", f.View(in[1], -1))
	loss := f.Let("loss", f.Total(f.Mul(losses, mask)))
	total := f.Clone(f.SumAll(mask))
	count := f.Let("count", unnamed(f, scheduleRule, graph.I32, graph.D()))
	f.Drop(total)
	detached := unnamed(f, scheduleRule, graph.F32, graph.D())
	both := unnamed(f, scheduleRule, graph.F32, graph.D(2))
	f.Drop(detached)
	return []*graph.Tensor{loss, count, both}
}

// backward is backward_step of the micro batch in hand.
func (s *schedule) backward() {
	r, m := s.r, s.r.M
	if r.stage == r.stages()-1 {
		s.f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
			scaled := f.Let("output_tensor", f.Mul(r.megatron.scale, s.output.t))
			if r.stages() > 1 { // it takes the loss's place in the list
				rebind(m, &s.output, (&object{t: m.Keep(scaled), graph: s.input.hold()}).hold())
			}
			m.Backward(scaled, nil)
			return nil
		})
	} else {
		m.Backward(s.output.t, s.grad)
	}
	if s.input != nil {
		s.f.Let("input_tensor_grad", s.f.Give(m.Keep(s.input.leaf.Grad)))
	}
	r.End(BackwardPart)
}

// finish is the optimizer's step.
func (l *megatronLoop) finish(r *Run) {
	if enabled(r.Job.Training.OptimizerStep) {
		r.Optimizer.Step(r)
	}
	r.End(OptimizerPart)
}

// stages is the number of the pipeline's stages.
func (r *Run) stages() int { return max(1, r.Job.Parallelism.Pipeline) }

// sent is the shape of what one stage sends to the next.
func (r *Run) sent() graph.Dims {
	t, p := &r.Job.Training, &r.Job.Parallelism
	tokens := int64(t.SequenceLength)
	if p.SequenceParallel {
		tokens /= int64(max(p.Tensor, 1))
	}
	return graph.D(tokens, int64(t.MicroBatchSize), r.Net.Stage.Hidden)
}

// finalizeGrads is finalize_model_grads: where ranks share the tokens, the
// gradients of norms, and of what else is whole on each, are joined and summed
// over them.
func (r *Run) finalizeGrads() {
	p := &r.Job.Parallelism
	if !p.SequenceParallel || p.Tensor < 2 {
		return
	}
	n := int64(0)
	r.Net.Root.Walk(func(x *graph.Module) {
		switch x.Class {
		case "RMSNorm", "LayerNorm":
			for _, w := range x.Params {
				n += w.Numel()
			}
		case "RowParallelLinear":
			for _, w := range x.Params[1:] {
				n += w.Numel()
			}
		}
	})
	r.M.Forget(r.M.Make(finalizeRule, graph.Buckets, r.megatron.width, graph.D(n)))
}
