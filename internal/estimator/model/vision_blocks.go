package model

import (
	"math"

	"memplan/internal/estimator/graph"
)

// Building blocks of torchvision's convolutional networks
// (torchvision/ops/misc.py, ops/stochastic_depth.py, models/_utils.py).

// activationFunc makes a fresh activation module.
type activationFunc func() *graph.Module

func relu() *graph.Module     { return function("ReLU", (*graph.Frame).Relu) }
func silu() *graph.Module     { return function("SiLU", (*graph.Frame).Silu) }
func gelu() *graph.Module     { return function("GELU", (*graph.Frame).Gelu) }
func sigmoid() *graph.Module  { return function("Sigmoid", (*graph.Frame).Sigmoid) }
func hardSig() *graph.Module  { return function("Hardsigmoid", (*graph.Frame).Hardsigmoid) }
func siluOver() *graph.Module { return function("SiLU", (*graph.Frame).SiluInPlace) }
func hardOver() *graph.Module { return function("Hardswish", (*graph.Frame).HardswishInPlace) }

// convNormAct is Conv2dNormActivation: a convolution that keeps the size but
// for its stride, batch norm, and an activation in place, nil for none.
func convNormAct(d graph.DType, in, out int64, s convShape, act activationFunc) *graph.Module {
	s.padding = (s.kernel - 1) / 2 * max(s.dilation, 1)
	m := sequential(conv2d(d, in, out, s), batchNorm(d, out))
	if act != nil {
		m.Child("2", act())
	}
	m.Class = "Conv2dNormActivation"
	return m
}

// squeezeExcitation scales channels by what two convolutions make of their
// means.
func squeezeExcitation(d graph.DType, in, squeeze int64, act, scaleAct activationFunc) *graph.Module {
	m := graph.NewModule("SqueezeExcitation")
	pool := m.Child("avgpool", adaptiveAvgPool2d(1))
	fc1 := m.Child("fc1", conv2d(d, in, squeeze, convShape{kernel: 1, bias: true}))
	fc2 := m.Child("fc2", conv2d(d, squeeze, in, convShape{kernel: 1, bias: true}))
	activation, scaleActivation := m.Child("activation", act()), m.Child("scale_activation", scaleAct())
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		scale := f.Let("scale", f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // _scale
			scale := in[0]
			for _, m := range []*graph.Module{pool, fc1, activation, fc2} {
				scale = f.Let("scale", f.Call1(m, scale))
			}
			return one(f.Call1(scaleActivation, scale))
		}, in[0])[0])
		return one(f.Mul(scale, in[0]))
	}
	return m
}

// stochasticDepth is StochasticDepth by rows.
func stochasticDepth(p float64) *graph.Module {
	return function("StochasticDepth", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { return f.DropPath(x, p) })
}

func dropoutInPlace(p float64) *graph.Module {
	return function("Dropout", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { return f.DropoutInPlace(x, p) })
}

// makeDivisible rounds a number of channels to a multiple of divisor, down by
// at most a tenth (_make_divisible).
func makeDivisible(v float64, divisor int64) int64 {
	n := max(divisor, int64(v+float64(divisor)/2)/divisor*divisor)
	if float64(n) < 0.9*v {
		n += divisor
	}
	return n
}

// half rounds to the nearest whole number, halves to even, as Python does.
func half(v float64) int64 { return int64(math.RoundToEven(v)) }
