package step

import "memplan/internal/estimator/graph"

// dora is Linear.forward with a magnitude for each output beside the pair:
// DoraLinearVariant.forward of peft 0.21.2, tuners/lora/variants.py. With a
// dropout the base layer's result cannot be used again.
func (p pair) dora(magnitude *graph.Module, a adapter, out int64) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	w := magnitude.Param("weight", a.dtype, out)
	w.Category = graph.Adapters
	if isQuantized(p.base) {
		return p.doraQuantized(w, a)
	}
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		result := f.Let("result", f.Call1(p.base, in[0]))
		resultType := result.DType
		x := f.Let("x", f.To(in[0], p.dtype))
		result = f.Let("result", p.doraVariant(f, w, a, x, result))
		return []*graph.Tensor{f.Let("result", f.To(result, resultType))}
	}
}

// doraVariant is DoraLinearVariant.forward.
func (p pair) doraVariant(f *graph.Frame, magnitude *graph.Param, a adapter, x, result *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x, baseResult := in[0], in[1]
		if a.dropout > 0 {
			x, baseResult = f.Let("x", f.Call1(p.dropout, x)), nil
		}
		extra := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			return p.doraLayer(f, magnitude, in[0], in[1])
		}, x, baseResult)
		return []*graph.Tensor{f.Let("result", f.Add(in[1], extra[0]))}
	}, x, result)[0]
}

// doraLayer is DoraLinearLayer.forward of tuners/lora/dora.py: what the
// adapter adds to the base layer's result. The product of the pair is computed
// with gradients, for its norm alone, which is detached: that graph dies here
// without a backward.
func (p pair) doraLayer(f *graph.Frame, magnitude *graph.Param, x, baseResult *graph.Tensor) []*graph.Tensor {
	product := f.Let("lora_weight", f.Func(p.loraWeight)[0])
	product = f.Let("lora_weight", f.To(product, x.DType))
	weight := p.base.Params[0].T()
	if isQuantized(p.base) {
		weight = f.Let("weight", f.Dequantize(p.base.Params[0]))
	}
	weight = f.Let("weight", f.To(weight, x.DType))
	norm := f.Let("weight_norm", f.Func(p.weightNorm, weight, f.Detach(product))[0])
	norm = f.Let("weight_norm", f.Detach(norm))
	scale := f.Let("mag_norm_scale", f.View(f.Quotient(magnitude.T(), norm), 1, -1))
	result := f.Let("lora_result", f.Call1(p.up, f.Call1(p.down, x)))
	switch {
	case baseResult == nil:
		turned := p.turned(f, weight)
		if p.base.Class == "Conv1D" && p.base.Params[0].DType == x.DType {
			turned = f.AsParameter(turned) // peft.utils.other.transpose: a parameter stays one, and trains
		}
		baseResult = f.Let("base_result", f.Linear(x, turned, nil))
		f.Drop(turned)
	case len(p.base.Params) > 1:
		baseResult = f.Let("base_result", f.Sub(baseResult, p.base.Params[1].T()))
	}
	direct := f.Mul(f.AddScalar(scale), baseResult)
	out := f.Let("result_dora", f.Add(direct, f.MulScalar(f.Mul(scale, result))))
	f.Discard(product)
	return []*graph.Tensor{out}
}

// loraWeight is get_lora_weight: the pair run on an identity matrix.
func (p pair) loraWeight(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
	_, in := features(p.base)
	eye := f.Let("x_eye", f.Eye(p.dtype, in))
	product := f.Let("lora_weight", f.Transpose(f.Call1(p.up, f.Call1(p.down, eye)), 0, 1))
	return []*graph.Tensor{product}
}

// weightNorm is get_weight_norm: the norm of each output's weights.
func (p pair) weightNorm(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	weight := f.Let("weight", p.turned(f, in[0]))
	weight = f.Let("weight", f.Add(weight, f.MulScalar(in[1])))
	return []*graph.Tensor{f.Let("weight_norm", f.To(f.View(f.NormDim(weight, 1), -1), weight.DType))}
}

// turned is a weight with outputs first: transpose of a Conv1D's.
func (p pair) turned(f *graph.Frame, w *graph.Tensor) *graph.Tensor {
	if p.base.Class == "Conv1D" {
		return f.Transpose(w, 0, 1)
	}
	return w
}
