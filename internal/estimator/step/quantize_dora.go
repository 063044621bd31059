package step

import "memplan/internal/estimator/graph"

// isQuantized reports whether a layer's weight is kept in few bits.
func isQuantized(m *graph.Module) bool { return m.Class == linear4bit || m.Class == linear8bit }

// doraQuantized is the forward of an adapted quantised layer with magnitudes:
// one of 4 bits copies the base layer's result, and casts are left to autocast
// where it is on.
func (p pair) doraQuantized(magnitude *graph.Param, a adapter) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		result := f.Let("result", f.Call1(p.base, in[0]))
		if p.base.Class == linear4bit {
			result = f.Let("result", f.Clone(result))
		}
		resultType := result.DType
		_, casting := f.Autocasting()
		x := in[0]
		if !casting {
			x = f.Let("x", f.To(x, p.dtype))
		}
		result = f.Let("result", p.doraVariant(f, magnitude, a, x, result))
		if !casting {
			result = f.Let("result", f.To(result, resultType))
		}
		return []*graph.Tensor{result}
	}
}

// initMagnitude is DoraLinearLayer.update_layer on a layer that is on the card:
// the norms of its weights with the adapter's product are the magnitudes. Of a
// Linear4bit a deep copy is dequantised for it.
func initMagnitude(r *Run, m *graph.Module) {
	base := m.Children[0]
	var bias *graph.Param
	if len(base.Params) > 1 {
		bias = base.Params[1]
	}
	var pair []*graph.Param // lora_A, lora_B, magnitude
	for _, c := range m.Children[1:] {
		pair = append(pair, c.Children[0].Params...)
	}
	down, up, magnitude := pair[0].T(), pair[1].T(), pair[2]
	r.M.InModule(m)
	r.M.Run(func(f *graph.Frame) {
		var copies []*graph.Tensor
		if base.Class == linear4bit {
			copies = r.M.DeepcopyFourBit(base.Params[0], bias)
		}
		f.NoGrad(func() {
			weight := base.Params[0].T()
			switch {
			case isQuantized(base):
				weight = f.Let("weight", f.Dequantize(base.Params[0]))
			case base.Class == "Conv1D":
				weight = f.Let("weight", f.Transpose(weight, 0, 1))
			}
			product := f.Let("lora_weight", loraProduct(f, down, up))
			sum := f.Let("sum", f.Add(weight, f.MulScalar(product)))
			r.M.Adopt(magnitude, f.Own(f.NormDim(sum, 1)))
		})
		for _, t := range copies {
			r.M.Forget(t)
		}
	})
}

// loraProduct is lora_B @ lora_A, in fp32 for fp16.
func loraProduct(f *graph.Frame, down, up *graph.Tensor) *graph.Tensor {
	if down.DType != graph.F16 {
		return f.Outer(up, down)
	}
	a, b := f.Let("lora_A", f.To(down, graph.F32)), f.Let("lora_B", f.To(up, graph.F32))
	return f.To(f.Outer(b, a), graph.F16)
}
