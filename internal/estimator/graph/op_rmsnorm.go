package graph

import "memplan/internal/estimator/spec"

var rmsNormRule = &Rule{Name: "_fused_rms_norm", Source: "aten/src/ATen/native/cuda/layer_norm_kernel.cu:_fused_rms_norm_cuda", Backward: layerNormBackward}

// rmsNormFusedSince is when RMS norm got a kernel of its own: not in 2.6, in
// 2.15; the release that has it first is taken from the date of its change.
var rmsNormFusedSince = spec.Version{2, 9}

// RMSNorm is F.rms_norm over the last dimension. Its kernel keeps the input, the
// weight (nil for none) and a number for each row, and runs in fp32 under
// autocast. Before it there was one, the input was raised to fp32 and every
// operation had a result of its own
// (aten/src/ATen/native/layer_norm.cpp:rms_norm).
func (f *Frame) RMSNorm(x, weight *Tensor) *Tensor {
	if f.Versions.Torch.Before(rmsNormFusedSince) {
		return f.rmsNormByParts(x, weight)
	}
	ws, xs := f.raise(weight), f.raise(x)
	f.consume(x)
	n := f.record(rmsNormRule, xs, ws)
	f.save(n, xs)
	if ws != nil {
		f.save(n, ws)
	}
	laid := f.laidOut(xs)
	out := f.alloc(xs.Shape, xs.DType)
	rstd := f.alloc(D(xs.Numel()/xs.Shape.At(-1)), F32)
	f.letGo(laid)
	f.output(n, out, 0)
	f.save(n, rstd)
	f.letGo(rstd, xs, ws)
	return f.produce(out)
}

func (f *Frame) rmsNormByParts(x, weight *Tensor) *Tensor {
	d := x.DType
	return f.Func(func(f *Frame, in ...*Tensor) []*Tensor {
		upcast := f.Let("upcasted_input", f.To(in[0], F32))
		squares := f.Let("pow", f.Pow(upcast)) // temporaries of one expression die together
		root := f.Let("rqrst_input", f.Rsqrt(f.AddScalarInPlace(f.MeanLast(squares))))
		f.Del("pow")
		result := f.Let("result", f.To(f.Mul(upcast, root), d))
		if weight != nil {
			result = f.Let("result", f.Mul(result, weight))
		}
		return []*Tensor{result}
	}, x)[0]
}
