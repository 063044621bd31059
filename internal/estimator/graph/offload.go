package graph

// Saved tensors in host memory (torch/autograd/graph.py:save_on_cpu): a hook
// copies every tensor that a node saves, parameters too, and the copy comes back
// to the card when the node runs backward.

// toHost notes what a node saved; nothing of it is kept on the card for its sake.
func (m *Machine) toHost(n *Node, ts []*Tensor) {
	n.hosted = true
	for _, t := range ts {
		n.saved = append(n.saved, t)
		m.host += t.Numel() * t.DType.Size()
	}
	m.Host = max(m.Host, m.host)
}

// fromHost puts a node's saved tensors on the card again. They die when the node
// has run.
func (m *Machine) fromHost(n *Node) {
	for i, t := range n.saved {
		n.saved[i] = m.allocLike(t, t.DType)
		m.asActivation(n.saved[i])
		m.host -= t.Numel() * t.DType.Size()
	}
}
