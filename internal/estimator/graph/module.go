package graph

import "memplan/internal/units"

// Module is an nn.Module: parameters, children, and a forward. Its fields may
// be rewritten before the run (an adapter replaces a linear's forward), so that
// model programs never know about adapters, quantisation or tensor parallelism.
type Module struct {
	Class     string // LlamaMLP
	Name      string // mlp
	Path      string // model.layers.0.mlp
	Params    []*Param
	Buffers   []*Param
	Children  []*Module
	Forward   func(f *Frame, in ...*Tensor) []*Tensor
	Eval      bool      // module.eval() was called
	Recompute Recompute // calls go through torch.utils.checkpoint
	// Beside returns the tensors a caller hands to Forward beside its inputs,
	// nil for none: as arguments, or bound into the call as keywords or inside
	// a tuple. A checkpointed call keeps them.
	Beside func() (args, bound []*Tensor)

	index int32
}

// Recompute says how a module's calls are checkpointed.
type Recompute uint8

// The ways of checkpointing.
const (
	KeepAll Recompute = iota
	NonReentrant
	Reentrant
)

// Param is a parameter or buffer of a module: a leaf with a storage.
type Param struct {
	Leaf
	Name     string // weight
	Shape    Dims
	DType    DType
	Trained  bool
	Category Category
	Tied     *Param // shares this parameter's storage and gradient
	// ChannelsLast says that an image's filter is laid out with channels last.
	ChannelsLast bool
	// FourBit is how the parameter is kept on the card, nil as it is. Shape and
	// DType are then those it had before.
	FourBit *FourBit
	Int8    bool // kept in 8 bits with a scale for each row
}

// Quantized reports whether the parameter is kept in few bits.
func (p *Param) Quantized() bool { return p.FourBit != nil || p.Int8 }

// NewModule returns a module of a class, to be given a name when it becomes
// somebody's child.
func NewModule(class string) *Module { return &Module{Class: class} }

// Child adds c under a name and returns it.
func (m *Module) Child(name string, c *Module) *Module {
	c.Name = name
	m.Children = append(m.Children, c)
	return c
}

// Param adds a trained parameter.
func (m *Module) Param(name string, d DType, shape ...int64) *Param {
	p := &Param{Name: name, Shape: D(shape...), DType: d, Trained: true, Category: Parameters}
	m.Params = append(m.Params, p)
	return p
}

// Buffer adds a buffer, which has no gradient.
func (m *Module) Buffer(name string, d DType, shape ...int64) *Param {
	p := &Param{Name: name, Shape: D(shape...), DType: d, Category: Parameters}
	m.Buffers = append(m.Buffers, p)
	return p
}

// Walk calls f for m and everything below it, parents first, in order of
// definition: the order of module.modules().
func (m *Module) Walk(f func(*Module)) {
	f(m)
	for _, c := range m.Children {
		c.Walk(f)
	}
}

// Parameters lists the distinct parameters in the order of
// module.parameters().
func (m *Module) Parameters() []*Param {
	var ps []*Param
	seen := map[*Param]bool{}
	m.Walk(func(x *Module) {
		for _, p := range x.Params {
			if p.Tied != nil {
				p = p.Tied
			}
			if !seen[p] {
				seen[p] = true
				ps = append(ps, p)
			}
		}
	})
	return ps
}

// Named sets the paths of m and everything below it.
func (m *Module) Named(path string) *Module {
	m.Path = path
	for _, c := range m.Children {
		p := c.Name
		if path != "" {
			p = path + "." + p
		}
		c.Named(p)
	}
	return m
}

// Numel is the number of elements.
func (p *Param) Numel() int64 { return p.Shape.Numel() }

// Bytes is the parameter's unrounded size.
func (p *Param) Bytes() units.Bytes {
	switch {
	case p.FourBit != nil:
		return units.Bytes(p.FourBit.bytes(p.Numel()))
	case p.Int8:
		return units.Bytes(p.Numel() + p.Shape.D[0]*F32.Size())
	}
	return units.Bytes(p.Numel() * p.DType.Size())
}

// T returns the parameter's tensor; the module must have been moved to the
// card.
func (p *Param) T() *Tensor {
	if p.Tied != nil {
		return p.Tied.T()
	}
	return p.Tensor
}

// ToDevice allocates every parameter and buffer of the tree in module order,
// as module.to("cuda") does: a module's children before its own.
func (m *Machine) ToDevice(root *Module) {
	m.ToDeviceIf(root, func(*Param) bool { return true })
}

// ToDeviceIf is ToDevice for the parameters and buffers that there are so far,
// which keep says.
func (m *Machine) ToDeviceIf(root *Module, keep func(*Param) bool) {
	m.Register(root)
	m.EachState(root, func(p *Param) {
		if keep(p) {
			m.place(p)
		}
	})
}

// Register makes the modules of the tree known, so that what they allocate
// bears their names.
func (m *Machine) Register(root *Module) {
	root.Walk(func(x *Module) {
		if x.index == 0 && x.Path != "" {
			x.index = m.addModule(x.Path)
		}
	})
}

// EachState calls move for every parameter and buffer in the order of
// nn.Module._apply: a module's children before its own.
func (m *Machine) EachState(x *Module, move func(*Param)) {
	for _, c := range x.Children {
		m.EachState(c, move)
	}
	for _, ps := range [][]*Param{x.Params, x.Buffers} {
		for _, p := range ps {
			m.module, m.rule = x.index, parameterRule
			move(p)
		}
	}
}

var parameterRule = &Rule{Name: "parameter", Source: "torch/nn/modules/module.py:_apply"}

func (m *Machine) place(p *Param) {
	if p.Tied != nil {
		p = p.Tied
	}
	if p.Tensor != nil {
		return
	}
	switch {
	case p.FourBit != nil:
		m.quantize(p)
		return
	case p.Int8:
		m.quantizeInt8(p)
		return
	}
	old := m.cat
	m.cat = p.Category
	p.Tensor = m.alloc(p.Shape, p.DType)
	m.cat = old
	if p.ChannelsLast {
		p.Tensor.ChannelsLast()
	}
	p.Tensor.NeedsGrad = p.Trained
	p.Tensor.leaf = &p.Leaf
}
