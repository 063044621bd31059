package graph

var (
	eyeRule = &Rule{Name: "eye", Source: "aten/src/ATen/native/cuda/TensorFactories.cu:eye_out_cuda"}
	// The divisor's gradient is never wanted here.
	quotientRule = &Rule{Name: "div", Source: "FunctionsManual.cpp:div_tensor_self_backward", Backward: likeGrad}
)

// Eye is torch.eye(n).
func (f *Frame) Eye(d DType, n int64) *Tensor {
	f.rule = eyeRule
	return f.produce(f.alloc(D(n, n), d))
}

// Quotient is a / b for a divisor without gradient, which is kept.
func (f *Frame) Quotient(a, b *Tensor) *Tensor {
	n := f.record(quotientRule, a, b)
	f.save(n, b)
	return f.binaryResult(n, a, b)
}
