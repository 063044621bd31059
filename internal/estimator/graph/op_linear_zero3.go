package graph

// zero.Init of DeepSpeed replaces torch.nn.functional.linear, and never puts it
// back, by a function that saves the weight itself and not its transpose, so
// that ZeRO 3 may let it go (deepspeed/runtime/zero/linear.py:
// LinearFunctionForZeroStage3 @v0.16.4).

var linearFunctionRule = &Rule{Name: "LinearFunctionForZeroStage3", Product: true, Source: "deepspeed/runtime/zero/linear.py@v0.16.4", Backward: linearFunctionBackward}

// LinearFunction makes linear layers run as that function.
func (m *Machine) LinearFunction() { m.linearFunction = true }

// linearAsFunction saves all it is given, whoever needs gradients, and after it
// has run.
func (f *Frame) linearAsFunction(x, weight, bias *Tensor) *Tensor {
	n := f.record(linearFunctionRule, x, weight, bias)
	var out *Tensor
	f.NoGrad(func() {
		if bias != nil && x.Shape.N == 2 {
			out = f.own1(f.linear(x, weight, bias))
			return
		}
		out = f.own1(f.linear(x, weight, nil)) // the bias is added in place
	})
	if bias != nil {
		f.save(n, x, weight, bias)
	} else {
		f.save(n, x, weight)
	}
	out.node, out.NeedsGrad = nil, false
	f.output(n, out, 0)
	return f.produce(out)
}

func linearFunctionBackward(m *Machine, n *Node, dOut []*Tensor) (g Grads) {
	x, width := n.in[0].meta, dOut[0].Shape.At(-1)
	inner := n.saved[0].Shape.At(-1)
	rows := dOut[0].Numel() / width
	if n.wants(0) {
		g[0] = m.alloc(x.Shape, dOut[0].DType)
		m.gemm()
		m.multiplies(dOut[0].DType, 1, rows, width, inner)
	}
	if n.wants(1) {
		flat := m.reshaped(dOut[0], D(rows, width))
		g[1] = m.alloc(n.in[1].meta.Shape, dOut[0].DType)
		m.gemm()
		m.multiplies(dOut[0].DType, 1, width, rows, inner)
		m.release(flat)
	}
	if n.wants(2) {
		g[2] = m.sumTo(dOut[0], n.in[2].meta.Shape)
	}
	return g
}
