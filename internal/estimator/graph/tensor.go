package graph

import "memplan/internal/units"

// DType is an element type inside the engine.
type DType uint8

// The element types the engine computes in.
const (
	F32 DType = iota
	F16
	BF16
	I64
	I32
	Bool
	U8
	I8
)

var (
	dtypeSizes = [...]int64{4, 2, 2, 8, 4, 1, 1, 1}
	dtypeNames = [...]string{"fp32", "fp16", "bf16", "int64", "int32", "bool", "uint8", "int8"}
)

// Size is the bytes of one element.
func (d DType) Size() int64 { return dtypeSizes[d] }

// Floating reports whether gradients can flow through the type.
func (d DType) Floating() bool { return d <= BF16 }

// String is the type's public name.
func (d DType) String() string { return dtypeNames[d] }

// promote is torch's type promotion of two tensors with dimensions: the wider
// floating type, and fp32 for fp16 with bf16.
func promote(a, b DType) DType {
	switch {
	case a == b, a.Floating() && !b.Floating():
		return a
	case b.Floating() && !a.Floating():
		return b
	case a.Floating():
		return F32
	}
	return min(a, b) // int64 before int32 before bool
}

// MaxDims is the most dimensions a tensor may have.
const MaxDims = 6

// Dims is a shape or a list of strides, in elements. It is a value: copying
// it is copying the shape.
type Dims struct {
	N int8
	D [MaxDims]int64
}

// D makes a shape.
func D(d ...int64) Dims {
	s := Dims{N: int8(len(d))}
	copy(s.D[:], d)
	return s
}

// Numel is the number of elements.
func (s Dims) Numel() int64 {
	n := int64(1)
	for _, d := range s.D[:s.N] {
		n *= d
	}
	return n
}

// At returns dimension i, counted from the end when negative.
func (s Dims) At(i int) int64 { return s.D[s.index(i)] }

func (s Dims) index(i int) int {
	if i < 0 {
		i += int(s.N)
	}
	return i
}

// With returns the shape with dimension i replaced.
func (s Dims) With(i int, v int64) Dims { s.D[s.index(i)] = v; return s }

// Slice returns the dimensions as a slice.
func (s Dims) Slice() []int64 { return append([]int64(nil), s.D[:s.N]...) }

// contiguous returns the strides of a fresh tensor of this shape.
func (s Dims) contiguous() Dims {
	st := Dims{N: s.N}
	step := int64(1)
	for i := int(s.N) - 1; i >= 0; i-- {
		st.D[i] = step
		step *= max(s.D[i], 1)
	}
	return st
}

// Tensor is a torch.Tensor without data: a shape over a storage, with its
// place in the autograd graph. Rules pass it by pointer and never change one
// that somebody else can see.
type Tensor struct {
	Shape, Stride Dims
	DType         DType
	NeedsGrad     bool // requires_grad

	storage storageID
	node    *Node // grad_fn; nil for a leaf
	nr      int16 // which output of node this is
	temp    bool  // its one reference belongs to the expression being evaluated
	view    bool  // made by a view function, so a second tensor shares the storage
	part    bool  // a view that nobody else holds, though others hold its storage
	leaf    *Leaf // gradient accumulator, for a leaf that needs one
}

// Numel is the number of elements.
func (t *Tensor) Numel() int64 { return t.Shape.Numel() }

// Bytes is the size of the tensor's elements, unrounded.
func (t *Tensor) Bytes() units.Bytes { return units.Bytes(t.Numel() * t.DType.Size()) }

// Contiguous reports whether the elements lie in order without gaps, by
// torch's rule (dimensions of size 1 do not count).
func (t *Tensor) Contiguous() bool {
	step := int64(1)
	for i := int(t.Shape.N) - 1; i >= 0; i-- {
		if t.Shape.D[i] == 1 {
			continue
		}
		if t.Stride.D[i] != step {
			return false
		}
		step *= t.Shape.D[i]
	}
	return true
}

// dense reports whether the elements fill memory without overlap in some
// order of dimensions (torch's is_non_overlapping_and_dense). Elementwise
// results keep the layout of a dense input.
func (t *Tensor) dense() bool {
	n := int(t.Shape.N)
	var seen [MaxDims]bool
	step := int64(1)
	for range n {
		found := false
		for i := n - 1; i >= 0; i-- {
			if !seen[i] && (t.Shape.D[i] == 1 || t.Stride.D[i] == step) {
				seen[i], found = true, true
				step *= t.Shape.D[i]
				break
			}
		}
		if !found {
			return false
		}
	}
	return true
}

type storageID = int32

// storage is a piece of device memory and the count of its owners: tensors
// that Python or C++ holds, saved variables, gradients, caches.
type storage struct {
	bytes int64
	refs  int32
	block int32 // its name in the events
	cat   Category
}

// Category is what bytes are for, in the words of the public breakdown.
type Category uint8

// The categories, in the order every page shows them.
const (
	Parameters Category = iota
	Gradients
	OptimizerState
	MasterWeights
	Adapters
	Activations
	Logits
	Temporaries
	Buckets
	Inputs
	ResidentModules
	CuBLASWorkspace
	ConvWorkspace
	Rounding
	Fragmentation
	Context
	Communication
	Other
)

// CategoryNames are the public names, by Category.
var CategoryNames = [...]string{
	"parameters", "gradients", "optimizer", "master_weights", "adapters", "activations", "logits", "temporaries",
	"buckets", "inputs", "resident_modules", "cublas_workspace", "conv_workspace", "rounding", "fragmentation", "context", "communication", "other",
}

// String is the category's public name.
func (c Category) String() string { return CategoryNames[c] }
