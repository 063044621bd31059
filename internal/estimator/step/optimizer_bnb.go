package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// bitsAndBytes is an optimizer of bitsandbytes: one or two states a parameter,
// in fp32 or in 8 bits with a scale per block, made at its first step; updates
// have no temporaries (bitsandbytes/optim/optimizer.py @0.45.3 and @0.50.2).
type bitsAndBytes struct {
	states      int  // per parameter
	twoAverages bool // AdEMAMix: the first state is a pair, and its scales come before
	bits        int
	paged       bool
	qmaps       []*graph.Tensor // code books, on the card from the first 8-bit state on
	initialized map[*graph.Param]bool
}

var bnbRule = &graph.Rule{Name: "optimizer_state", Source: "bitsandbytes/optim/optimizer.py:init_state"}

const (
	bnbMin8Bit  = 4096 // parameters with fewer elements get 32-bit states
	bnbMinPaged = 1e5  // parameters with fewer elements are not paged
	bnbQMap     = 256  // entries of a code book, fp32
)

// smallBlocksSince is when 256 elements began to share a scale; before, 2048.
var smallBlocksSince = spec.Version{0, 44}

func bnbBlock(v spec.Version) int64 {
	if v == (spec.Version{}) || v.AtLeast(smallBlocksSince) {
		return 256
	}
	return 2048
}

func newBitsAndBytes(states int) func(*spec.Optimizer) Stepper {
	return func(o *spec.Optimizer) Stepper {
		return &bitsAndBytes{states: states, bits: o.StateBits, paged: o.Paged, initialized: map[*graph.Param]bool{}}
	}
}

// newAdEMAMix is AdEMAMix, whose first state holds two averages
// (bitsandbytes/optim/ademamix.py @0.50.2).
func newAdEMAMix(o *spec.Optimizer) Stepper {
	return &bitsAndBytes{states: 2, twoAverages: true, bits: o.StateBits, paged: o.Paged, initialized: map[*graph.Param]bool{}}
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
	state := func(d graph.DType, shape graph.Dims) *graph.Tensor {
		return r.M.Make(bnbRule, graph.OptimizerState, d, shape)
	}
	d := bnbStateType(r, p, b.bits)
	if d == graph.U8 {
		for len(b.qmaps) < b.states {
			b.qmaps = append(b.qmaps, state(graph.F32, graph.D(bnbQMap)))
		}
	}
	scales := func() {
		if d != graph.U8 {
			return
		}
		block := bnbBlock(r.M.Versions.BitsAndBytes)
		for i := range b.states {
			state(graph.F32, graph.D(b.averages(i), (p.Numel()+block-1)/block))
		}
	}
	if b.twoAverages {
		scales()
	}
	if !b.paged || p.Numel() < bnbMinPaged { // paged states are managed memory, outside the allocator
		for i := range b.states {
			state(d, graph.D(b.averages(i), p.Numel()))
		}
	}
	if !b.twoAverages {
		scales()
	}
}

// averages is the number of averages in one of the states.
func (b *bitsAndBytes) averages(state int) int64 {
	if b.twoAverages && state == 0 {
		return 2
	}
	return 1
}

// bnbStateType is the type of a parameter's states: small parameters, and
// those the Trainer says, have them in fp32 whatever was asked for.
func bnbStateType(r *Run, p *graph.Param, bits int) graph.DType {
	if bits == 8 && p.Numel() >= bnbMin8Bit && !r.Wide[p] {
		return graph.U8
	}
	return graph.F32
}
