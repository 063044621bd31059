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
	"relu":              (*graph.Frame).Relu,
}

func one(t *graph.Tensor) []*graph.Tensor { return []*graph.Tensor{t} }

func tensorOf(p *graph.Param) *graph.Tensor {
	if p == nil {
		return nil
	}
	return p.T()
}
