package model

import "memplan/internal/estimator/graph"

// same hands the argument through.
func same(o *operation) []*graph.Tensor { return one(o.To(o.tensor("self"), o.tensor("self").DType)) }

// reshaped shows a tensor in the shape of the result, or copies it into that.
func reshaped(o *operation) []*graph.Tensor {
	return one(o.Reshape(o.tensor("self"), o.shape().Slice()...))
}

// tracedViews are functions that make views, copies and joins.
func tracedViews() map[string]tracedOp {
	parts := func(o *operation) []*graph.Tensor {
		x, dim := o.tensor("self"), int(o.int("dim", 0))
		var sizes []int64
		for _, r := range o.results() {
			sizes = append(sizes, r.Shape.At(dim))
		}
		return o.SplitSizes(x, dim, sizes...)
	}
	cast := func(o *operation) []*graph.Tensor {
		x := o.tensor("self")
		d := o.dtype("dtype", x.DType)
		if other := o.tensor("other"); other != nil {
			d = other.DType
		}
		if d == x.DType && o.flag("copy", false) {
			return one(o.Clone(x))
		}
		return one(o.To(x, d))
	}
	expand := func(o *operation) []*graph.Tensor { return one(o.Expand(o.tensor("self"), o.shape().Slice()...)) }
	swap := func(a, b string, i, j int64) tracedOp {
		return func(o *operation) []*graph.Tensor {
			return one(o.Transpose(o.tensor("self"), int(o.int(a, i)), int(o.int(b, j))))
		}
	}
	return map[string]tracedOp{
		"view": reshaped, "reshape": reshaped, "flatten": reshaped, "unflatten": reshaped, "view_as": reshaped, "reshape_as": reshaped, "_unsafe_view": reshaped,
		"squeeze": reshaped,
		"unsqueeze": func(o *operation) []*graph.Tensor {
			return one(o.Unsqueeze(o.tensor("self"), int(o.int("dim", 0))))
		},
		"transpose": swap("dim0", "dim1", 0, 1), "swapaxes": swap("axis0", "axis1", 0, 1), "swapdims": swap("dim0", "dim1", 0, 1),
		"t": swap("", "", -2, -1), "mT": swap("", "", -2, -1), "numpy_T": swap("", "", -2, -1),
		"permute": func(o *operation) []*graph.Tensor {
			x, dims := o.tensor("self"), o.ints("dims")
			for i, d := range dims {
				if d < 0 {
					dims[i] = d + int64(x.Shape.N)
				}
			}
			return one(o.Permute(x, dims...))
		},
		"expand": expand, "expand_as": expand,
		"slice": func(o *operation) []*graph.Tensor {
			x, dim := o.tensor("self"), int(o.int("dim", 0))
			size := o.shape().At(dim)
			if size == x.Shape.At(dim) {
				return one(o.SliceWhole(x, 1))
			}
			return one(o.Slice(x, dim, 0, size))
		},
		"narrow": func(o *operation) []*graph.Tensor {
			dim := int(o.int("dim", 0))
			return one(o.Slice(o.tensor("self"), dim, 0, o.shape().At(dim)))
		},
		"select": func(o *operation) []*graph.Tensor { return one(o.Select(o.tensor("self"), int(o.int("dim", 0)))) },
		"split":  parts, "split_with_sizes": parts, "chunk": parts,
		"unbind": func(o *operation) []*graph.Tensor { return o.UnbindAt(o.tensor("self"), int(o.int("dim", 0))) },
		"cat":    func(o *operation) []*graph.Tensor { return one(o.Cat(int(o.int("dim", 0)), o.list("tensors")...)) },
		"stack": func(o *operation) []*graph.Tensor {
			dim := int(o.int("dim", 0))
			var rows []*graph.Tensor
			for _, t := range o.list("tensors") {
				rows = append(rows, o.Unsqueeze(t, dim))
			}
			return one(o.Cat(dim, rows...))
		},
		"contiguous": func(o *operation) []*graph.Tensor { return one(o.Contiguous(o.tensor("self"))) },
		"clone":      func(o *operation) []*graph.Tensor { return one(o.Clone(o.tensor("self"))) },
		"to":         cast, "_to_copy": cast, "type_as": cast,
		"detach": func(o *operation) []*graph.Tensor { return one(o.Detach(o.tensor("self"))) },
		"alias":  same, "lift_fresh_copy": same, "detach_": same, "fill_": same, "zero_": same, "requires_grad_": same,
		"bernoulli_": same, "normal_": same, "uniform_": same, "random_": same, "exponential_": same, "trunc_normal_": same,
		"roll": func(o *operation) []*graph.Tensor { return one(o.Roll(o.tensor("self"))) },
		"pad":  padded, "constant_pad_nd": padded,
	}
}

// padded is F.pad with a number.
func padded(o *operation) []*graph.Tensor {
	if mode, ok := o.node.Args["mode"].(string); ok && mode != "constant" {
		return nil
	}
	return one(o.PadTo(o.tensor("self"), o.shape()))
}
