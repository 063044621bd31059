package graph

var (
	deepcopyRule       = &Rule{Name: "deepcopy", Source: "torch/_tensor.py:__deepcopy__; bitsandbytes/nn/modules.py:Params4bit.__deepcopy__"}
	dequantizeInt8Rule = &Rule{Name: "int8_vectorwise_dequant", Source: "bitsandbytes/functional.py:int8_vectorwise_dequant"}
)

// Dequantize is peft's dequantize_bnb_weight: the whole weight, from 4 bits in
// the type it was quantised from, from 8 bits in fp32, by two multiplications.
func (f *Frame) Dequantize(p *Param) *Tensor {
	if p.FourBit != nil {
		return f.produce(f.dequantize(p))
	}
	f.rule = dequantizeInt8Rule
	scaled := f.alloc(p.Shape, F32)
	whole := f.alloc(p.Shape, F32)
	f.release(scaled)
	return f.produce(whole)
}

// DeepcopyFourBit is copy.deepcopy of a Linear4bit: its weight with statistics,
// its bias (nil is none), and the statistics again, which the module refers to
// as well. The caller owns the copies.
func (m *Machine) DeepcopyFourBit(weight, bias *Param) []*Tensor {
	m.rule = deepcopyRule
	copies := m.copyStatistics(weight, nil)
	copies = append(copies, m.deepcopy(weight.Tensor.Shape, weight.Tensor.DType))
	if bias != nil {
		copies = append(copies, m.alloc(bias.Shape, bias.DType))
	}
	return m.copyStatistics(weight, copies)
}

// copyStatistics appends copies of what a QuantState holds.
func (m *Machine) copyStatistics(weight *Param, copies []*Tensor) []*Tensor {
	q := weight.FourBit
	blocks := divUp(weight.Numel(), q.BlockSize)
	codes := D(fourBitCodes)
	if !q.Nested {
		return append(copies, m.deepcopy(D(blocks), F32), m.deepcopy(codes, F32))
	}
	return append(copies, m.deepcopy(D(blocks), U8), m.deepcopy(codes, F32), m.deepcopy(D(), F32),
		m.deepcopy(D(divUp(blocks, nestedBlock)), F32), m.deepcopy(D(dynamicCodes), F32))
}

// deepcopy clones a storage, and makes an empty tensor to give it to.
func (m *Machine) deepcopy(shape Dims, d DType) *Tensor {
	t := m.alloc(shape, d)
	m.scratch(d.Size(), Temporaries)
	return t
}

// Adopt makes a tensor on the card a parameter's, in the type it has.
func (m *Machine) Adopt(p *Param, t *Tensor) {
	t.Shape, t.Stride = p.Shape, p.Shape.contiguous()
	t.NeedsGrad, t.leaf = p.Trained, &p.Leaf
	p.Tensor, p.DType = t, t.DType
	m.recat(t.storage, p.Category)
}
