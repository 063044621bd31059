package step

import (
	"slices"
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// muon is torch.optim.Muon: a momentum like the gradient and, one matrix at a
// time, five Newton-Schulz iterations in bf16 (torch/optim/_muon.py @v2.15.0).
// It takes matrices only; embeddings, the head and everything that is no matrix
// go to an AdamW that steps after it, as its documentation asks.
type muon struct {
	modules  []string // whose matrices it takes; none: all but embeddings and head
	momentum map[*graph.Param]*graph.Tensor
	rest     elementwise
}

var muonRule = &graph.Rule{Name: "muon", Source: "torch/optim/_muon.py"}

// muonSince is the first torch that has it.
var muonSince = spec.Version{2, 9}

const newtonSchulzSteps = 5

func newMuon(o *spec.Optimizer) Stepper {
	return &muon{modules: o.MuonModules, momentum: map[*graph.Param]*graph.Tensor{}, rest: adamForeach}
}

func (u *muon) Step(r *Run) {
	taken := u.matrices(r)
	var rest []*graph.Param
	for _, g := range r.groups() {
		var mine []*graph.Param
		for _, p := range g {
			if taken[p] {
				mine = append(mine, p)
			} else {
				rest = append(rest, p)
			}
		}
		u.step(r, mine)
	}
	for _, p := range rest {
		u.rest.init(r, p)
	}
	u.rest.update(r, &u.rest, rest)
}

// matrices are the parameters that Muon takes.
func (u *muon) matrices(r *Run) map[*graph.Param]bool {
	taken := map[*graph.Param]bool{}
	r.Net.Root.Walk(func(m *graph.Module) {
		for _, p := range m.Params {
			if p.Tied != nil || p.Shape.N != 2 {
				continue
			}
			if len(u.modules) > 0 {
				taken[p] = slices.Contains(u.modules, m.Path[strings.LastIndexByte(m.Path, '.')+1:])
			} else {
				taken[p] = m.Class != "Embedding" && m != r.Net.Head
			}
		}
	})
	return taken
}

func (u *muon) step(r *Run, ps []*graph.Param) {
	for _, p := range ps {
		if u.momentum[p] == nil {
			u.momentum[p] = stateLike(r, muonRule, p, p.Grad.DType)
		}
	}
	r.noGrad(func(f *graph.Frame) {
		for _, p := range ps {
			update := f.Let("update", f.Add(p.Grad, u.momentum[p])) // grad.lerp(buf)
			f.Let("update", f.Func(zeroPower, update)[0])
		}
	})
}

// zeroPower is _zeropower_via_newtonschulz. A tall matrix is worked on
// transposed; a product that is added to what lies out of order is not done by
// cublasLt.
func zeroPower(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	var x *graph.Tensor
	if in[0].DType == graph.BF16 {
		x = f.Let("ortho_grad", f.Clone(in[0]))
	} else {
		x = f.Let("ortho_grad", f.To(in[0], graph.BF16))
	}
	tall := x.Shape.D[0] > x.Shape.D[1]
	if tall {
		x = f.Let("ortho_grad", f.Transpose(x, 0, 1))
	}
	f.Drop(f.Clamp(f.Norm(x)))
	for range newtonSchulzSteps {
		gram := f.Let("gram_matrix", f.MatmulMatrix(x, f.Transpose(x, 0, 1)))
		update := f.Let("gram_update", f.Addmm(gram, gram, gram))
		if x.Contiguous() {
			x = f.Let("ortho_grad", f.Addmm(x, update, x))
		} else {
			x = f.Let("ortho_grad", f.MatmulMatrix(update, x))
		}
	}
	if tall {
		x = f.Transpose(x, 0, 1)
	}
	return []*graph.Tensor{x}
}
