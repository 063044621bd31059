package graph

// Weights in 8 bits, as LLM.int8 keeps them: a byte a weight and a scale a row
// (bitsandbytes/nn/modules.py:Int8Params, autograd/_functions.py:MatMul8bitLt
// @0.45.3 and @0.50.2). Columns of the input with outliers, which depend on
// values, are taken to be none: they are looked for, and cost nothing more.

var (
	quantizeInt8Rule = &Rule{Name: "int8_vectorwise_quant", Source: "bitsandbytes/functional.py:int8_vectorwise_quant"}
	matmul8bitRule   = &Rule{Name: "MatMul8bitLt", Source: "bitsandbytes/autograd/_functions.py:MatMul8bitLt"}
)

// quantizeInt8 brings a weight to the card as fp16 and quantises it there
// (Int8Params._quantize).
func (m *Machine) quantizeInt8(p *Param) {
	whole := m.Make(quantizeInt8Rule, Temporaries, F16, p.Shape)
	m.Make(quantizeInt8Rule, Parameters, F32, D(p.Shape.D[0]))
	p.Tensor = m.Make(quantizeInt8Rule, Parameters, I8, p.Shape)
	m.release(whole)
}

// MatMul8bit is bitsandbytes.matmul for weights in 8 bits: the input is
// quantised by rows, the product is in integers and comes back as fp16, then in
// the input's type. The node itself, not a saved variable, holds the input:
// checkpointing does not see it, and it lives as long as the graph.
func (f *Frame) MatMul8bit(x *Tensor, w *Param) *Tensor {
	n := f.record(matmul8bitRule, x)
	m := f.Machine
	if n != nil {
		n.apply = func(n *Node, dOut []*Tensor) Grads { return m.matmul8bitBackward(n, w, dOut[0]) }
	}
	var out *Tensor
	f.NoGrad(func() {
		rows := f.own1(f.Reshape(x, -1, x.Shape.At(-1)))
		half := f.own1(f.To(rows, F16))
		scales, codes := f.quantizeRows(half)
		f.release(half)
		f.rule = matmul8bitRule
		shape := x.Shape.With(-1, w.Shape.D[0])
		integers := f.alloc(shape, I32)
		product := f.produce(f.alloc(shape, F16))
		out = f.To(product, x.DType)
		f.letGo(integers, codes, scales)
		if n != nil {
			f.keepWithGraph(rows)
		}
		f.release(rows)
	})
	f.output(n, out, 0)
	return out
}

// quantizeRows gives the scale of each row and the rows in 8 bits, after
// looking for outliers among them.
func (f *Frame) quantizeRows(rows *Tensor) (scales, codes *Tensor) {
	f.rule = quantizeInt8Rule
	scales, codes = f.alloc(D(rows.Shape.D[0]), F32), f.alloc(rows.Shape, I8)
	magnitudes := f.alloc(rows.Shape, F16)
	outliers := f.alloc(rows.Shape, Bool)
	f.release(magnitudes)
	f.Drop(f.Any(outliers))
	f.release(outliers)
	return scales, codes
}

// matmul8bitBackward restores the weight in the type of the input, and
// multiplies by it.
func (m *Machine) matmul8bitBackward(n *Node, w *Param, dOut *Tensor) Grads {
	x := n.in[0].meta
	width := dOut.Shape.At(-1)
	rows := m.contiguousRows(dOut, D(dOut.Numel()/width, width))
	whole := m.alloc(w.Shape, x.DType)
	m.scratch(w.Shape.D[0]*F32.Size(), Temporaries) // scales / 127
	if rows.DType != x.DType {
		cast := m.alloc(rows.Shape, x.DType)
		m.release(rows)
		rows = cast
	}
	g := m.alloc(x.Shape, x.DType)
	g.view = true
	m.gemm()
	m.multiplies(x.DType, 1, rows.Shape.D[0], width, w.Shape.D[1])
	m.letGo(rows, whole)
	return Grads{g}
}

// contiguousRows is t.reshape(shape).contiguous(), owned by the caller.
func (m *Machine) contiguousRows(t *Tensor, shape Dims) *Tensor {
	rows := m.reshaped(t, shape)
	if rows.Contiguous() {
		return rows
	}
	copied := m.alloc(shape, t.DType)
	m.release(rows)
	return copied
}
