package graph

// Functions of tensor parallelism as Megatron-core has them
// (megatron/core/tensor_parallel/ @core_v0.16.1). A collective moves bytes
// between ranks and makes what its result needs on this one.

// SharedBuffer is one tensor that many calls write into: as large as the
// largest of them asked for (megatron/core/utils.py:GlobalMemoryBuffer).
type SharedBuffer struct{ t *Tensor }

var sharedBufferRule = &Rule{Name: "GlobalMemoryBuffer", Source: "megatron/core/utils.py:get_tensor@core_v0.16.1"}

// Take is a tensor of the given shape in the buffer, which the buffer keeps.
func (b *SharedBuffer) Take(m *Machine, d DType, shape Dims) *Tensor {
	if b.t == nil || b.t.Numel() < shape.Numel() {
		larger := m.Make(sharedBufferRule, Buckets, d, D(shape.Numel()))
		if b.t != nil {
			m.release(b.t)
		}
		b.t = larger
	}
	return b.t
}

// ParallelLinear is how a linear layer works on a part of its weight.
type ParallelLinear struct {
	// Gathers is over how many ranks the first dimension of the input is split:
	// it is gathered before the product, in forward and again in backward. 1 is
	// none.
	Gathers int64
	// Fused says that the product of the weight's gradient adds to a gradient
	// kept elsewhere; what autograd is given is memory without values.
	Fused bool
	// StandIn is memory for such a gradient that is kept from call to call, nil
	// where it is made for each.
	StandIn func(w *Tensor) *Tensor
	Buffer  *SharedBuffer
}

var parallelLinearRule = &Rule{
	Name: "LinearWithGradAccumulationAndAsyncCommunication", Product: true,
	Source: "megatron/core/tensor_parallel/layers.py@core_v0.16.1",
}

// ParallelLinear is x times the transposed part of a weight, and a part of the
// bias or nil. It keeps x as it came, and the weight.
func (f *Frame) ParallelLinear(l ParallelLinear, x, weight, bias *Tensor) *Tensor {
	n := f.record(parallelLinearRule, x, weight, bias)
	f.save(n, x, weight)
	rows := x.Shape.With(0, x.Shape.D[0]*l.Gathers)
	if l.Gathers > 1 {
		l.Buffer.Take(f.Machine, x.DType, rows)
	}
	f.rule = parallelLinearRule
	out := f.alloc(rows.With(-1, weight.Shape.D[0]), x.DType)
	f.gemm()
	f.multiplies(x.DType, 1, rows.Numel()/rows.At(-1), rows.At(-1), weight.Shape.D[0])
	if bias != nil {
		sum := f.alloc(out.Shape, out.DType)
		f.release(out)
		out = sum
	}
	f.output(n, out, 0)
	if m := f.Machine; n != nil {
		n.apply = func(n *Node, dOut []*Tensor) Grads { return l.backward(m, n, dOut[0], bias != nil) }
	}
	f.consume(x)
	return f.produce(out)
}

func (l ParallelLinear) backward(m *Machine, n *Node, dOut *Tensor, biased bool) (g Grads) {
	x, weight := n.saved[0], n.saved[1]
	rows := x.Shape.With(0, x.Shape.D[0]*l.Gathers)
	count := rows.Numel() / rows.At(-1)
	if l.Gathers > 1 {
		l.Buffer.Take(m, x.DType, rows)
	}
	flat := m.reshaped(dOut, D(count, dOut.Shape.At(-1)))
	dx := m.alloc(rows, x.DType)
	m.gemm()
	m.multiplies(x.DType, 1, count, weight.Shape.D[0], rows.At(-1))
	g[0] = dx
	if l.Gathers > 1 {
		g[0] = m.alloc(x.Shape, x.DType)
	}
	if l.StandIn != nil {
		g[1] = m.alias(l.StandIn(weight))
	} else {
		g[1] = m.alloc(weight.Shape, x.DType)
	}
	if !l.Fused {
		m.gemm()
	}
	m.multiplies(x.DType, 1, weight.Shape.D[0], count, rows.At(-1))
	if biased {
		g[2] = m.sumTo(flat, D(flat.Shape.D[1]))
	}
	m.release(flat)
	if l.Gathers > 1 {
		m.release(dx)
	}
	return g
}

var (
	sumRanksRule      = &Rule{Name: "_ReduceFromModelParallelRegion", Source: "megatron/core/tensor_parallel/mappings.py@core_v0.16.1"}
	reduceScatterRule = &Rule{Name: "_ReduceScatterToSequenceParallelRegion", Source: "megatron/core/tensor_parallel/mappings.py@core_v0.16.1"}
)

// SumRanks sums x over ranks, in place; gradients pass through.
func (f *Frame) SumRanks(x *Tensor) *Tensor {
	out := f.Through(sumRanksRule, func() {}, x)[0]
	f.consume(x)
	return f.produce(out)
}

// ReduceScatter sums x over so many ranks and keeps this one's part of the
// first dimension; in backward the parts are gathered.
func (f *Frame) ReduceScatter(x *Tensor, ranks int64) *Tensor {
	n := f.record(reduceScatterRule, x)
	out := f.alloc(x.Shape.With(0, x.Shape.D[0]/ranks), x.DType)
	f.output(n, out, 0)
	if m, whole := f.Machine, x.Shape; n != nil {
		n.apply = func(_ *Node, dOut []*Tensor) Grads { return Grads{m.alloc(whole, dOut[0].DType)} }
	}
	f.consume(x)
	return f.produce(out)
}

var putRowsRule = &Rule{Name: "index_put_", Source: "derivatives.yaml:index_put_", Backward: likeGrad}

// PutRows is x[mask, :] = number: the indices write into a view of x, so that
// the gradient passes through CopySlices.
func (f *Frame) PutRows(x, mask *Tensor) *Tensor {
	n := f.record(putRowsRule, x)
	f.save(n, mask)
	out := f.overwrite(n, x)
	if m := f.Machine; n != nil {
		n.apply = func(n *Node, dOut []*Tensor) Grads {
			g := m.copySlices(n, dOut)
			g[0].Stride = g[0].Shape.contiguous() // laid out as x is
			return g
		}
	}
	return f.produce(out)
}

var fusedGateRule = &Rule{Name: "BiasSwiGLUFunction", Source: "megatron/core/fusions/fused_bias_swiglu.py, fused_bias_gelu.py@core_v0.16.1"}

// FusedGate is an activation of x, and of a bias or nil added to it, in one
// compiled kernel, whose last dimension is divided by parts (2 where one half
// gates the other). It keeps x and the bias.
func (f *Frame) FusedGate(x, bias *Tensor, parts int64) *Tensor {
	n := f.record(fusedGateRule, x, bias)
	f.save(n, x)
	if bias != nil {
		f.save(n, bias)
	}
	out := f.alloc(x.Shape.With(-1, x.Shape.At(-1)/parts), x.DType)
	f.output(n, out, 0)
	if m, shape := f.Machine, x.Shape; n != nil {
		n.apply = func(_ *Node, dOut []*Tensor) (g Grads) {
			g[0] = m.alloc(shape, dOut[0].DType)
			if n.wants(1) {
				g[1] = m.alias(g[0])
			}
			return g
		}
	}
	f.consume(x)
	return f.produce(out)
}

var fusedSoftmaxRule = &Rule{Name: "ScaledUpperTriangMaskedSoftmax", Source: "megatron/core/fusions/fused_softmax.py@core_v0.16.1"}

// FusedSoftmax is a scaled and masked softmax in one kernel. It keeps its
// result; its backward writes over the gradient.
func (f *Frame) FusedSoftmax(x *Tensor) *Tensor {
	n := f.record(fusedSoftmaxRule, x)
	out := f.alloc(x.Shape, x.DType)
	f.output(n, out, 0)
	f.save(n, out)
	if m := f.Machine; n != nil {
		n.apply = func(_ *Node, dOut []*Tensor) Grads { return Grads{m.alias(dOut[0])} }
	}
	f.consume(x)
	return f.produce(out)
}

var parallelLossRule = &Rule{Name: "_VocabParallelCrossEntropy", Source: "megatron/core/tensor_parallel/cross_entropy.py@core_v0.16.1"}

// ParallelCrossEntropy is the loss of each token from the part of the
// vocabulary that a rank has: logits of shape [tokens, batch, part], targets
// of shape [tokens, batch]. It keeps the softmax in fp32, and overwrites it with
// the gradient.
func (f *Frame) ParallelCrossEntropy(logits, target *Tensor) *Tensor {
	n := f.record(parallelLossRule, logits)
	var kept []*Tensor
	var loss *Tensor
	f.NoGrad(func() {
		loss = f.Func(func(f *Frame, in ...*Tensor) []*Tensor {
			exp := f.Let("exp_logits", f.To(in[0], F32))
			f.Let("logits_max", f.Empty(F32, target.Shape.Slice()...))
			f.Drop(f.Empty(I64, target.Shape.Slice()...)) // where it is
			found := f.Func(predictedLogits, exp, in[1])
			mask, masked := f.Let("target_mask", found[0]), f.Let("masked_target_1d", found[1])
			predicted, sum := f.Let("predicted_logits", found[2]), f.Let("sum_exp_logits", found[3])
			kept = []*Tensor{f.Keep(exp), f.Keep(mask), f.Keep(masked)}
			return []*Tensor{f.Sub(f.Clone(sum), predicted)}
		}, logits, target)[0]
	})
	f.save(n, kept...)
	f.letGo(kept...)
	f.output(n, loss, 0)
	if m := f.Machine; n != nil {
		n.apply = func(n *Node, _ []*Tensor) Grads { return parallelLossBackward(m, n.saved[0], n.saved[1]) }
	}
	return loss
}

// predictedLogits is calculate_predicted_logits: the mask of labels that other
// ranks have, the labels by this rank's count, their logits, and the sum of
// exponentials, which take the logits' place.
func predictedLogits(f *Frame, in ...*Tensor) []*Tensor {
	logits, target := in[0], in[1]
	below, above := f.Compare(target, nil), f.Compare(target, nil)
	mask := f.Let("target_mask", f.And(below, above))
	masked := f.Let("masked_target", f.AddScalar(f.Clone(target)))
	rows := target.Numel()
	f.Let("arange_1d", f.Arange(rows))
	predicted := f.Let("predicted_logits_1d", f.Empty(F32, rows))
	predicted = f.Let("predicted_logits_1d", f.Clone(predicted))
	sum := f.Let("sum_exp_logits", f.TotalDim(logits, -1))
	return []*Tensor{mask, masked, f.View(predicted, target.Shape.Slice()...), sum}
}

func parallelLossBackward(m *Machine, softmax, mask *Tensor) Grads {
	rows := D(mask.Numel())
	arange := m.alloc(rows, I64)
	float := m.alloc(rows, F32)
	update := m.alloc(rows, F32)
	m.release(float)
	m.release(m.alloc(rows, F32)) // the logits of the labels, to be written back
	m.letGo(update, arange)
	return Grads{m.alias(softmax)}
}

// MakeLeaf is t.requires_grad_() on a tensor that came from elsewhere: the leaf
// gets its gradient, which whoever holds the tensor gives back.
func (m *Machine) MakeLeaf(t *Tensor) *Leaf {
	t.NeedsGrad, t.node, t.leaf = true, nil, &Leaf{Tensor: t}
	return t.leaf
}

// PseudoFree is t.data = torch.empty(1): t keeps its place in the graph, and its
// bytes die with their other owners.
func (m *Machine) PseudoFree(r *Rule, t *Tensor) {
	one := m.Make(r, Temporaries, t.DType, D(1))
	m.release(t)
	t.storage = one.storage // its node goes on to expect the shape it made
}

var scatterFirstRule = &Rule{Name: "_ScatterToSequenceParallelRegion", Source: "megatron/core/tensor_parallel/mappings.py@core_v0.16.1"}

// ScatterFirst is this rank's part of the first dimension, a view; gradients
// are gathered.
func (f *Frame) ScatterFirst(x *Tensor, ranks int64) *Tensor {
	n := f.record(scatterFirstRule, x)
	whole, m := x.Shape, f.Machine
	out := f.alias(x)
	out.Shape, out.view, out.node, out.leaf = whole.With(0, whole.D[0]/ranks), true, nil, nil
	f.output(n, out, 0)
	if n != nil {
		n.apply = func(_ *Node, dOut []*Tensor) Grads { return Grads{m.alloc(whole, dOut[0].DType)} }
	}
	f.consume(x)
	return f.produce(out)
}

// MaskedFillInPlace is x.masked_fill_(mask, number), which keeps the mask.
func (f *Frame) MaskedFillInPlace(x, mask *Tensor) *Tensor {
	n := f.record(maskedFillGradRule, x)
	f.save(n, mask)
	return f.produce(f.overwrite(n, x))
}

// DivideInPlace is x /= y for a y without gradient, which is kept.
func (f *Frame) DivideInPlace(x, y *Tensor) *Tensor {
	n := f.record(divTensorRule, x)
	f.save(n, y)
	return f.produce(f.overwrite(n, x, y))
}
