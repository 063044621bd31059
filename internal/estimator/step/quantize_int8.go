package step

import "memplan/internal/estimator/graph"

// linear8bit is the class of a layer in 8 bits.
const linear8bit = "Linear8bitLt"

// toInt8 makes m a Linear8bitLt with frozen weights (load_in_8bit): it works on
// inputs of any type, and its bias takes theirs for good. The bias is added
// where the product lies.
func toInt8(m *graph.Module) {
	weight := m.Params[0]
	var bias *graph.Param
	if len(m.Params) > 1 {
		bias = m.Params[1]
	}
	weight.Int8 = true
	m.Class = linear8bit
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		castBias(f, bias, in[0].DType)
		return []*graph.Tensor{f.MatMul8bit(in[0], weight)}
	}
}

// lora8bit is Linear8bitLt.forward of tuners/lora/bnb.py.
func (p pair) lora8bit(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return p.besideQuantized(f, f.Let("result", f.Call1(p.base, in[0])), in[0])
}
