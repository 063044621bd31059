package model

import (
	"math"

	"memplan/internal/estimator/graph"
)

// nonLocal is NonLocal2d or NonLocal3d of MMCV with pairs weighed by an embedded
// Gaussian (mmcv/cnn/bricks/non_local.py@v1.7.2).
type nonLocal struct {
	channels, reduction int64
	scaled, sampled     bool
}

// block adds to each place what it sees at every other. Dims is how many a place
// has.
func (n nonLocal) block(m mm, dims int8) *graph.Module {
	inner := max(n.channels/n.reduction, 1)
	b := graph.NewModule("NonLocal")
	kernel := repeated(dims, 1)
	project := func() *graph.Module { return convN(m.d, n.channels, inner, kernel, convShape{bias: true}) }
	g := project()
	back := graph.NewModule("ConvModule")
	back.Child("conv", convN(m.d, inner, n.channels, kernel, convShape{}))
	back.Child("bn", batchNorm(m.d, n.channels))
	chain(back)
	theta, phi := project(), project()
	if n.sampled {
		window := repeated(dims, 2)
		if dims == 3 {
			window.D[0] = 1
		}
		pool := func() *graph.Module {
			p := graph.Pool{Kernel: window, Stride: window, Padding: repeated(dims, 0)}
			return function("MaxPool", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { return f.MaxPool(x, p) })
		}
		g, phi = sequential(g, pool()), sequential(phi, pool())
	}
	b.Child("g", g)
	b.Child("conv_out", back)
	b.Child("theta", theta)
	b.Child("phi", phi)
	pairs := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // embedded_gaussian
		weight := f.Let("pairwise_weight", f.Matmul(in[0], in[1]))
		if n.scaled && math.Sqrt(float64(inner)) != 1 {
			weight = f.Let("pairwise_weight", f.MulScalarInPlace(weight))
		}
		return one(f.Let("pairwise_weight", f.Softmax(weight, weight.DType)))
	}
	b.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		shape := in[0].Shape
		samples := shape.D[0]
		gx := f.Let("g_x", f.Permute(f.View(f.Call1(g, in[0]), samples, inner, -1), 0, 2, 1))
		tx := f.Let("theta_x", f.Permute(f.View(f.Call1(theta, in[0]), samples, inner, -1), 0, 2, 1))
		px := f.Let("phi_x", f.View(f.Call1(phi, in[0]), samples, inner, -1))
		weight := f.Let("pairwise_weight", f.Func(pairs, tx, px)[0])
		y := f.Let("y", f.Matmul(weight, gx))
		shape.D[1] = inner
		y = f.Let("y", f.Reshape(f.Contiguous(f.Permute(y, 0, 2, 1)), shape.Slice()...))
		return one(f.Let("output", f.Add(in[0], f.Call1(back, y))))
	}
	return b
}
