package graph

// Rule is one ATen function as the engine knows it: its name, where its
// behaviour was read, and its backward. The forward of an op is a method of
// Frame; its statements are its allocations, in order.
type Rule struct {
	Name   string // ATen's name
	Source string // where the behaviour was read
	// Product says that its kernels are products, which note their own work.
	Product bool
	// Backward allocates the gradients of the node's inputs in the order the
	// generated autograd code does. It borrows dOut and returns gradients it
	// hands over; a gradient passed through unchanged is returned by
	// m.alias. A nil gradient is torch's undefined tensor.
	Backward func(m *Machine, n *Node, dOut []*Tensor) Grads
	// Many is the Backward of an op of any number of inputs.
	Many func(m *Machine, n *Node, dOut []*Tensor) []*Tensor
}

var noRule = &Rule{Name: ""}

// maxInputs bounds the differentiable inputs of one node.
const maxInputs = 4

// Grads are the gradients of a node's inputs, by position.
type Grads [maxInputs]*Tensor

// edge points from a node to what produced one of its inputs.
type edge struct {
	node *Node
	leaf *Leaf
	nr   int16
	meta *Tensor // the input itself: shape and type its gradient must have
}

func (e edge) wants() bool { return e.meta != nil }

// Node is a recorded operation: a torch.autograd.Node.
type Node struct {
	rule   *Rule
	in     [maxInputs]edge
	many   []edge // inputs of an op with any number of them (cat, stack)
	saved  []*Tensor
	outs   [3]*Tensor // input buffers: gradients of the outputs, summed as they come
	more   []*Tensor  // those of further outputs
	nouts  int16
	seq    int32
	deps   int32
	epoch  int32
	module int32
	tag    int16 // of the layer it is part of
	stream uint8 // current when it was recorded: its gradients are summed there

	region   *region // the checkpointed region whose recomputation restores saved
	regionAt int32
	hosted   bool // saved is in host memory
	attrs    Attrs
	apply    func(n *Node, dOut []*Tensor) Grads // a Python autograd.Function's backward
	hook     func()                              // runs before it (Tensor.register_hook)
}

// Attrs are the few scalars an op keeps for its backward.
type Attrs struct {
	I, J  int64
	Flag  bool
	Shape Dims
	DType DType
}

// Leaf accumulates the gradient of a leaf tensor: a parameter, or an input
// somebody asked gradients for.
type Leaf struct {
	Tensor *Tensor
	Grad   *Tensor
	// Hook runs after the gradient was accumulated
	// (register_post_accumulate_grad_hook); wrappers such as DDP set it.
	Hook func(l *Leaf)
	// Passes says that the hook gives the gradient up at once, which stays a
	// temporary.
	Passes bool

	// Widens says that gradients are cast to GradDType before they are
	// accumulated (Tensor.grad_dtype).
	Widens    bool
	GradDType DType

	sum     *Tensor // input buffer
	deps    int32
	epoch   int32
	cast    *Tensor // held by the autocast cache
	castRun int32
}

// needs reports whether gradients are recorded for t now.
func (m *Machine) needs(t *Tensor) bool { return t != nil && t.NeedsGrad && !m.noGrad }

// edgeTo returns the edge to t's producer, or none when t needs no gradient.
func edgeTo(t *Tensor) edge {
	if t == nil || !t.NeedsGrad {
		return edge{}
	}
	return edge{node: t.node, leaf: t.leaf, nr: t.nr, meta: t}
}

// record makes the node of an op over its inputs, or nil when none of them
// needs a gradient. Ops save inputs before they allocate and outputs after,
// as generated autograd code does.
func (m *Machine) record(r *Rule, in ...*Tensor) *Node {
	m.rule = r
	m.reads(in...)
	if m.noGrad {
		return nil
	}
	any := false
	for _, t := range in {
		any = any || t != nil && t.NeedsGrad
	}
	if !any {
		return nil
	}
	if len(m.nodes) == 0 {
		m.nodes = m.memory.nodes.take(slab)
	}
	n := &m.nodes[0]
	m.nodes = m.nodes[1:]
	m.seq++
	n.rule, n.seq, n.module, n.tag, n.stream = r, m.seq, m.module, m.tag, m.stream
	if len(in) <= maxInputs {
		for i, t := range in {
			n.in[i] = edgeTo(t)
		}
		return n
	}
	n.takeMany(in)
	return n
}

// takeMany makes in the inputs of a node of any number of them.
func (n *Node) takeMany(in []*Tensor) {
	n.in = [maxInputs]edge{}
	n.many = make([]edge, len(in))
	for i, t := range in {
		n.many[i] = edgeTo(t)
	}
}

// save keeps tensors for n's backward: a torch.autograd.SavedVariable each.
// Inside a non-reentrant checkpoint they are not kept but counted, so that the
// recomputation knows which is which.
func (m *Machine) save(n *Node, ts ...*Tensor) {
	if n == nil {
		return
	}
	if m.region != nil {
		m.region.pack(m, n, ts)
		return
	}
	if m.OnHost {
		m.toHost(n, ts)
		return
	}
	for _, t := range ts {
		if m.swaps && t.leaf != nil && t.node == nil && !t.view {
			t = m.original(t)
		}
		m.retain(t)
		if s := &m.storages[t.storage]; s.cat == Temporaries {
			m.recat(t.storage, Activations)
		}
		n.saved = append(n.saved, t)
	}
}

// output makes t the nr-th output of n.
func (m *Machine) output(n *Node, t *Tensor, nr int16) {
	if n == nil {
		return
	}
	t.NeedsGrad = true
	t.node, t.nr = n, nr
	n.nouts = max(n.nouts, nr+1)
	for int(n.nouts) > len(n.outs)+len(n.more) {
		n.more = append(n.more, nil)
	}
}

// buffer is the input buffer of an output.
func (n *Node) buffer(nr int16) **Tensor {
	if int(nr) < len(n.outs) {
		return &n.outs[nr]
	}
	return &n.more[int(nr)-len(n.outs)]
}

// gradients are those of all outputs; nil where none came.
func (n *Node) gradients() []*Tensor {
	if int(n.nouts) <= len(n.outs) {
		return n.outs[:n.nouts]
	}
	return append(n.outs[:len(n.outs):len(n.outs)], n.more...)
}

// eachEdge calls f for every edge that leads somewhere.
func (n *Node) eachEdge(f func(i int, e *edge)) {
	if n.many != nil {
		for i := range n.many {
			if n.many[i].wants() {
				f(i, &n.many[i])
			}
		}
		return
	}
	for i := range n.in {
		if n.in[i].wants() {
			f(i, &n.in[i])
		}
	}
}

// wants reports whether input i needs its gradient
// (task_should_compute_output).
func (n *Node) wants(i int) bool {
	if n.many != nil {
		return n.many[i].wants()
	}
	return n.in[i].wants()
}
