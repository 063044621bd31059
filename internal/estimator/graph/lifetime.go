package graph

// The graph itself is an owner: what a node keeps besides its saved tensors,
// and the tensors whose gradients it accumulates, live until the last tensor
// that leads to it dies, which is the loss the script holds, not the end of
// backward.

// kept is what one graph owns.
type kept struct {
	tensors []*Tensor
	leaves  []*Leaf
	roots   int // storages of living tensors that lead to the graph
}

// keepWithGraph makes tensors live as long as the graph being recorded.
func (m *Machine) keepWithGraph(ts ...*Tensor) {
	for _, t := range ts {
		if t != nil {
			m.retain(t)
			m.asActivation(t)
			m.kept.tensors = append(m.kept.tensors, t)
		}
	}
}

// RequireGrad is t.requires_grad_(True) on a tensor computed from frozen
// parameters. The graph's accumulator holds the tensor, and so its gradient,
// as long as the graph lives.
func (f *Frame) RequireGrad(t *Tensor) {
	if !t.NeedsGrad && !f.noGrad {
		f.makeLeaf(t)
	}
}

// AsParameter is torch.nn.Parameter(t): another leaf over t's storage, which
// gets a gradient of its own and whose casts autocast keeps.
func (f *Frame) AsParameter(t *Tensor) *Tensor {
	p := f.Detach(t)
	p.view = false
	f.makeLeaf(p)
	return p
}

func (m *Machine) makeLeaf(t *Tensor) {
	t.NeedsGrad, t.leaf = true, &Leaf{Tensor: t}
	if !m.noGrad {
		m.keepWithGraph(t)
		m.kept.leaves = append(m.kept.leaves, t.leaf)
	}
}

// ownGraph runs body, which records a graph and drops it: what that graph owns
// dies with it.
func (m *Machine) ownGraph(body func()) {
	outer := m.kept
	m.kept = kept{}
	body()
	m.kept.release(m)
	m.kept = outer
}

func (k *kept) release(m *Machine) {
	m.releaseAll(k.tensors)
	for _, l := range k.leaves {
		if l.Grad != nil {
			m.release(l.Grad)
		}
	}
}

// rooted ties what the graph owns to the tensors that lead to it: the loss,
// and what it was scaled from.
func (m *Machine) rooted(root *Tensor) {
	if len(m.kept.tensors) == 0 {
		return
	}
	if m.roots == nil {
		m.roots = map[storageID]*kept{}
	}
	k := m.kept
	m.kept = kept{}
	for t := root; t != nil && m.storages[t.storage].refs > 0; {
		if m.roots[t.storage] != &k { // not scaled in place
			m.roots[t.storage] = &k
			k.roots++
		}
		if t.node == nil || t.node.rule != mulScalarRule && t.node.rule != mulRule { // scaled by a number, or by a scaler's tensor
			break
		}
		t = t.node.in[0].meta
	}
}

// DropGraph lets the graph of t go while t's storage lives: only a detached
// tensor is left of it.
func (m *Machine) DropGraph(t *Tensor) { m.unroot(t.storage) }

// unroot is told that a storage died, or that nothing leads from it any more.
func (m *Machine) unroot(id storageID) {
	k, ok := m.roots[id]
	if !ok {
		return
	}
	delete(m.roots, id)
	if k.roots--; k.roots > 0 {
		return
	}
	k.release(m)
}

// Discard drops the graph of t, of which nothing else may be part: no backward
// will run through it. The caller drops t next.
func (m *Machine) Discard(t *Tensor) {
	if t.node != nil {
		m.discard(t.node)
	}
}

// DiscardBeside drops what leads to t, which nobody will use, and to live does
// not. The caller drops t next.
func (m *Machine) DiscardBeside(t, live *Tensor) {
	if t.node == nil {
		return
	}
	used := map[*Node]bool{}
	var mark func(n *Node)
	mark = func(n *Node) {
		if n == nil || used[n] {
			return
		}
		used[n] = true
		n.eachEdge(func(_ int, e *edge) { mark(e.node) })
	}
	mark(live.node)
	var drop func(n *Node)
	drop = func(n *Node) {
		if n == nil || used[n] {
			return
		}
		used[n] = true
		m.forgetSaved(n)
		n.eachEdge(func(_ int, e *edge) { drop(e.node) })
	}
	drop(t.node)
}

// forgetSaved is told that a node died before any backward.
func (m *Machine) forgetSaved(n *Node) {
	if r := n.region; r != nil {
		r.lose(n)
		n.region = nil
	} else if !n.hosted {
		m.releaseAll(n.saved)
	}
	n.saved = nil
}

func (m *Machine) discard(n *Node) {
	m.forgetSaved(n)
	n.eachEdge(func(_ int, e *edge) {
		if e.node != nil {
			m.discard(e.node)
		}
	})
}

// Recorded is a mark in the graph: what Abandon goes back to.
func (m *Machine) Recorded() int32 { return m.seq }

// Abandon takes from the graph of t what was recorded since the mark, to which
// nothing else leads and which no backward will run through. What it had saved
// is the caller's, to be released by Forget when t dies.
func (m *Machine) Abandon(t *Tensor, mark int32) []*Tensor {
	if t.node == nil {
		return nil
	}
	return m.abandon(t.node, mark, nil)
}

func (m *Machine) abandon(n *Node, mark int32, held []*Tensor) []*Tensor {
	if n.seq <= mark {
		return held
	}
	if r := n.region; r != nil {
		r.lose(n)
		n.region = nil
	} else if !n.hosted {
		held = append(held, n.saved...)
	}
	n.saved = nil
	n.eachEdge(func(_ int, e *edge) {
		if e.node != nil {
			held = m.abandon(e.node, mark, held)
		}
	})
	return held
}
