package model

import "memplan/internal/estimator/graph"

// tracedOp runs an operation. It returns nil where it does not know the case at
// hand; nothing may have been allocated then.
type tracedOp func(o *operation) []*graph.Tensor

// tracedOps are ATen's operations, without overloads, by the rules of package
// graph.
var tracedOps = joined(tracedPointwise(), tracedArithmetic(), tracedViews(), tracedLayers(), tracedReductions(), tracedMakers())

func joined(tables ...map[string]tracedOp) map[string]tracedOp {
	all := map[string]tracedOp{}
	for _, t := range tables {
		for name, op := range t {
			all[name] = op
		}
	}
	return all
}

// unknown makes the results an operation says it makes. What has no floating
// result, or no tensor to depend on, keeps nothing in any case.
func (o *operation) unknown() []*graph.Tensor {
	results, in := o.results(), o.tensors()
	differentiable := false
	for _, r := range results {
		differentiable = differentiable || r.DType.Floating()
	}
	rule := graph.OpaqueRule(baseName(o.node.Op))
	if !differentiable || len(in) == 0 {
		return o.Made(rule, in, results)
	}
	o.program.opaque[o.at] = true
	return o.Opaque(rule, in, results)
}

// Functions of one tensor by what they keep (tools/autograd/derivatives.yaml).
var (
	keepNothing = []string{"rsub", "round", "floor", "ceil", "sign", "trunc", "frac", "deg2rad", "rad2deg"}
	keepInput   = []string{
		"leaky_relu", "elu", "celu", "selu", "softplus", "mish", "hardtanh", "relu6", "hardswish", "hardsigmoid", "erf", "log", "log2", "log10", "log1p", "abs",
		"sin", "cos", "gelu", "silu", "log_sigmoid", "threshold", "softshrink", "hardshrink", "square", "pow", "atan", "asin", "acos", "clamp", "clamp_min", "clamp_max", "sinc", "erfinv",
	}
	keepResult = []string{"sqrt", "exp", "exp2", "expm1", "tanh", "sigmoid", "reciprocal", "rsqrt", "tan"}
	// raisedByAutocast run in fp32 there (aten/src/ATen/autocast_mode.h).
	raisedByAutocast = map[string]bool{"pow": true, "exp": true, "expm1": true, "log": true, "log2": true, "log10": true, "log1p": true, "softplus": true, "reciprocal": true, "rsqrt": true, "asin": true, "acos": true, "tan": true, "erfinv": true}
	// resultInPlace keep their result where they overwrite their input, though
	// they keep their input elsewhere.
	resultInPlace = map[string]bool{"leaky_relu": true, "elu": true, "celu": true, "selu": true, "threshold": true}
)

// tracedPointwise are functions of one tensor, and in place.
func tracedPointwise() map[string]tracedOp {
	ops := map[string]tracedOp{
		"relu":  func(o *operation) []*graph.Tensor { return one(o.Relu(o.tensor("self"))) },
		"relu_": func(o *operation) []*graph.Tensor { return one(o.ReluInPlace(o.tensor("self"))) },
		"neg":   func(o *operation) []*graph.Tensor { return one(o.Neg(o.tensor("self"))) },
	}
	add := func(names []string, keeps graph.Keeps) {
		for _, name := range names {
			ops[name] = func(o *operation) []*graph.Tensor {
				x := o.tensor("self")
				if x == nil || len(o.tensors()) > 1 {
					return nil
				}
				return one(o.Pointwise(o.rule(), x, keeps, raisedByAutocast[name]))
			}
			keeps := keeps
			if resultInPlace[name] {
				keeps = graph.KeepsResult
			}
			ops[name+"_"] = func(o *operation) []*graph.Tensor {
				x := o.tensor("self")
				if x == nil || len(o.tensors()) > 1 {
					return nil
				}
				return one(o.PointwiseInPlace(o.rule(), x, keeps))
			}
		}
	}
	add(keepNothing, graph.KeepsNothing)
	add(keepInput, graph.KeepsInput)
	add(keepResult, graph.KeepsResult)
	return ops
}

// binaryOp is an operation of a tensor and of another, or of a number.
func binaryOp(tensors func(f *graph.Frame, a, b *graph.Tensor) *graph.Tensor, number func(f *graph.Frame, x *graph.Tensor) *graph.Tensor) tracedOp {
	return func(o *operation) []*graph.Tensor {
		a, b := o.tensor("self"), o.tensor("other")
		switch {
		case a == nil && b == nil:
			return nil
		case a == nil:
			return one(number(o.Frame, b))
		case b == nil:
			return one(number(o.Frame, a))
		}
		return one(tensors(o.Frame, a, b))
	}
}

// tracedArithmetic are functions of two tensors.
func tracedArithmetic() map[string]tracedOp {
	scaled, shifted := (*graph.Frame).MulScalar, (*graph.Frame).AddScalar
	return map[string]tracedOp{
		"add":  binaryOp((*graph.Frame).Add, shifted),
		"sub":  binaryOp((*graph.Frame).Sub, shifted),
		"mul":  binaryOp((*graph.Frame).Mul, scaled),
		"div":  binaryOp((*graph.Frame).Divide, scaled),
		"add_": binaryOp((*graph.Frame).AddInPlace, (*graph.Frame).AddScalarInPlace),
		"sub_": binaryOp((*graph.Frame).SubInPlace, (*graph.Frame).AddScalarInPlace),
		"mul_": binaryOp((*graph.Frame).MulInPlace, (*graph.Frame).MulScalarInPlace),
		"div_": binaryOp((*graph.Frame).DivInPlace, (*graph.Frame).MulScalarInPlace),
		"where": func(o *operation) []*graph.Tensor {
			x, other := o.tensor("self"), o.tensor("other")
			if x == nil {
				x, other = other, nil
			}
			if x == nil {
				return nil
			}
			return one(o.WhereBoth(o.tensor("condition"), x, other))
		},
		"masked_fill": func(o *operation) []*graph.Tensor { return one(o.MaskedFill(o.tensor("self"), o.tensor("mask"))) },
		"matmul":      tracedMatmul("self", "other"),
		"mm":          tracedMatmul("self", "mat2"),
		"bmm":         func(o *operation) []*graph.Tensor { return one(o.Bmm(o.tensor("self"), o.tensor("mat2"))) },
		"addmm": func(o *operation) []*graph.Tensor {
			bias := o.tensor("self")
			if bias.Shape.N != 1 {
				return nil
			}
			return one(o.Addmm(bias, o.tensor("mat1"), o.tensor("mat2")))
		},
	}
}

// tracedMatmul is a product of matrices whose leading dimensions broadcast.
func tracedMatmul(left, right string) tracedOp {
	return func(o *operation) []*graph.Tensor {
		a, b := o.tensor(left), o.tensor(right)
		switch {
		case a.Shape.N < 2 || b.Shape.N < 2:
			return nil
		case b.Shape.N == 2:
			return one(o.MatmulMatrix(a, b))
		}
		return one(o.Matmul(a, b))
	}
}
