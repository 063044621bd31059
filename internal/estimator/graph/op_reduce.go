package graph

import "memplan/internal/estimator/spec"

var (
	meanRule = &Rule{Name: "mean", Source: "derivatives.yaml:mean.dim", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		return Grads{m.alloc(n.attrs.Shape, dOut[0].DType)} // grad.expand(sizes) / n
	}}
	softmaxRule    = &Rule{Name: "_softmax", Source: "aten/src/ATen/native/cuda/SoftMax.cu:softmax_backward_cuda_out", Backward: softmaxBackward}
	logSoftmaxRule = &Rule{Name: "_log_softmax", Source: "derivatives.yaml:_log_softmax", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		return Grads{m.alloc(dOut[0].Shape, n.attrs.DType)}
	}}
	nllRule = &Rule{Name: "nll_loss_forward", Source: "aten/src/ATen/native/cuda/NLLLoss2d.cu, Loss.cu", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		return Grads{m.allocLike(n.saved[0], n.saved[0].DType)}
	}}
)

// softmaxBackward multiplies gradient and result before its kernel.
func softmaxBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	g := m.alloc(dOut[0].Shape, n.attrs.DType)
	m.release(m.allocLike(dOut[0], dOut[0].DType))
	return Grads{g}
}

// MeanLast is x.mean(-1, keepdim=True).
func (f *Frame) MeanLast(x *Tensor) *Tensor { return f.Mean(x, true, -1) }

// Mean is x.mean over some dimensions, kept with size 1 or dropped. Its
// gradient is spread over a fresh tensor.
func (f *Frame) Mean(x *Tensor, keep bool, dims ...int) *Tensor {
	n := f.record(meanRule, x)
	shape, kept := x.Shape.reduced(keep, dims)
	if n != nil {
		n.attrs.Shape = x.Shape
	}
	out := f.alloc(shape, x.DType)
	f.reduceScratch(reductionOf(x, kept))
	f.output(n, out, 0)
	f.consume(x)
	return f.produce(out)
}

// Softmax is F.softmax over the last dimension in type d (pass x's own type
// for none): fp16 input is converted inside the kernel, bf16 before it
// (aten/src/ATen/native/SoftMax.cpp@v2.6.0). It keeps its result.
func (f *Frame) Softmax(x *Tensor, d DType) *Tensor {
	if f.autocast.on {
		d = F32
	}
	return f.softmax(softmaxRule, x, d)
}

// SoftmaxIn is Softmax with a type that was named, which autocast leaves alone.
func (f *Frame) SoftmaxIn(x *Tensor, d DType) *Tensor { return f.softmax(softmaxRule, x, d) }

func (f *Frame) softmax(r *Rule, x *Tensor, d DType) *Tensor {
	from := d
	if x.DType == F16 && d == F32 && r == softmaxRule { // in the kernel, under autocast too: it only sets the type
		from = F16
	} else if x.DType != d {
		x = f.To(x, d)
	}
	n := f.record(r, x)
	if n != nil {
		n.attrs.DType = from
	}
	if !x.Contiguous() {
		x = f.Contiguous(x)
	}
	if f.keepsOperands() {
		f.save(n, x)
	}
	out := f.alloc(x.Shape, d)
	f.output(n, out, 0)
	f.save(n, out)
	f.consume(x)
	return f.produce(out)
}

// resultsAloneSince is when softmax, log-softmax and ReLU stopped keeping their
// input beside, or in place of, their result (tools/autograd/derivatives.yaml
// @v1.10.0 and @v1.11.0).
var resultsAloneSince = spec.Version{1, 11}

// keepsOperands reports whether those functions keep their input.
func (m *Machine) keepsOperands() bool {
	return m.Versions.Torch != spec.Version{} && m.Versions.Torch.Before(resultsAloneSince)
}

// LogSoftmax is F.log_softmax over the classes, computed in type d.
func (f *Frame) LogSoftmax(x *Tensor, d DType) *Tensor { return f.softmax(logSoftmaxRule, x, d) }

// CrossEntropy is F.cross_entropy with class indices and the mean over them
// (or their sum): log-softmax, then the negative log likelihood, whose node
// keeps the log-probabilities, the targets and the total weight. The softmax is
// taken in the logits' own type, under autocast too; the likelihood there in
// fp32.
func (f *Frame) CrossEntropy(logits, target *Tensor) *Tensor {
	logp := f.LogSoftmax(logits, logits.DType)
	raised := f.raise(logp)
	f.consume(logp)
	logp = f.produce(raised)
	n := f.record(nllRule, logp)
	f.save(n, logp, target)
	out := f.alloc(D(), logp.DType)
	weight := f.alloc(D(), logp.DType)
	f.output(n, out, 0)
	f.save(n, weight)
	f.release(weight)
	f.consume(logp, target)
	return f.produce(out)
}

var maxLastRule = &Rule{Name: "max", Source: "FunctionsManual.cpp:value_selecting_reduction_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	return Grads{m.alloc(n.attrs.Shape, dOut[0].DType)}
}}

// MaxLast is x.max(-1, keepdim=True): it keeps where each maximum is.
func (f *Frame) MaxLast(x *Tensor) *Tensor {
	n := f.record(maxLastRule, x)
	if n != nil {
		n.attrs.Shape = x.Shape
	}
	shape := x.Shape.With(-1, 1)
	out, at := f.alloc(shape, x.DType), f.alloc(shape, I64)
	f.output(n, out, 0)
	f.save(n, at)
	f.release(at)
	f.consume(x)
	return f.produce(out)
}
