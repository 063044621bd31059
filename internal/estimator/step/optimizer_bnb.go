package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// bitsAndBytes is an optimizer of bitsandbytes: one or two states a parameter,
// in fp32 or in 8 bits with a scale per block, made at its first step; updates
// have no temporaries (bitsandbytes/optim/optimizer.py @0.45.3 and @0.50.2).
type bitsAndBytes struct {
	states      int // per parameter
	bits        int
	paged       bool
	qmaps       []*graph.Tensor // code books, on the card from the first 8-bit state on
	initialized map[*graph.Param]bool
}

var bnbRule = &graph.Rule{Name: "optimizer_state", Source: "bitsandbytes/optim/optimizer.py:init_state"}

const (
	bnbBlock    = 256  // elements that share a scale
	bnbMin8Bit  = 4096 // parameters with fewer elements get 32-bit states
	bnbMinPaged = 1e5  // parameters with fewer elements are not paged
	bnbQMap     = 256  // entries of a code book, fp32
)

func newBitsAndBytes(states int) func(*spec.Optimizer) Stepper {
	return func(o *spec.Optimizer) Stepper {
		return &bitsAndBytes{states: states, bits: o.StateBits, paged: o.Paged, initialized: map[*graph.Param]bool{}}
	}
}

func (b *bitsAndBytes) Step(r *Run) {
	for _, g := range r.groups() {
		for _, p := range g {
			if !b.initialized[p] {
				b.initialized[p] = true
				b.init(r, p)
			}
		}
	}
}

func (b *bitsAndBytes) init(r *Run, p *graph.Param) {
	make := func(d graph.DType, shape graph.Dims) *graph.Tensor {
		return r.M.Make(bnbRule, graph.OptimizerState, d, shape)
	}
	d := graph.F32
	if b.bits == 8 && p.Numel() >= bnbMin8Bit && !r.Wide[p] {
		d = graph.U8
		for len(b.qmaps) < b.states {
			b.qmaps = append(b.qmaps, make(graph.F32, graph.D(bnbQMap)))
		}
	}
	if !b.paged || p.Numel() < bnbMinPaged { // paged states are managed memory, outside the allocator
		for range b.states {
			make(d, p.Shape)
		}
	}
	if d == graph.U8 {
		for range b.states {
			make(graph.F32, graph.D((p.Numel()+bnbBlock-1)/bnbBlock))
		}
	}
}
