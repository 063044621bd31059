package step

import (
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// adamMini is Adam_mini of adam-mini: a momentum like the parameter, and a
// second moment for each head of queries and keys, for each row of the other
// matrices, or one for all of a norm (adam_mini/adam_mini.py@1.1.1). A bias has
// Adam's two.
type adamMini struct {
	state map[*graph.Param]miniState
}

// miniState is a parameter's momentum and its second moments, over blocks of
// equal size.
type miniState struct {
	first, second *graph.Tensor
	blocks        miniBlocks
}

type miniBlocks uint8

const (
	perElement miniBlocks = iota // biases
	perHead                      // queries and keys
	perRow                       // other matrices
	perTensor                    // norms
)

var adamMiniRule = &graph.Rule{Name: "adam_mini", Source: "adam_mini/adam_mini.py@1.1.1"}

func newAdamMini(*spec.Optimizer) Stepper {
	return &adamMini{state: map[*graph.Param]miniState{}}
}

// The parts of names by which the package tells parameters apart.
var (
	miniHeads = []string{"k_proj", "q_proj", "wq", "wk", "query", "key"}
	miniRows  = []string{"embed", "embd", "wte", "lm_head", "output", "final_layer", "v_proj", "wv", "value", "mlp", "feed_forward", "linear", "attn.proj", "o_proj", "wo"}
)

func (a *adamMini) Step(r *Run) {
	names := map[*graph.Param]string{}
	r.Net.Root.Walk(func(m *graph.Module) {
		for _, p := range m.Params {
			if p.Tied == nil {
				names[p] = strings.ToLower(m.Path + "." + p.Name)
			}
		}
	})
	head := headNumel(r.Job.Model.Config)
	r.noGrad(func(f *graph.Frame) {
		for _, g := range r.groups() {
			for _, p := range g {
				a.update(r, f, p, names[p], head)
			}
		}
	})
}

// headNumel is dim * dim / n_heads, which the package is told; 0 for a config
// that has no heads.
func headNumel(config map[string]any) int64 {
	number := func(keys ...string) int64 {
		for _, k := range keys {
			if n, ok := config[k].(float64); ok {
				return int64(n)
			}
		}
		return 0
	}
	dim, heads := number("hidden_size", "n_embd", "dim"), number("num_attention_heads", "n_head", "n_heads")
	if heads == 0 {
		return 0
	}
	return dim * dim / heads
}

// blocksOf sorts a parameter by its name, as the package does.
func blocksOf(p *graph.Param, name string, head int64) miniBlocks {
	switch {
	case strings.Contains(name, "bias"):
		return perElement
	case containsAny(name, miniHeads) && head > 0 && p.Numel()%head == 0:
		return perHead
	case containsAny(name, miniRows) && p.Shape.N == 2:
		return perRow
	}
	return perTensor
}

// update is the body of step for one parameter; its names live on to the next.
func (a *adamMini) update(r *Run, f *graph.Frame, p *graph.Param, name string, head int64) {
	s, known := a.state[p]
	if !known {
		s.blocks = blocksOf(p, name, head)
		if s.blocks == perTensor {
			f.Let("block_numel", f.Empty(graph.F32))
		}
		s.first = stateLike(r, adamMiniRule, p, p.DType)
		var like *graph.Tensor // vmean is zeros like it
		if s.blocks == perTensor {
			like = f.Own(f.SumAll(f.Mul(p.T(), p.T())))
		}
		s.second = r.M.Make(adamMiniRule, graph.OptimizerState, p.DType, secondShape(p, s.blocks, head))
		if like != nil {
			f.Forget(like)
		}
		a.state[p] = s
	}
	if s.blocks == perElement {
		f.Let("h", f.DivScalar(f.Sqrt(s.second)))
		f.Del("stepsize") // a number here
		return
	}
	square := f.Mul(p.Grad, p.Grad)
	if s.blocks == perTensor {
		f.Let("tmp_lr", f.DivScalar(f.Let("tmp_lr", f.SumAll(square))))
	} else {
		blocks := s.second.Shape.D[0]
		f.Let("tmp_lr", f.MeanDim(f.View(square, blocks, p.Numel()/blocks), -1))
	}
	h := f.Let("h", f.DivScalar(f.Sqrt(s.second)))
	f.Let("stepsize", f.MulScalar(f.Reciprocal(h)))
	f.Let("update", f.Clone(s.first)) // times the step size
	f.Drop(f.Neg(s.first))
}

func secondShape(p *graph.Param, b miniBlocks, head int64) graph.Dims {
	switch b {
	case perHead:
		return graph.D(p.Numel()/head, 1)
	case perRow:
		return graph.D(p.Shape.D[0], 1)
	case perTensor:
		return graph.D()
	}
	return p.Shape
}

func containsAny(s string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}
