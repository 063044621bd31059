package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// adafactor is transformers.optimization.Adafactor without parameter scaling
// and relative steps, as the Trainer makes it: everything in fp32, one
// parameter at a time (transformers/optimization.py @v4.49.0 and @v5.24.0).
// The names of its step live from one parameter to the next.
type adafactor struct {
	state map[*graph.Param]*factored
}

// factored is the second moment: of a matrix its row and column means, of a
// vector itself; and the parameter's RMS.
type factored struct {
	row, column, whole, rms *graph.Tensor
}

var adafactorRule = &graph.Rule{Name: "adafactor", Source: "transformers/optimization.py:Adafactor.step"}

func newAdafactor(*spec.Optimizer) Stepper {
	return &adafactor{state: map[*graph.Param]*factored{}}
}

func (a *adafactor) Step(r *Run) {
	r.noGrad(func(f *graph.Frame) {
		for _, g := range r.groups() {
			for _, p := range g {
				a.update(r, f, p)
			}
		}
	})
}

func (a *adafactor) update(r *Run, f *graph.Frame, p *graph.Param) {
	grad := f.Let("grad", p.Grad)
	if grad.DType != graph.F32 {
		grad = f.Let("grad", f.To(grad, graph.F32))
	}
	s := a.init(r, p)
	data := f.Let("p_data_fp32", p.T())
	if p.DType != graph.F32 {
		data = f.Let("p_data_fp32", f.To(data, graph.F32))
	}
	rms := f.Own(rootMeanSquare(f, data))
	if s.rms != nil {
		f.Forget(s.rms)
	}
	s.rms = rms
	update := f.Let("update", f.AddScalar(f.Pow(grad)))
	if s.row != nil {
		f.Drop(f.MeanDim(update, -1))
		f.Drop(f.MeanDim(update, -2))
		update = f.Let("update", f.Func(approximate, s.row, s.column)[0])
	} else {
		update = f.Let("update", f.Rsqrt(s.whole))
	}
	f.Drop(f.DivScalar(rootMeanSquare(f, update)))
	f.Drop(f.Neg(update))
}

func (a *adafactor) init(r *Run, p *graph.Param) *factored {
	s := a.state[p]
	if s != nil {
		return s
	}
	s = &factored{}
	a.state[p] = s
	state := func(shape graph.Dims) *graph.Tensor {
		return r.M.Make(adafactorRule, graph.OptimizerState, graph.F32, shape)
	}
	if p.Shape.N < 2 {
		s.whole = state(p.Shape)
		return s
	}
	s.row = state(without(p.Shape, -1))
	s.column = state(without(p.Shape, -2))
	return s
}

// without is a shape less one dimension.
func without(s graph.Dims, dim int) graph.Dims {
	all := s.Slice()
	at := len(all) + dim
	return graph.D(append(all[:at], all[at+1:]...)...)
}

// rootMeanSquare is tensor.norm(2) / sqrt(numel).
func rootMeanSquare(f *graph.Frame, t *graph.Tensor) *graph.Tensor {
	return f.DivScalar(f.Norm(t))
}

// approximate is _approx_sq_grad: the outer product of the inverse roots of
// row and column means.
func approximate(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	row, column := in[0], in[1]
	rows := f.Let("r_factor", f.Unsqueeze(f.Div(row, f.MeanDim(row, -1)), -1))
	columns := f.Let("c_factor", f.Rsqrt(f.Unsqueeze(column, -2)))
	return []*graph.Tensor{f.Mul(rows, columns)}
}
