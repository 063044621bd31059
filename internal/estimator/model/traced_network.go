package model

import (
	"slices"
	"strconv"

	"memplan/internal/estimator/graph"
)

// Losses that may be put on a graph's first result.
const (
	ClassLoss   = "cross_entropy"
	SumLoss     = "sum"
	squaredLoss = "mse"
)

// network is the program as a model that a plain loop trains.
func (p *tracedProgram) network() *Network {
	p.root.Named("")
	n := &Network{
		Root: p.root.Module, Blocks: p.blocks(), Inputs: p.inputs, LossApart: true,
		Embeddings: p.firstLeaf(), Unruled: p.unruled,
	}
	if p.Loss == "" {
		n.AssumedLoss = p.loss()
	}
	n.Forward = func(f *graph.Frame, b Batch) Outputs {
		p.batch = b.Tensors[0].Shape.D[0]
		var in []*graph.Tensor
		for _, given := range p.trace.Inputs {
			in = append(in, b.Tensor(given.Name))
		}
		p.root.next = 0
		if p.loss() == "" { // the graph ends with it
			out := f.Call(p.root.Module, in...)
			return outputsOf(f, out[0], out[1:])
		}
		in = append(in, b.Tensor(Labels), b.Tensor(target))
		out := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			n := len(in) - 2
			out := f.Call(p.root.Module, in[:n]...)
			for i, t := range out {
				out[i] = f.Let("out"+strconv.Itoa(i), t)
			}
			return append(one(p.criterion(f, out[0], in[n], in[n+1])), out...)
		}, in...)
		return outputsOf(f, out[0], out[1:])
	}
	return n
}

// outputsOf are a loss and what the loop names beside it.
func outputsOf(f *graph.Frame, loss *graph.Tensor, named []*graph.Tensor) Outputs {
	out := Outputs{Loss: f.Own(loss)}
	for i, t := range named {
		if i == 0 {
			out.Logits = f.Own(t)
		} else {
			out.Others = append(out.Others, f.Own(t))
		}
	}
	return out
}

// result is the shape and type of the first output.
func (p *tracedProgram) result() (shape sizes, d typeName) {
	at, _ := p.lookUp(p.trace.Outputs[0])
	for i, n := range p.Nodes {
		if first := p.values[n.Name]; n.Op != "getitem" && at >= first && at < first+len(n.Out) {
			return p.Nodes[i].Out[at-first].Shape, p.Nodes[i].Out[at-first].DType
		}
	}
	return p.trace.Inputs[at].Shape, p.trace.Inputs[at].DType
}

// loss is what is put on the result: what the graph names, nothing where it ends
// with a scalar, the classes of what has some, else its sum.
func (p *tracedProgram) loss() string {
	shape, _ := p.result()
	switch {
	case p.Loss != "":
		return p.Loss
	case len(shape) == 0:
		return ""
	case len(shape) >= 2:
		return ClassLoss
	}
	return SumLoss
}

// labels is the shape of the classes that a result of scores is compared with:
// without the dimension of the scores, which is the last of two or three and
// else the second.
func labels(scores graph.Dims) graph.Dims {
	if scores.N <= 3 {
		scores.N--
		scores.D[scores.N] = 0
		return scores
	}
	return graph.D(append([]int64{scores.D[0]}, scores.Slice()[2:]...)...)
}

// criterion is the loss of a result.
func (p *tracedProgram) criterion(f *graph.Frame, out, classes, wanted *graph.Tensor) *graph.Tensor {
	switch p.loss() {
	case ClassLoss:
		if out.Shape.N == 3 {
			return f.CrossEntropy(f.View(out, -1, out.Shape.At(-1)), f.View(classes, -1))
		}
		return f.CrossEntropy(out, classes)
	case squaredLoss:
		return f.MSELoss(out, wanted)
	}
	return f.Total(out)
}

// inputs are those that the graph was recorded with, and what its result is
// compared with.
func (p *tracedProgram) inputs(s Sizes) []Input {
	var in []Input
	for _, given := range p.trace.Inputs {
		in = append(in, Input{Name: given.Name, DType: given.DType.of(s.Continuous), Shape: given.Shape.at(s.Batch)})
	}
	shape, _ := p.result()
	switch out := shape.at(s.Batch); p.loss() {
	case ClassLoss:
		in = append(in, Input{Name: Labels, DType: graph.I64, Shape: labels(out)})
	case squaredLoss:
		in = append(in, Input{Name: target, DType: s.Continuous, Shape: out})
	}
	return in
}

// firstLeaf is the first module that computes by itself: where hidden states
// begin.
func (p *tracedProgram) firstLeaf() *graph.Module {
	var first *graph.Module
	p.root.Walk(func(m *graph.Module) {
		if first == nil && len(m.Children) == 0 && len(m.Params) > 0 {
			first = m
		}
	})
	return first
}

// blocks are the repeated layers: of the rows of modules that are numbered from
// 0 and of one class with parts of its own, the one with the most parameters.
func (p *tracedProgram) blocks() []*graph.Module {
	var best []*graph.Module
	most := int64(0)
	p.root.Walk(func(m *graph.Module) {
		row := numberedParts(m)
		total := int64(0)
		for _, b := range row {
			for _, w := range b.Parameters() {
				total += w.Numel()
			}
		}
		if total > most {
			best, most = row, total
		}
	})
	return best
}

// numberedParts is the children of m where they are numbered and alike.
func numberedParts(m *graph.Module) []*graph.Module {
	if len(m.Children) < 2 {
		return nil
	}
	for i, c := range m.Children {
		if c.Name != strconv.Itoa(i) || c.Class != m.Children[0].Class || len(c.Children) == 0 {
			return nil
		}
	}
	return slices.Clone(m.Children)
}

// Unruled is an operation of a graph that no rule is known for, or whose rule
// makes something else than the graph says.
type Unruled struct {
	Op      string
	Times   int
	Bytes   int64 // of the results that are taken to be kept
	Differs bool  // there is a rule
}

// unruled lists such operations by name for a batch, as far as they have run
// where gradients could come to them.
func (p *tracedProgram) unruled(batch int64) []Unruled {
	found := map[string]Unruled{}
	for i, n := range p.Nodes {
		if !p.opaque[i] && !p.differs[i] {
			continue
		}
		u := found[n.Op]
		u.Op, u.Differs = n.Op, !p.opaque[i]
		u.Times++
		for _, out := range n.Out {
			u.Bytes += out.Shape.at(batch).Numel() * out.DType.of(p.build.DType).Size()
		}
		found[n.Op] = u
	}
	var all []Unruled
	for _, name := range sortedKeys(found) {
		all = append(all, found[name])
	}
	return all
}
