package graph

// Elementwise functions (aten/src/ATen/native/cuda through TensorIterator;
// what is saved: tools/autograd/derivatives.yaml@v2.6.0).

// resultLike allocates the result of an elementwise op over operands that
// broadcast to shape: its layout follows the first operand that has the whole
// shape (TensorIterator's reorder_dimensions).
func (m *Machine) resultLike(shape Dims, d DType, operands ...*Tensor) *Tensor {
	r := m.alloc(shape, d)
	for _, t := range operands {
		if t.Shape == shape {
			r.Stride = denseIn(t)
			break
		}
	}
	return r
}

// denseIn returns gapless strides that keep the order of t's dimensions in
// memory. A stride of 0 says nothing about it
// (aten/src/ATen/TensorIterator.cpp:reorder_dimensions). The strides of what is
// contiguous are made anew: those of dimensions of size 1 are lost
// (fast_set_up).
func denseIn(t *Tensor) Dims {
	if t.Contiguous() {
		return t.Shape.contiguous()
	}
	if t.dense() {
		return t.Stride
	}
	n := int(t.Shape.N)
	var inner [MaxDims]int // dimensions, the innermost first
	for i := range n {
		inner[i] = n - 1 - i
		for at, k := i, i-1; k >= 0; k-- {
			a, b := t.Stride.D[inner[k]], t.Stride.D[inner[at]]
			if a != 0 && b != 0 && a < b {
				break
			}
			if b != 0 && a > b {
				inner[k], inner[at] = inner[at], inner[k]
				at = k
			}
		}
	}
	s := Dims{N: t.Shape.N}
	step := int64(1)
	for _, d := range inner[:n] {
		s.D[d] = step
		step *= t.Shape.D[d]
	}
	return s
}

func broadcast(a, b Dims) Dims {
	if a.N < b.N {
		a, b = b, a
	}
	lead := int(a.N - b.N)
	for i := range int(b.N) {
		a.D[i+lead] = max(a.D[i+lead], b.D[i])
	}
	return a
}

// unary runs an elementwise function of one tensor that saves its input, its
// result, or neither.
func (f *Frame) unary(r *Rule, x *Tensor, saveIn, saveOut bool) *Tensor {
	n := f.record(r, x)
	if saveIn {
		f.save(n, x)
	}
	out := f.resultLike(x.Shape, x.DType, x)
	f.output(n, out, 0)
	if saveOut {
		f.save(n, out)
	}
	f.consume(x)
	return f.produce(out)
}

// likeGrad is the backward of most elementwise functions: one kernel, one
// fresh tensor.
func likeGrad(m *Machine, n *Node, dOut []*Tensor) Grads {
	return Grads{m.resultLike(dOut[0].Shape, dOut[0].DType, dOut[0])}
}

var (
	negRule  = &Rule{Name: "neg", Source: "derivatives.yaml:neg", Backward: likeGrad}
	siluRule = &Rule{Name: "silu", Source: "derivatives.yaml:silu", Backward: likeGrad}
	geluRule = &Rule{Name: "gelu", Source: "derivatives.yaml:gelu", Backward: likeGrad}
	reluRule = &Rule{Name: "relu", Source: "Activation.cpp:threshold_backward, whose first operand is the result", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		return Grads{m.resultLike(dOut[0].Shape, dOut[0].DType, n.saved[0])}
	}}
	tanhRule      = &Rule{Name: "tanh", Source: "derivatives.yaml:tanh (tanh_backward)", Backward: likeGrad}
	sigmoidRule   = &Rule{Name: "sigmoid", Source: "derivatives.yaml:sigmoid (sigmoid_backward)", Backward: likeGrad}
	expRule       = &Rule{Name: "exp", Source: "derivatives.yaml:exp", Backward: likeGrad}
	cosRule       = &Rule{Name: "cos", Source: "derivatives.yaml:cos", Backward: likeGrad}
	sinRule       = &Rule{Name: "sin", Source: "derivatives.yaml:sin", Backward: likeGrad}
	mulScalarRule = &Rule{Name: "mul", Source: "derivatives.yaml:mul.Scalar", Backward: likeGrad}
	divTensorRule = &Rule{Name: "div", Source: "FunctionsManual.cpp:div_tensor_self_backward", Backward: likeGrad}
	addScalarRule = &Rule{Name: "add", Source: "derivatives.yaml:add.Scalar", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		return Grads{m.alias(dOut[0])}
	}}
	powRule = &Rule{Name: "pow", Source: "torch/csrc/autograd/FunctionsManual.cpp:pow_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		x := n.saved[0]
		raised := m.allocLike(x, x.DType)
		times := m.allocLike(x, x.DType)
		g := m.resultLike(dOut[0].Shape, dOut[0].DType, dOut[0])
		m.release(times)
		m.release(raised)
		return Grads{g}
	}}
	rsqrtRule = &Rule{Name: "rsqrt", Source: "derivatives.yaml:rsqrt", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		y := n.saved[0]
		half := m.allocLike(y, y.DType)
		cube := m.allocLike(y, y.DType)
		g := m.allocLike(y, y.DType)
		m.release(cube)
		m.release(half)
		return Grads{g}
	}}
)

// Neg is -x.
func (f *Frame) Neg(x *Tensor) *Tensor { return f.unary(negRule, x, false, false) }

// Silu is F.silu: it keeps its input.
func (f *Frame) Silu(x *Tensor) *Tensor { return f.unary(siluRule, x, true, false) }

// Gelu is F.gelu, exact or with approximate="tanh": it keeps its input.
func (f *Frame) Gelu(x *Tensor) *Tensor { return f.unary(geluRule, x, true, false) }

// Relu is F.relu: it keeps its result, of old its input.
func (f *Frame) Relu(x *Tensor) *Tensor {
	operand := f.keepsOperands()
	return f.unary(reluRule, x, operand, !operand)
}

// Tanh is torch.tanh: it keeps its result.
func (f *Frame) Tanh(x *Tensor) *Tensor { return f.unary(tanhRule, x, false, true) }

// Sigmoid is torch.sigmoid: it keeps its result.
func (f *Frame) Sigmoid(x *Tensor) *Tensor { return f.unary(sigmoidRule, x, false, true) }

// Exp is torch.exp: it keeps its result.
func (f *Frame) Exp(x *Tensor) *Tensor { return f.unary(expRule, x, false, true) }

// Cos is torch.cos.
func (f *Frame) Cos(x *Tensor) *Tensor { return f.unary(cosRule, x, true, false) }

// Sin is torch.sin.
func (f *Frame) Sin(x *Tensor) *Tensor { return f.unary(sinRule, x, true, false) }

// MulScalar is x * number, which keeps nothing.
func (f *Frame) MulScalar(x *Tensor) *Tensor { return f.unary(mulScalarRule, x, false, false) }

// MulScalarInPlace is x *= number: a node, and no new storage.
func (f *Frame) MulScalarInPlace(x *Tensor) *Tensor {
	n := f.record(mulScalarRule, x)
	out := f.alias(x)
	out.node, out.leaf = nil, nil
	f.output(n, out, 0)
	f.consume(x)
	return f.produce(out)
}

// DivTensor is x / y for a y without gradient, which is kept.
func (f *Frame) DivTensor(x, y *Tensor) *Tensor {
	n := f.record(divTensorRule, x)
	f.save(n, y)
	out := f.resultLike(x.Shape, x.DType, x)
	f.output(n, out, 0)
	f.consume(x, y)
	return f.produce(out)
}

var clampBothRule = &Rule{Name: "clamp", Source: "FunctionsManual.cpp:clamp_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	zero := m.alloc(D(), dOut[0].DType)
	above, below := m.allocLike(n.saved[0], Bool), m.allocLike(n.saved[0], Bool)
	g := m.resultLike(dOut[0].Shape, dOut[0].DType, above, dOut[0])
	m.letGo(below, above, zero)
	return Grads{g}
}}

// ClampBetween is torch.clamp between two numbers: it keeps its input.
func (f *Frame) ClampBetween(x *Tensor) *Tensor { return f.unary(clampBothRule, x, true, false) }

var clampBelowRule = &Rule{Name: "clamp", Source: "FunctionsManual.cpp:clamp_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	zero := m.alloc(D(), dOut[0].DType)
	below := m.allocLike(n.saved[0], Bool)
	g := m.resultLike(dOut[0].Shape, dOut[0].DType, below, dOut[0])
	m.letGo(below, zero)
	return Grads{g}
}}

// ClampBelow is torch.clamp to one number: it keeps its input.
func (f *Frame) ClampBelow(x *Tensor) *Tensor { return f.unary(clampBelowRule, x, true, false) }

// AddScalar is x + number, which keeps nothing.
func (f *Frame) AddScalar(x *Tensor) *Tensor { return f.unary(addScalarRule, x, false, false) }

// Pow is x.pow(number), in fp32 under autocast: it keeps its input.
func (f *Frame) Pow(x *Tensor) *Tensor { return f.inFP32(powRule, x, true, false) }

// Rsqrt is torch.rsqrt, in fp32 under autocast: it keeps its result.
func (f *Frame) Rsqrt(x *Tensor) *Tensor { return f.inFP32(rsqrtRule, x, false, true) }

func (f *Frame) inFP32(r *Rule, x *Tensor, saveIn, saveOut bool) *Tensor {
	y := f.raise(x)
	f.consume(x)
	return f.unary(r, f.produce(y), saveIn, saveOut)
}

var (
	addRule = &Rule{Name: "add", Source: "derivatives.yaml:add.Tensor", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		var g Grads
		for i := range 2 {
			if n.wants(i) {
				g[i] = m.alias(dOut[0])
			}
		}
		return g
	}}
	subRule = &Rule{Name: "sub", Source: "derivatives.yaml:sub.Tensor", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		var g Grads
		if n.wants(1) {
			g[1] = m.allocLike(dOut[0], dOut[0].DType)
		}
		if n.wants(0) {
			g[0] = m.alias(dOut[0])
		}
		return g
	}}
	mulRule = &Rule{Name: "mul", Source: "FunctionsManual.cpp:mul_tensor_backward", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
		var g Grads
		for i := 1; i >= 0; i-- { // generated code computes "other" before "self"
			if n.wants(i) {
				with := n.saved[0]
				if len(n.saved) == 2 {
					with = n.saved[1-i]
				}
				g[i] = m.resultLike(broadcast(dOut[0].Shape, with.Shape), promote(dOut[0].DType, with.DType), dOut[0])
			}
		}
		return g
	}}
)

// Add is a + b.
func (f *Frame) Add(a, b *Tensor) *Tensor { return f.binary(addRule, a, b) }

// Sub is a - b.
func (f *Frame) Sub(a, b *Tensor) *Tensor { return f.binary(subRule, a, b) }

// Mul is a * b: each operand is kept when the other needs a gradient.
func (f *Frame) Mul(a, b *Tensor) *Tensor {
	n := f.record(mulRule, a, b)
	if f.needs(b) {
		f.save(n, a)
	}
	if f.needs(a) {
		f.save(n, b)
	}
	return f.binaryResult(n, a, b)
}

func (f *Frame) binary(r *Rule, a, b *Tensor) *Tensor {
	return f.binaryResult(f.record(r, a, b), a, b)
}

func (f *Frame) binaryResult(n *Node, a, b *Tensor) *Tensor {
	d := promote(a.DType, b.DType)
	if b.Shape.N == 0 && a.DType.Floating() == b.DType.Floating() {
		d = a.DType
	}
	out := f.resultLike(broadcast(a.Shape, b.Shape), d, a, b)
	f.output(n, out, 0)
	f.consume(a, b)
	return f.produce(out)
}

var complexMulRule = &Rule{Name: "mul", Source: "FunctionsManual.cpp:mul_tensor_backward, whose conjugate is written out", Backward: func(m *Machine, n *Node, dOut []*Tensor) Grads {
	shape, d := dOut[0].Shape, dOut[0].DType
	if !dOut[0].Contiguous() { // view_as_real's backward wants pairs in order
		ordered := m.alloc(shape, d)
		m.release(dOut[0])
		dOut[0] = ordered
	}
	conjugate := m.allocLike(n.saved[0], n.saved[0].DType)
	g := m.alloc(shape, d)
	m.release(conjugate)
	return Grads{g}
}}

// MulComplex is x * y of complex numbers, of a y without gradient, which is
// kept. A complex number is written as two numbers along the last dimension.
func (f *Frame) MulComplex(x, y *Tensor) *Tensor {
	n := f.record(complexMulRule, x)
	f.save(n, y)
	return f.binaryResult(n, x, y)
}
