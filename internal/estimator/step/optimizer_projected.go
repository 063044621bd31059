package step

import (
	"slices"
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// projectedAdam is AdamW on gradients projected to a few rows or columns: GaLore, by
// the gradient's singular vectors (galore_torch/adamw.py@1.0), and APOLLO, by
// random ones (apollo_torch/apollo.py@1.0.3), which scales the gradient itself.
// What is not projected comes first, in a group of its own.
type projectedAdam struct {
	rank    int64
	modules []string // that are projected; none: every linear layer but the head
	random  bool     // APOLLO
	every   int      // steps between projections
	steps   map[*graph.Param]int
	moments map[*graph.Param][2]*graph.Tensor
	basis   map[*graph.Param]*graph.Tensor
	limit   map[*graph.Param]*graph.Tensor // APOLLO's norm of the last scaled gradient
}

var (
	galoreRule = &graph.Rule{Name: "galore", Source: "galore_torch/adamw.py@1.0"}
	svdRule    = &graph.Rule{Name: "linalg_svd", Source: "aten/src/ATen/native/BatchLinearAlgebra.cpp:_linalg_svd_out"}
)

// The ranks and the gap that the packages' own examples and transformers take.
const (
	defaultLowRank  = 128
	defaultApollo   = 1
	defaultLowEvery = 200
)

func newProjected(random bool) func(*spec.Optimizer) Stepper {
	return func(o *spec.Optimizer) Stepper {
		l := &projectedAdam{
			steps: map[*graph.Param]int{},
			rank:  int64(o.Rank), modules: o.TargetModules, random: random, every: o.UpdateEvery,
			moments: map[*graph.Param][2]*graph.Tensor{}, basis: map[*graph.Param]*graph.Tensor{}, limit: map[*graph.Param]*graph.Tensor{},
		}
		if l.rank == 0 {
			l.rank = defaultLowRank
			if random {
				l.rank = defaultApollo
			}
		}
		if l.every == 0 {
			l.every = defaultLowEvery
		}
		return l
	}
}

func (l *projectedAdam) Step(r *Run) {
	projected := l.projected(r)
	r.noGrad(func(f *graph.Frame) {
		for _, low := range []bool{false, true} {
			for _, g := range r.groups() {
				for _, p := range g {
					if projected[p] == low {
						l.update(r, f, p, low)
					}
				}
			}
		}
	})
}

// projected are the matrices whose gradients are.
func (l *projectedAdam) projected(r *Run) map[*graph.Param]bool {
	in := map[*graph.Param]bool{}
	r.Net.Root.Walk(func(m *graph.Module) {
		for _, p := range m.Params {
			if p.Tied != nil || p.Shape.N != 2 {
				continue
			}
			if len(l.modules) > 0 && !slices.Contains(l.modules, "all-linear") {
				in[p] = slices.ContainsFunc(l.modules, func(name string) bool { return strings.Contains(m.Path, name) })
			} else {
				in[p] = m.Class != "Embedding" && m != r.Net.Head
			}
		}
	})
	return in
}

// update is the body of step for one parameter; its names live on to the next.
func (l *projectedAdam) update(r *Run, f *graph.Frame, p *graph.Param, low bool) {
	grad := f.Let("grad", p.Grad)
	if low {
		grad = f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			return []*graph.Tensor{l.project(r, f, p)}
		}, p.Grad)[0]
	}
	grad = f.Let("grad", grad)
	if _, ok := l.moments[p]; !ok {
		state := func() *graph.Tensor { return r.M.Make(galoreRule, graph.OptimizerState, grad.DType, grad.Shape) }
		first := state()
		l.moments[p] = [2]*graph.Tensor{first, state()}
	}
	m := l.moments[p]
	l.steps[p]++
	denom := f.Let("denom", f.Sqrt(m[1]))
	norm := f.Let("norm_grad", f.Div(m[0], denom))
	switch {
	case low && l.random:
		l.scale(r, f, p, grad, norm)
	case low:
		f.Let("norm_grad", f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			full := f.Let("full_rank_grad", product(f, in[0], l.basis[p], p))
			return []*graph.Tensor{f.MulScalar(full)}
		}, norm)[0])
	}
}

// tall reports whether the columns are projected: the longer side stays.
func tall(p *graph.Param) bool { return p.Shape.D[0] >= p.Shape.D[1] }

// product is the way back to the parameter's shape.
func product(f *graph.Frame, low, basis *graph.Tensor, p *graph.Param) *graph.Tensor {
	if tall(p) {
		return f.MatmulMatrix(low, basis)
	}
	return f.MatmulMatrix(basis, low)
}

// project is project(): the basis is found anew every so many steps.
func (l *projectedAdam) project(r *Run, f *graph.Frame, p *graph.Param) *graph.Tensor {
	if l.basis[p] == nil || l.steps[p]%l.every == 0 {
		find := l.singular
		if l.random {
			find = l.draw
		}
		fresh := f.Own(f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			return []*graph.Tensor{find(r, f, p)}
		}, p.Grad)[0])
		if old := l.basis[p]; old != nil {
			f.Forget(old)
		}
		r.M.Recat(fresh, graph.OptimizerState)
		l.basis[p] = fresh
	}
	basis := f.Transpose(l.basis[p], 0, 1)
	if tall(p) {
		return f.MatmulMatrix(p.Grad, basis)
	}
	return f.MatmulMatrix(basis, p.Grad)
}

// inSingle is the gradient in fp32, in which either basis is made.
func inSingle(f *graph.Frame, p *graph.Param) *graph.Tensor {
	if p.Grad.DType == graph.F32 {
		return p.Grad
	}
	return f.Let("matrix", f.To(p.Grad, graph.F32))
}

// draw is get_orthogonal_matrix of APOLLO: random numbers over the root of the
// rank, in the gradient's type.
func (l *projectedAdam) draw(_ *Run, f *graph.Frame, p *graph.Param) *graph.Tensor {
	inSingle(f, p)
	shape := []int64{p.Shape.D[0], l.rank}
	if tall(p) {
		shape = []int64{l.rank, p.Shape.D[1]}
	}
	proj := f.Let("proj", f.DivScalar(f.Empty(graph.F32, shape...)))
	if p.Grad.DType != graph.F32 {
		proj = f.Let("proj", f.To(proj, p.Grad.DType))
	}
	return proj
}

// singular is get_orthogonal_matrix of GaLore: a thin singular value
// decomposition of the gradient, which cusolver works out on a copy and with a
// workspace that is not counted here. Of an fp32 gradient the basis is a view
// that keeps all singular vectors.
func (l *projectedAdam) singular(r *Run, f *graph.Frame, p *graph.Param) *graph.Tensor {
	a := inSingle(f, p)
	rows, cols := p.Shape.D[0], p.Shape.D[1]
	k := min(rows, cols)
	rank := min(l.rank, k)
	made := func(name string, shape ...int64) *graph.Tensor {
		return f.Let(name, f.Give(r.M.Make(svdRule, graph.Temporaries, graph.F32, graph.D(shape...))))
	}
	u := made("U", rows, k)
	made("s", k)
	vh := made("Vh", k, cols)
	f.Drop(f.Clone(a))
	var basis *graph.Tensor
	if tall(p) {
		f.Let("A", f.MatmulMatrix(f.Slice(u, 1, 0, rank), f.Empty(graph.F32, rank, rank)))
		basis = f.Let("B", f.Slice(vh, 0, 0, rank))
	} else {
		basis = f.Let("A", f.Slice(u, 1, 0, rank))
		f.Let("B", f.MatmulMatrix(f.Empty(graph.F32, rank, rank), f.Slice(vh, 0, 0, rank)))
	}
	if p.Grad.DType != graph.F32 {
		return f.To(basis, p.Grad.DType)
	}
	return basis
}

// scale is steps 3 and 4 of APOLLO: the gradient times the growth of its
// channels, and a limit on the growth of its norm.
func (l *projectedAdam) scale(r *Run, f *graph.Frame, p *graph.Param, grad, norm *graph.Tensor) {
	dim := 0
	if p.Shape.D[0] >= p.Shape.D[1] {
		dim = -1
	}
	top := f.NormDim(norm, dim)
	factor := f.Let("grad_scaling_factor", f.Div(top, f.AddScalar(f.NormDim(grad, dim))))
	scaled := f.Let("scaled_grad", f.Mul(p.Grad, factor))
	last := l.limit[p]
	if last == nil {
		l.limit[p] = f.Own(f.Norm(scaled))
	} else {
		size := f.Let("scaled_grad_norm", f.Norm(scaled))
		ratio := f.Div(size, f.AddScalar(last))
		f.Drop(f.Compare(f.Own(ratio), nil))
		limiter := f.Let("limiter", f.DivScalar(f.Give(ratio)))
		scaled = f.Let("scaled_grad", f.Div(scaled, limiter))
		l.limit[p] = f.Own(f.Div(size, limiter))
		f.Forget(last)
	}
	r.M.Recat(l.limit[p], graph.OptimizerState)
	f.Let("norm_grad", scaled)
}
