package graph

var dropoutRule = &Rule{Name: "native_dropout", Source: "aten/src/ATen/native/cuda/Dropout.cu", Backward: likeGrad}

// Dropout is F.dropout in training: it keeps a mask of one byte an element.
// With probability 0 it is the tensor itself.
func (f *Frame) Dropout(x *Tensor, p float64) *Tensor {
	if p == 0 {
		return f.pass1(x)
	}
	n := f.record(dropoutRule, x)
	mask := f.allocLike(x, Bool)
	out := f.allocLike(x, x.DType)
	f.output(n, out, 0)
	f.save(n, mask)
	f.release(mask)
	f.consume(x)
	return f.produce(out)
}
