package model

import "memplan/internal/estimator/graph"

// The torch.nn modules that every family is made of.

// linear is nn.Linear.
func linear(d graph.DType, in, out int64, bias bool) *graph.Module {
	m := graph.NewModule("Linear")
	w := m.Param("weight", d, out, in)
	var b *graph.Param
	if bias {
		b = m.Param("bias", d, out)
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.Linear(in[0], w.T(), tensorOf(b)))
	}
	return m
}

// embedding is nn.Embedding.
func embedding(d graph.DType, rows, width int64) *graph.Module {
	m := graph.NewModule("Embedding")
	w := m.Param("weight", d, rows, width)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.Embedding(in[0], w.T()))
	}
	return m
}

// layerNorm is nn.LayerNorm.
func layerNorm(d graph.DType, width int64) *graph.Module {
	m := graph.NewModule("LayerNorm")
	w, b := m.Param("weight", d, width), m.Param("bias", d, width)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.LayerNorm(in[0], w.T(), b.T()))
	}
	return m
}

// layerNormFor is nn.LayerNorm with or without a shift.
func layerNormFor(d graph.DType, width int64, bias bool) *graph.Module {
	if bias {
		return layerNorm(d, width)
	}
	m := graph.NewModule("LayerNorm")
	w := m.Param("weight", d, width)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.LayerNorm(in[0], w.T(), nil))
	}
	return m
}

// dropout is nn.Dropout.
func dropout(p float64) *graph.Module {
	m := graph.NewModule("Dropout")
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { return one(f.Dropout(in[0], p)) }
	return m
}

// activation is one of transformers' activation modules by its name in a
// config (transformers/activations.py:ACT2FN).
func activation(name string) *graph.Module {
	m := graph.NewModule("Activation")
	op := activations[name]
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { return one(op(f, in[0])) }
	return m
}

var activations = map[string]func(f *graph.Frame, x *graph.Tensor) *graph.Tensor{
	"silu":              (*graph.Frame).Silu,
	"swish":             (*graph.Frame).Silu,
	"gelu":              (*graph.Frame).Gelu,
	"gelu_pytorch_tanh": (*graph.Frame).Gelu,
	"gelu_new":          newGELU,
	"relu":              (*graph.Frame).Relu,
	"tanh":              (*graph.Frame).Tanh,
	"relu2":             squaredReLU,
}

// squaredReLU is ReLUSquaredActivation.
func squaredReLU(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
	return f.Pow(f.Let("relu_applied", f.Relu(x)))
}

// newGELU is NewGELUActivation: the tanh approximation, operation by operation.
func newGELU(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
	half := f.MulScalar(x)
	cube := f.MulScalar(f.Pow(x))
	return f.Mul(half, f.AddScalar(f.Tanh(f.MulScalar(f.Add(x, cube)))))
}

func one(t *graph.Tensor) []*graph.Tensor { return []*graph.Tensor{t} }

func tensorOf(p *graph.Param) *graph.Tensor {
	if p == nil {
		return nil
	}
	return p.T()
}
