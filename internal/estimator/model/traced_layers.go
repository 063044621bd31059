package model

import "memplan/internal/estimator/graph"

// tracedLayers are what layers of torch.nn run.
func tracedLayers() map[string]tracedOp {
	dropout := func(op func(*graph.Frame, *graph.Tensor, float64) *graph.Tensor, name string) tracedOp {
		return func(o *operation) []*graph.Tensor {
			p := o.float("p", 0.5)
			if !o.flag("train", true) {
				p = 0
			}
			return one(op(o.Frame, o.tensor(name), p))
		}
	}
	return map[string]tracedOp{
		"linear": func(o *operation) []*graph.Tensor {
			return one(o.Linear(o.tensor("input"), o.tensor("weight"), o.tensor("bias")))
		},
		"embedding": func(o *operation) []*graph.Tensor { return one(o.Embedding(o.tensor("indices"), o.tensor("weight"))) },
		"layer_norm": func(o *operation) []*graph.Tensor {
			return one(o.LayerNorm(o.tensor("input"), o.tensor("weight"), o.tensor("bias")))
		},
		"group_norm": func(o *operation) []*graph.Tensor {
			if o.tensor("weight") == nil {
				return nil
			}
			return one(o.GroupNorm(o.tensor("input"), o.tensor("weight"), o.tensor("bias"), o.int("num_groups", 1)))
		},
		"batch_norm": func(o *operation) []*graph.Tensor {
			if o.tensor("weight") == nil {
				return nil
			}
			return one(o.BatchNorm(o.tensor("input"), o.tensor("weight"), o.tensor("bias"), o.flag("training", true)))
		},
		"dropout": dropout((*graph.Frame).Dropout, "input"), "dropout_": dropout((*graph.Frame).DropoutInPlace, "self"),
		"feature_dropout": dropout((*graph.Frame).Dropout2d, "input"),
		"conv1d":          convolve(false), "conv2d": convolve(false), "conv3d": convolve(false),
		"conv_transpose1d": convolve(true), "conv_transpose2d": convolve(true), "conv_transpose3d": convolve(true),
		"max_pool1d": pool((*graph.Frame).MaxPool, 1), "max_pool2d": pool((*graph.Frame).MaxPool, 2), "max_pool3d": pool((*graph.Frame).MaxPool, 3),
		"avg_pool1d": pool((*graph.Frame).AvgPool, 1), "avg_pool2d": pool((*graph.Frame).AvgPool, 2), "avg_pool3d": pool((*graph.Frame).AvgPool, 3),
		"adaptive_avg_pool1d": adaptivePool, "adaptive_avg_pool2d": adaptivePool, "adaptive_avg_pool3d": adaptivePool,
		"upsample_nearest1d": resize((*graph.Frame).Interpolate), "upsample_nearest2d": resize((*graph.Frame).Interpolate), "upsample_nearest3d": resize((*graph.Frame).Interpolate),
		"upsample_bilinear2d": resize((*graph.Frame).Interpolate), "upsample_linear1d": resize((*graph.Frame).Interpolate), "upsample_trilinear3d": resize((*graph.Frame).Interpolate),
		"upsample_bicubic2d":           resize((*graph.Frame).Bicubic),
		"scaled_dot_product_attention": attend,
		"cross_entropy_loss": func(o *operation) []*graph.Tensor {
			if o.int("reduction", 1) == 0 || o.float("label_smoothing", 0) > 0 {
				return nil
			}
			return one(o.CrossEntropy(o.tensor("self"), o.tensor("target")))
		},
		"mse_loss": func(o *operation) []*graph.Tensor {
			if o.int("reduction", 1) == 0 {
				return nil
			}
			return one(o.MSELoss(o.tensor("self"), o.tensor("target")))
		},
	}
}

// convolve is a convolution of any number of dimensions.
func convolve(transposed bool) tracedOp {
	return func(o *operation) []*graph.Tensor {
		x, w := o.tensor("input"), o.tensor("weight")
		n := w.Shape.N - 2
		if x.Shape.N != w.Shape.N {
			return nil // a sample without a batch
		}
		c := graph.Conv{
			Stride: o.each("stride", n, 1), Padding: o.each("padding", n, 0), Dilation: o.each("dilation", n, 1),
			OutputPadding: o.each("output_padding", n, 0), Groups: o.int("groups", 1), Transposed: transposed,
		}
		if o.node.Args["padding"] == "same" {
			for i := range int(n) {
				span := c.Dilation.D[i] * (w.Shape.D[i+2] - 1)
				if span%2 != 0 {
					return nil // which pads apart
				}
				c.Padding.D[i] = span / 2
			}
		}
		return one(o.Convolution(x, w, o.tensor("bias"), c))
	}
}

// pool is a pooling over windows of so many dimensions.
func pool(op func(*graph.Frame, *graph.Tensor, graph.Pool) *graph.Tensor, n int8) tracedOp {
	return func(o *operation) []*graph.Tensor {
		kernel := o.each("kernel_size", n, 1)
		stride := o.each("stride", n, 0)
		if stride.D[0] == 0 {
			stride = kernel
		}
		for _, d := range o.ints("dilation") {
			if d != 1 {
				return nil
			}
		}
		p := graph.Pool{Kernel: kernel, Stride: stride, Padding: o.each("padding", n, 0), Ceil: o.flag("ceil_mode", false)}
		return one(op(o.Frame, o.tensor("self"), p))
	}
}

// adaptivePool is an adaptive average pooling to a square or cube.
func adaptivePool(o *operation) []*graph.Tensor {
	sizes := o.ints("output_size")
	for _, s := range sizes {
		if s != sizes[0] {
			return nil
		}
	}
	return one(o.AdaptiveAvgPool(o.tensor("self"), sizes[0]))
}

// resize is F.interpolate.
func resize(op func(*graph.Frame, *graph.Tensor, ...int64) *graph.Tensor) tracedOp {
	return func(o *operation) []*graph.Tensor {
		x := o.tensor("self")
		if x == nil {
			x = o.tensor("input")
		}
		return one(op(o.Frame, x, o.shape().Slice()[2:]...))
	}
}

// attend is F.scaled_dot_product_attention.
func attend(o *operation) []*graph.Tensor {
	q := o.tensor("query")
	if q.Shape.N != 4 {
		return nil
	}
	return one(o.ScaledDotProductAttention(q, o.tensor("key"), o.tensor("value"), o.tensor("attn_mask"), graph.Attention{
		Dropout: o.float("dropout_p", 0), Causal: o.flag("is_causal", false), Grouped: o.flag("enable_gqa", false), Backend: o.program.build.Attention.Backend,
	}))
}

// tracedReductions are functions over dimensions.
func tracedReductions() map[string]tracedOp {
	softmax := func(op func(*graph.Frame, *graph.Tensor, graph.DType) *graph.Tensor) tracedOp {
		return func(o *operation) []*graph.Tensor {
			x := o.tensor("self")
			return one(op(o.Frame, x, o.dtype("dtype", x.DType)))
		}
	}
	return map[string]tracedOp{
		"softmax": softmax((*graph.Frame).Softmax), "log_softmax": softmax((*graph.Frame).LogSoftmax),
		"mean": func(o *operation) []*graph.Tensor {
			x := o.tensor("self")
			return one(o.Mean(x, o.flag("keepdim", false), o.dims("dim", x)...))
		},
		"sum": func(o *operation) []*graph.Tensor {
			x := o.tensor("self")
			return one(o.SumDims(x, o.flag("keepdim", false), o.dims("dim", x)...))
		},
		"cumsum": func(o *operation) []*graph.Tensor {
			if x := o.tensor("self"); !x.NeedsGrad {
				return one(o.Cumsum(x))
			}
			return nil
		},
		"tril": triangle, "triu": triangle,
		"index": func(o *operation) []*graph.Tensor {
			rows := o.list("indices")
			if len(rows) != 1 || rows[0] == nil || rows[0].DType == graph.Bool {
				return nil
			}
			return one(o.IndexRows(o.tensor("self"), rows[0]))
		},
	}
}

func triangle(o *operation) []*graph.Tensor {
	if x := o.tensor("self"); !x.NeedsGrad {
		return one(o.Triu(x))
	}
	return nil
}

// makers are functions whose results depend on no tensor's elements.
var makers = []string{
	"arange", "zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "rand", "randn", "rand_like", "randn_like",
	"randint", "scalar_tensor", "tril_indices", "eye", "linspace", "bernoulli", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or",
	"bitwise_not", "isnan", "isinf", "argmax", "argmin", "argsort", "one_hot", "all", "any", "__and__", "__or__",
}

// tracedMakers allocate what they say they make, and keep nothing.
func tracedMakers() map[string]tracedOp {
	ops := map[string]tracedOp{}
	for _, name := range makers {
		ops[name] = func(o *operation) []*graph.Tensor { return o.Made(o.rule(), o.tensors(), o.results()) }
	}
	return ops
}
