package graph

// Operations whose rule is not known.

// Result is a tensor that an operation is known to make.
type Result struct {
	Shape Dims
	DType DType
}

// OpaqueRule is the rule of an operation of which only the results are known:
// its backward makes a gradient for every input that wants one.
func OpaqueRule(name string) *Rule {
	return &Rule{Name: name, Source: "no rule is known: results are taken to be kept", Many: func(m *Machine, n *Node, _ []*Tensor) []*Tensor {
		g := make([]*Tensor, len(n.many))
		for i, e := range n.many {
			if e.wants() {
				g[i] = m.allocLike(e.meta, e.meta.DType)
			}
		}
		return g
	}}
}

// Opaque makes the results of such an operation of the tensors in, and keeps
// them where a gradient is wanted.
func (f *Frame) Opaque(r *Rule, in []*Tensor, results []Result) []*Tensor {
	n := f.record(r, in...)
	if n != nil {
		n.takeMany(in)
	}
	out := make([]*Tensor, len(results))
	for i, made := range results {
		out[i] = f.alloc(made.Shape, made.DType)
		if made.DType.Floating() {
			f.output(n, out[i], int16(i))
		}
		f.save(n, out[i])
	}
	f.consume(in...)
	for _, t := range out {
		f.produce(t)
	}
	return out
}

// Made is the results of an operation that records nothing: of integers and
// booleans, or of no tensor at all.
func (f *Frame) Made(r *Rule, in []*Tensor, results []Result) []*Tensor {
	f.rule = r
	out := make([]*Tensor, len(results))
	for i, made := range results {
		out[i] = f.alloc(made.Shape, made.DType)
	}
	f.consume(in...)
	for _, t := range out {
		f.produce(t)
	}
	return out
}
