package graph

import "memplan/internal/estimator/spec"

// Backward runs the autograd engine from a scalar loss, or from any tensor
// with the gradient given (nil makes ones_like). The caller keeps its
// references to both.
//
// The order is torch's (torch/csrc/autograd/engine.cpp@v2.6.0): of the nodes
// whose output gradients are complete the one recorded last runs next, a
// leaf's accumulation at once; a node's gradients die when it has run, then
// its saved tensors, then its results go to its inputs' buffers.
func (m *Machine) Backward(root, grad *Tensor) {
	owned := grad == nil
	if owned {
		m.rule = onesLike
		grad = m.allocLike(root, root.DType)
	}
	m.rooted(root)
	oldGrad, oldPass := m.noGrad, m.pass
	m.noGrad, m.pass = true, Backward
	m.run([]*Tensor{root}, []*Tensor{grad})
	m.callBack()
	if m.tag != noTag {
		m.enter(noTag, true)
	}
	m.noGrad, m.pass = oldGrad, oldPass
	if owned {
		m.release(grad)
	}
}

var onesLike = &Rule{Name: "ones_like", Source: "torch/autograd/__init__.py:_make_grads"}

// run executes one graph task over the given roots.
func (m *Machine) run(roots, grads []*Tensor) {
	m.epoch++
	epoch := m.epoch
	var queue ready
	for _, r := range roots {
		m.count(r.node, epoch)
	}
	for i, r := range roots { // the graph root counts as one more receiver
		e := edgeTo(r)
		if e.node != nil {
			e.node.deps++
		} else {
			e.leaf.await(epoch)
		}
		m.deliver(e, m.alias(grads[i]), &queue)
	}
	for len(queue) > 0 {
		m.evaluate(queue.pop(), &queue)
	}
}

// count sets the number of gradients each reachable node and leaf will get.
func (m *Machine) count(root *Node, epoch int32) {
	if root == nil || root.epoch == epoch {
		return
	}
	root.epoch, root.deps = epoch, 0
	stack := []*Node{root}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		n.eachEdge(func(_ int, e *edge) {
			switch {
			case e.node == nil:
				e.leaf.await(epoch)
			case e.node.epoch != epoch:
				e.node.epoch, e.node.deps = epoch, 1
				stack = append(stack, e.node)
			default:
				e.node.deps++
			}
		})
	}
}

// await counts one more gradient the leaf will get.
func (l *Leaf) await(epoch int32) {
	if l.epoch != epoch {
		l.epoch, l.deps = epoch, 0
	}
	l.deps++
}

// evaluate runs one node: evaluate_function and call_function.
func (m *Machine) evaluate(n *Node, queue *ready) {
	if n.tag != m.tag {
		m.enter(n.tag, true)
	}
	if n.hook != nil {
		n.hook()
	}
	m.module, m.rule = n.module, n.rule
	if n.rule == linearRule {
		m.foldAhead(n)
	}
	restored := m.restore(n)
	dOut := n.gradients()
	m.readsBack(n, dOut)
	var out Grads
	var many []*Tensor
	defined := false
	for _, g := range dOut {
		defined = defined || g != nil
	}
	switch {
	case !defined:
		many = make([]*Tensor, len(n.many))
	case n.apply != nil:
		out = n.apply(n, dOut)
	case n.many != nil:
		many = n.rule.Many(m, n, dOut)
	default:
		out = n.rule.Backward(m, n, dOut)
	}
	m.rule = n.rule
	if restored {
		m.releaseAll(n.saved)
	}
	n.eachEdge(func(i int, e *edge) {
		if n.many != nil {
			if many[i] != nil {
				many[i] = m.fit(many[i], e.meta)
			}
		} else if out[i] != nil {
			out[i] = m.fit(out[i], e.meta)
			if e.node == nil && (n.rule != linearRule || e.meta.Shape.N == 1) { // the transpose of whose weight is a node of its own, which comes later
				out[i] = m.widen(e.leaf, out[i])
			}
		}
	})
	for i, g := range dOut {
		if g != nil {
			m.release(g)
			*n.buffer(int16(i)) = nil
		}
	}
	m.forget(n, restored)
	n.eachEdge(func(i int, e *edge) {
		g := out[min(i, maxInputs-1)]
		if n.many != nil {
			g = many[i]
		}
		m.deliver(*e, g, queue)
	})
	if n.many == nil {
		m.dropUnwanted(n, &out)
	}
	m.settle()
}

// dropUnwanted releases the gradients that a kernel computed for inputs that
// need none.
func (m *Machine) dropUnwanted(n *Node, out *Grads) {
	for i, g := range out {
		if g != nil && !n.in[i].wants() {
			m.release(g)
		}
	}
}

// forget drops a node's saved tensors (release_variables).
func (m *Machine) forget(n *Node, restored bool) {
	if r := n.region; r != nil {
		n.region = nil
		m.leave(r, len(n.saved))
	} else if !restored {
		m.releaseAll(n.saved)
	}
	n.saved = nil
}

// deliver adds a gradient to the buffer an edge points at and, when it was the
// last one awaited, makes the receiver ready.
func (m *Machine) deliver(e edge, g *Tensor, queue *ready) {
	if e.node == nil {
		if g != nil {
			e.leaf.sum = m.addTo(e.leaf.sum, g)
		}
		if e.leaf.deps--; e.leaf.deps == 0 {
			m.due = append(m.due, e.leaf)
		}
		return
	}
	if g != nil {
		sum, stream := e.node.buffer(e.nr), m.stream
		m.stream = e.node.stream
		*sum = m.addTo(*sum, g)
		m.stream = stream
	}
	if e.node.deps--; e.node.deps == 0 {
		queue.push(e.node)
	}
}

// settle accumulates the leaves that became ready: they outrank every node.
func (m *Machine) settle() {
	for _, l := range m.due {
		m.accumulate(l)
	}
	m.due = m.due[:0]
}

// sumsInPlaceSince is when gradients began to be summed in place
// (torch/csrc/autograd/input_buffer.cpp).
var sumsInPlaceSince = spec.Version{1, 8}

func (m *Machine) sumsInPlace() bool {
	return m.Versions.Torch == spec.Version{} || m.Versions.Torch.AtLeast(sumsInPlaceSince)
}

// addTo sums a gradient into a buffer: in place when the buffer is the only
// owner of its storage and no view, else into a fresh tensor
// (torch/csrc/autograd/input_buffer.cpp@v2.6.0).
func (m *Machine) addTo(sum, g *Tensor) *Tensor {
	if sum == nil {
		return g
	}
	if m.sumsInPlace() && m.storages[sum.storage].refs == 1 && !sum.view && sum.dense() {
		m.touches(3 * int64(sum.Bytes()))
		m.release(g)
		return sum
	}
	r := m.allocLike(sum, promote(sum.DType, g.DType))
	m.release(sum)
	m.release(g)
	return r
}

// accumulate is AccumulateGrad: the first gradient is taken over when nobody
// else holds it and its layout is the leaf's, else copied; a later one is
// added in place.
func (m *Machine) accumulate(l *Leaf) {
	g := l.sum
	l.sum = nil
	if g == nil {
		return
	}
	g = m.widen(l, g)
	taken := false
	switch {
	case l.Grad != nil:
		m.touches(int64(2*l.Grad.Bytes() + g.Bytes()))
	case (m.storages[g.storage].refs == 1 || g.part) && sameLayout(g, l.Tensor):
		l.Grad, taken = g, true
	default:
		l.Grad = m.allocLike(l.Tensor, g.DType)
	}
	if !l.Passes {
		m.recat(l.Grad.storage, Gradients)
	}
	if l.Hook != nil {
		l.Hook(l)
	}
	if !taken { // its inputs outlive a node's hooks
		m.release(g)
	}
}

// widen casts a leaf's gradient to the type it accumulates in, if it has one.
func (m *Machine) widen(l *Leaf, g *Tensor) *Tensor {
	if !l.Widens || g.DType == l.GradDType {
		return g
	}
	wide := m.allocLike(g, l.GradDType)
	m.release(g)
	return wide
}

// sameLayout reports whether a gradient may become that of t as it is: laid out
// as t is, or, where t has gaps, in order
// (torch/csrc/autograd/utils/grad_layout_contract.h).
func sameLayout(g, t *Tensor) bool {
	if !t.dense() {
		return g.Contiguous()
	}
	for i := range g.Shape.D[:g.Shape.N] {
		if g.Shape.D[i] != 1 && g.Stride.D[i] != t.Stride.D[i] {
			return false
		}
	}
	return true
}

// fit brings a gradient to its input's shape and type: validate_outputs.
func (m *Machine) fit(g, meta *Tensor) *Tensor {
	if g.Shape != meta.Shape {
		r := m.sumTo(g, meta.Shape)
		m.release(g)
		g = r
	}
	if g.DType != meta.DType {
		r := m.allocLike(g, meta.DType)
		m.release(g)
		g = r
	}
	return g
}

// ready is the queue of nodes that can run, the one recorded last on top.
type ready []*Node

func (q *ready) push(n *Node) {
	h := append(*q, n)
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if h[parent].seq >= h[i].seq {
			break
		}
		h[parent], h[i] = h[i], h[parent]
		i = parent
	}
	*q = h
}

func (q *ready) pop() *Node {
	h := *q
	top := h[0]
	last := len(h) - 1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && h[child+1].seq > h[child].seq {
			child++
		}
		if h[i].seq >= h[child].seq {
			break
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
	*q = h
	return top
}
