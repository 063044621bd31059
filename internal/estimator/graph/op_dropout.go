package graph

var dropoutRule = &Rule{Name: "native_dropout", Source: "aten/src/ATen/native/cuda/Dropout.cu", Backward: likeGrad}

// Dropout is F.dropout in training: it keeps a mask of one byte an element.
// With probability 0 it is the tensor itself.
func (f *Frame) Dropout(x *Tensor, p float64) *Tensor {
	if p == 0 || f.Evaluating {
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

// Dropout2d is F.dropout2d in training: a number for each channel of each
// sample, kept, by which it is multiplied.
func (f *Frame) Dropout2d(x *Tensor, p float64) *Tensor {
	if p == 0 || f.Evaluating {
		return f.pass1(x)
	}
	f.rule = noiseRule
	shape := x.Shape
	for i := 2; i < int(shape.N); i++ {
		shape.D[i] = 1
	}
	return f.Mul(x, f.produce(f.alloc(shape, x.DType)))
}
