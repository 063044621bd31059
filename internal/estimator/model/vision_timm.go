package model

import "memplan/internal/estimator/graph"

// Building blocks of timm's networks (timm 1.0.31, layers).

// seModule is SEModule: squeeze-and-excitation over plain means.
func seModule(d graph.DType, channels, reduced int64) *graph.Module {
	m := graph.NewModule("SEModule")
	fc1 := m.Child("fc1", conv2d(d, channels, reduced, convShape{kernel: 1, bias: true}))
	act := m.Child("act", reluInPlace())
	fc2 := m.Child("fc2", conv2d(d, reduced, channels, convShape{kernel: 1, bias: true}))
	gate := m.Child("gate", sigmoid())
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x_se", f.Mean(in[0], true, 2, 3))
		x = f.Let("x_se", f.Call1(fc1, x))
		x = f.Let("x_se", f.Call1(act, x))
		x = f.Let("x_se", f.Call1(fc2, x))
		return one(f.Mul(in[0], f.Call1(gate, x)))
	}
	return m
}

// selectAdaptivePool is SelectAdaptivePool2d of kind avg, which flattens.
func selectAdaptivePool() *graph.Module {
	m := graph.NewModule("SelectAdaptivePool2d")
	pool := m.Child("pool", adaptiveAvgPool2d(1))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(pool, in[0]))
		return one(f.Let("x", flatten(f, x)))
	}
	return m
}

// featuresThenHead is forward_features and forward_head, each a function.
func featuresThenHead(trunk []*graph.Module, head ...*graph.Module) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	run := func(modules []*graph.Module) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			x := in[0]
			for _, m := range modules {
				x = f.Let("x", f.Call1(m, x))
			}
			return one(x)
		}
	}
	features, classify := run(trunk), run(head)
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Func(features, in[0])[0])
		return one(f.Let("x", f.Func(classify, x)[0]))
	}
}

// timmMLP is Mlp.
func timmMLP(d graph.DType, width, inner int64) *graph.Module {
	m := graph.NewModule("Mlp")
	fc1 := m.Child("fc1", linear(d, width, inner, true))
	act := m.Child("act", gelu())
	fc2 := m.Child("fc2", linear(d, inner, width, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(fc1, in[0]))
		x = f.Let("x", f.Call1(act, x))
		return one(f.Let("x", f.Call1(fc2, x)))
	}
	return m
}

// timmAttention is Attention: one projection for queries, keys and values.
func timmAttention(b Build, width, heads int64) *graph.Module {
	m := graph.NewModule("Attention")
	qkvProj := m.Child("qkv", linear(b.DType, width, 3*width, true))
	proj := m.Child("proj", linear(b.DType, width, width, true))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		s := in[0].Shape.D
		qkv := f.Reshape(f.Call1(qkvProj, in[0]), s[0], s[1], 3, heads, width/heads)
		qkv = f.Let("qkv", f.Permute(qkv, 2, 0, 3, 1, 4))
		parts := f.Unbind(qkv)
		q, k, v := f.Let("q", parts[0]), f.Let("k", parts[1]), f.Let("v", parts[2])
		x := f.Let("x", timmAttend(f, b, q, k, v))
		x = f.Let("x", f.Reshape(f.Transpose(x, 1, 2), s[0], s[1], width))
		return one(f.Let("x", f.Call1(proj, x)))
	}
	return m
}

// timmAttend is the fused kernel, or the steps it stands for.
func timmAttend(f *graph.Frame, b Build, q, k, v *graph.Tensor) *graph.Tensor {
	if b.Attention.Kernel != "eager" {
		return f.ScaledDotProductAttention(q, k, v, nil, graph.Attention{Backend: b.Attention.Backend})
	}
	q = f.Let("q", f.MulScalar(q))
	attn := f.Let("attn", f.Matmul(q, f.Transpose(k, -2, -1)))
	attn = f.Let("attn", f.Softmax(attn, attn.DType))
	return f.Matmul(attn, v)
}
