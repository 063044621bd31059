package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// torchAO is Adam or AdamW of torchao with states of 8 or 4 bits or in fp8, a
// scale for each block (torchao/optim/adam.py, subclass_8bit.py,
// subclass_4bit.py, subclass_fp8.py @0.18.0). Its update is compiled; what the
// compiler keeps in memory between its kernels depends on it, and is taken as
// the two moments in fp32, one parameter at a time.
type torchAO struct {
	bits  int
	fp8   bool
	known map[*graph.Param]bool
}

var torchAORule = &graph.Rule{Name: "adamw", Source: "torchao/optim/adam.py@0.18.0"}

const (
	aoMinimum   = 4096 // parameters with fewer elements keep states of their own type
	aoBlock     = 256
	aoBlock4Bit = 128
)

// fp8State is the type of states that are kept in 8-bit floating point.
const fp8State spec.DType = "fp8"

func newTorchAO(o *spec.Optimizer) Stepper {
	return &torchAO{bits: o.StateBits, fp8: o.StateDType == fp8State, known: map[*graph.Param]bool{}}
}

func (a *torchAO) Step(r *Run) {
	for _, g := range r.groups() {
		for _, p := range g {
			if !a.known[p] {
				a.known[p] = true
				a.buffer(r, p)
				a.buffer(r, p)
			}
			if !a.quantized(p) {
				continue
			}
			first := r.M.Make(torchAORule, graph.Temporaries, graph.F32, p.Shape)
			second := r.M.Make(torchAORule, graph.Temporaries, graph.F32, p.Shape)
			r.M.Forget(first)
			r.M.Forget(second)
		}
	}
}

func (a *torchAO) block() int64 {
	if a.bits == 4 {
		return aoBlock4Bit
	}
	return aoBlock
}

func (a *torchAO) quantized(p *graph.Param) bool {
	return p.Numel() >= aoMinimum && p.Numel()%a.block() == 0
}

// buffer is _new_buffer: codes, scales, and of the integer forms a code book
// for each state.
func (a *torchAO) buffer(r *Run, p *graph.Param) {
	if !a.quantized(p) {
		stateLike(r, torchAORule, p, p.DType)
		return
	}
	state := func(d graph.DType, n int64) { r.M.Make(torchAORule, graph.OptimizerState, d, graph.D(n)) }
	n := p.Numel()
	if a.bits == 4 {
		state(graph.U8, n/2)
	} else {
		state(graph.U8, n)
	}
	state(graph.F32, n/a.block())
	switch {
	case a.bits == 4:
		state(graph.F32, 16)
	case !a.fp8:
		state(graph.F32, 256)
	}
}
