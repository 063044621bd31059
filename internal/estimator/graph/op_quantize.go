package graph

import (
	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/spec"
)

// Weights in 4 bits, as bitsandbytes keeps them: Params4bit, its QuantState and
// MatMul4Bit (bitsandbytes/functional.py, autograd/_functions.py,
// backends/cuda/ops.py @0.45.3 and @0.50.2).

// FourBit is how the weights of a model are stored in 4 bits: in blocks with a
// scale each. Weights share one, because the library makes some tables once.
type FourBit struct {
	BlockSize int64 // weights to a scale
	Nested    bool  // the scales are quantised too, to 8 bits with a scale for 256 of them
	Storage   DType // what the packed bytes are called: it moves no byte

	dynamic *Tensor // the table of the 8-bit type, made with the first weight
}

const (
	nestedBlock  = 256 // scales to a scale of scales
	fourBitCodes = 16  // values of a 4-bit type
	dynamicCodes = 256 // values of the 8-bit type that scales are quantised to
)

var (
	quantizeRule   = &Rule{Name: "quantize_4bit", Source: "bitsandbytes/functional.py:quantize_4bit"}
	dequantizeRule = &Rule{Name: "dequantize_4bit", Source: "bitsandbytes/functional.py:dequantize_4bit"}
	matmul4bitRule = &Rule{Name: "MatMul4Bit", Product: true, Source: "bitsandbytes/autograd/_functions.py:MatMul4Bit"}
	recastRule     = &Rule{Name: "to", Source: "torch/Tensor.data"}
)

// customOpsSince is when quantisation became custom ops of torch: scales are
// centred in a copy, and every weight has a table of its own for the nested
// type.
var customOpsSince = spec.Version{0, 46}

// fusedGEMMSince is when the product of few rows with a 4-bit weight got a
// kernel of its own, and its fallback an order of its own (measured: not in
// 0.45.3, in 0.50.2).
var fusedGEMMSince = spec.Version{0, 50}

// bytes is the size of n weights in 4 bits with their scales; tables of a
// fixed size are left out.
func (q *FourBit) bytes(n int64) int64 {
	blocks := divUp(n, q.BlockSize)
	if q.Nested {
		return (n+1)/2 + blocks + 4*divUp(blocks, nestedBlock)
	}
	return (n+1)/2 + 4*blocks
}

// quantize brings a weight to the card and quantises it there: the whole weight
// in its own type lives until the packed one is done (Params4bit._quantize).
func (m *Machine) quantize(p *Param) {
	q, kept := p.FourBit, Parameters
	if q.Nested {
		kept = Temporaries
	}
	whole := m.Make(quantizeRule, Temporaries, p.DType, p.Shape)
	scales := m.Make(quantizeRule, kept, F32, D(divUp(p.Numel(), q.BlockSize)))
	p.Tensor = m.Make(quantizeRule, Parameters, q.Storage, D((p.Numel()+1)/(2*q.Storage.Size()), 1))
	m.Make(quantizeRule, Parameters, F32, D(fourBitCodes))
	magnitudes := m.Make(quantizeRule, Temporaries, F32, D(fourBitCodes)) // data.abs().max()
	m.scratch(F32.Size(), Temporaries)
	m.release(magnitudes)
	if q.Nested {
		m.nestScales(q, scales)
	}
	m.release(whole)
}

// nestScales quantises the scales around their mean and lets them go.
func (m *Machine) nestScales(q *FourBit, scales *Tensor) {
	centred := scales
	m.Make(quantizeRule, Parameters, F32, D()) // offset
	m.reduceScratch(reductionOf(scales, [MaxDims]bool{}))
	ops := m.Versions.BitsAndBytes.AtLeast(customOpsSince)
	if ops {
		centred = m.Make(quantizeRule, Temporaries, F32, scales.Shape)
	}
	if q.dynamic == nil {
		q.dynamic = m.Make(quantizeRule, Parameters, F32, D(dynamicCodes))
	}
	m.Make(quantizeRule, Parameters, F32, D(divUp(scales.Numel(), nestedBlock)))
	m.Make(quantizeRule, Parameters, U8, scales.Shape)
	if ops {
		m.Make(quantizeRule, Parameters, F32, D(dynamicCodes))
		m.release(centred)
	}
	m.release(scales)
}

// dequantize gives the whole weight in the type it was quantised from, owned by
// the caller. Nested scales are restored first.
func (m *Machine) dequantize(p *Param) *Tensor {
	m.rule = dequantizeRule
	var scales *Tensor
	if p.FourBit.Nested {
		scales = m.alloc(D(divUp(p.Numel(), p.FourBit.BlockSize)), F32)
	}
	whole := m.alloc(p.Shape, p.DType)
	m.letGo(scales)
	return whole
}

// dequantizedTo is the whole weight in type d.
func (m *Machine) dequantizedTo(p *Param, d DType) *Tensor {
	whole := m.dequantize(p)
	if whole.DType == d {
		return whole
	}
	cast := m.alloc(p.Shape, d)
	m.release(whole)
	return cast
}

// MatMul4Bit is bitsandbytes.matmul_4bit: x times the transposed weight, which
// is dequantised for it, and again in backward. Nothing is kept but the weight;
// before inputDroppedSince the input too, as an attribute of the node, which lives
// as long as the graph.
func (f *Frame) MatMul4Bit(x *Tensor, w *Param, bias *Tensor) *Tensor {
	n := f.record(matmul4bitRule, x)
	if n != nil {
		n.apply = func(n *Node, dOut []*Tensor) Grads { return f.Machine.matmul4bitBackward(n, w, dOut[0]) }
		if f.Versions.BitsAndBytes.Before(inputDroppedSince) {
			f.keepWithGraph(x)
		}
	}
	var out *Tensor
	f.NoGrad(func() {
		switch {
		case f.Versions.BitsAndBytes.Before(fusedGEMMSince):
			whole := f.dequantizedTo(w, x.DType)
			out = f.Linear(x, whole, bias)
			f.release(whole)
		case f.fusedGEMM(x, w):
			f.rule = matmul4bitRule
			out = f.produce(f.alloc(x.Shape.With(-1, w.Shape.D[0]), x.DType))
			f.multiplies(x.DType, 1, x.Numel()/x.Shape.At(-1), x.Shape.At(-1), w.Shape.D[0])
		default:
			out = f.dequantLinear(x, w, bias)
		}
	})
	f.output(n, out, 0)
	return out
}

// inputDroppedSince is when MatMul4Bit stopped putting its input into ctx.tensors
// (bitsandbytes/autograd/_functions.py @0.43.1, @0.43.2).
var inputDroppedSince = spec.Version{0, 43, 2}

// dequantLinear is the product without a kernel of its own
// (_dequant_linear_fallback): scales are restored into one tensor and moved
// into another, and everything lives until it returns.
func (f *Frame) dequantLinear(x *Tensor, w *Param, bias *Tensor) *Tensor {
	f.rule = dequantizeRule
	var restored, scales *Tensor
	if w.FourBit.Nested {
		blocks := D(divUp(w.Numel(), w.FourBit.BlockSize))
		restored, scales = f.alloc(blocks, F32), f.alloc(blocks, F32)
	}
	whole := f.alloc(w.Shape, x.DType)
	out := f.Linear(x, whole, bias)
	f.letGo(whole, scales, restored)
	return out
}

// matmul4bitBackward is torch.matmul(grad_output, weight).
func (m *Machine) matmul4bitBackward(n *Node, w *Param, dOut *Tensor) Grads {
	whole := m.dequantizedTo(w, dOut.DType)
	m.rule = n.rule
	rows := m.reshaped(dOut, D(dOut.Numel()/dOut.Shape.At(-1), dOut.Shape.At(-1)))
	g := m.alloc(n.in[0].meta.Shape, dOut.DType)
	m.gemm()
	m.multiplies(dOut.DType, 1, rows.Shape.D[0], rows.Shape.D[1], w.Shape.D[1])
	m.letGo(rows, whole)
	return Grads{g}
}

// Recast is p.data = p.data.to(d): a copy on the card takes the parameter's
// place.
func (m *Machine) Recast(p *Param, d DType) {
	t := m.Make(recastRule, Temporaries, d, p.Shape)
	t.NeedsGrad, t.leaf = p.Trained, &p.Leaf
	m.release(p.Tensor)
	p.Tensor, p.DType = t, d
	m.recat(t.storage, p.Category)
}

// EmptyCache is torch.cuda.empty_cache().
func (m *Machine) EmptyCache() {
	m.events = append(m.events, allocator.Event{Kind: allocator.EmptyCache})
}
