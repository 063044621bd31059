package graph

import (
	"maps"
	"slices"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/spec"
)

// Device is what kernels ask of the card: it decides kernels and the scratch
// of reductions.
type Device struct {
	Capability      spec.Version
	Multiprocessors int64
	ThreadsPerSM    int64
	Total           int64   // bytes of memory, 0 where they do not matter
	ConvWorkspace   float64 // bytes that cuDNN takes for each byte of a convolution's operands, where its kernels want another layout
}

// Machine executes operations as eager PyTorch would and writes down every
// allocation and free. It holds what torch holds in global state: the storages
// and their owners, grad mode, autocast and its cache, the library handles.
type Machine struct {
	Versions spec.Versions
	Device   Device
	// Evaluating is set while the model is in eval mode: nothing is dropped or
	// recomputed, and batch norms use their running statistics.
	Evaluating bool
	// OnHost is set while saved tensors go to host memory
	// (torch.autograd.graph.save_on_cpu); Host is the most they ever were, in
	// bytes.
	OnHost bool
	Host   int64
	host   int64

	memory   *Memory
	events   []allocator.Event
	storages []storage
	byBlock  map[int32]storageID // storages whose block was renamed
	made     []Origin            // what made each storage, for the answer's explanation

	temps   []*Tensor // unnamed results of expressions, not yet consumed
	frames  []*Frame
	depth   int
	tensors []Tensor // slab
	nodes   []Node   // slab

	noGrad   bool
	autocast autocast
	region   *region // innermost non-reentrant checkpoint being run
	ghost    bool    // a recomputation is past its end: allocations are not made
	kept     kept    // what the graph being recorded owns
	roots    map[storageID]*kept
	seq      int32
	due      []*Leaf // leaves whose gradient is complete
	pass     Pass
	stream   uint8 // CUDA stream of the next allocations
	// callbacks run at the end of the backward in hand.
	callbacks []func()

	linearFunction bool      // linear layers are DeepSpeed's function
	swaps          bool      // parameters are given other storages
	swapped        storageID // stands for the storage of a leaf that is saved

	everyLayer bool    // rows of layers are not shortened
	rows       []row   // those of the pass in hand
	bounds     []bound // where their layers begin, forward and backward
	tag        int16   // of the layer that runs
	mirrors    map[storageID][]storageID
	inexact    bool

	blas         blas
	convolved    bool     // there was a convolution
	convOperands int64    // the most that one's operands come to
	work         *Work    // what is computed, where somebody asked
	cat          Category // of the next allocations
	module       int32    // index of the module that runs
	rule         *Rule    // the op that runs
	paths        []string // module paths by index
	epoch        int32
}

// Origin is what made a storage: the module that ran, the op, and the tensor
// it was made for (nil for a workspace).
type Origin struct {
	Module int32
	Rule   *Rule
	Tensor *Tensor
}

// Pass says which pass over the model is running, for hooks.
type Pass uint8

// The passes.
const (
	Forward Pass = iota
	Recomputing
	Backward
)

// expected is how many events, storages, tensors a machine makes room for at
// once: what a model of some thirty layers needs for two steps.
const expected = 1 << 13

// NewMachine returns an empty card with memory of its own to work in.
func NewMachine(v spec.Versions, d Device) *Machine { return NewMachineIn(nil, v, d) }

// NewMachineIn returns an empty card that works in the given memory, or in its
// own where that is nil.
func NewMachineIn(memory *Memory, v spec.Versions, d Device) *Machine {
	if memory == nil {
		memory = &Memory{}
	}
	memory.reset()
	return &Machine{
		Versions: v, Device: d, cat: Temporaries, rule: noRule, paths: []string{""}, byBlock: map[int32]storageID{},
		memory: memory, events: memory.events.take(expected)[:0], storages: memory.storages, made: memory.made,
	}
}

// Close gives the memory back.
func (m *Machine) Close() { m.memory.storages, m.memory.made = m.storages, m.made }

// Events hands over the events recorded since the last call.
func (m *Machine) Events() []allocator.Event {
	n := len(m.events)
	e := m.events[:n:n]
	if len(m.rows) > 0 {
		e = m.fillIn(e)
	}
	if cap(m.events)-n < expected/4 {
		m.events = m.memory.events.take(expected)[:0]
	} else {
		m.events = m.events[n:]
	}
	return e
}

// Mark writes a mark with a code for the allocator's watcher.
func (m *Machine) Mark(code int32) {
	m.events = append(m.events, allocator.Event{Kind: allocator.Mark, Site: code})
}

// slab is how many tensors or nodes are taken from the memory at a time.
const slab = 256

// newTensor takes a tensor from the slab.
func (m *Machine) newTensor() *Tensor {
	if len(m.tensors) == 0 {
		m.tensors = m.memory.tensors.take(slab)
	}
	t := &m.tensors[0]
	m.tensors = m.tensors[1:]
	return t
}

// alloc makes a fresh contiguous tensor with one reference, owned by the
// caller. It has no place in the graph yet.
func (m *Machine) alloc(shape Dims, d DType) *Tensor {
	t := m.newTensor()
	t.Shape, t.Stride, t.DType = shape, shape.contiguous(), d
	t.storage = m.allocStorage(shape.Numel()*d.Size(), m.cat)
	m.made[t.storage].Tensor = t
	return t
}

// allocLike makes a fresh tensor of t's shape in type d, with t's layout less its
// gaps (torch.empty_like with preserve_format; infer_dense_strides).
func (m *Machine) allocLike(t *Tensor, d DType) *Tensor {
	r := m.alloc(t.Shape, d)
	r.Stride = denseIn(t)
	return r
}

func (m *Machine) allocStorage(bytes int64, cat Category) storageID {
	id := storageID(len(m.storages))
	m.storages = append(m.storages, storage{bytes: bytes, refs: 1, cat: cat, block: id})
	m.made = append(m.made, Origin{Module: m.module, Rule: m.rule})
	m.wrote(bytes, cat)
	if m.ghost {
		m.storages[id].block = ghostBlock
		return id
	}
	m.events = append(m.events, allocator.Event{Kind: allocator.Alloc, Stream: m.stream, Block: id, Bytes: bytes, Category: uint8(cat)})
	return id
}

// ghostBlock is the block of a storage that was never allocated.
const ghostBlock = -1

// scratch allocates bytes, runs nothing, and frees them: a workspace.
func (m *Machine) scratch(bytes int64, cat Category) {
	if bytes > 0 {
		m.releaseStorage(m.allocStorage(bytes, cat))
	}
}

func (m *Machine) retain(t *Tensor) { m.storages[t.storage].refs++ }

// release drops one reference to t's storage, freeing it when it was the last.
func (m *Machine) release(t *Tensor) { m.releaseStorage(t.storage) }

func (m *Machine) releaseStorage(id storageID) {
	s := &m.storages[id]
	s.refs--
	if s.refs == 0 {
		if s.block != ghostBlock {
			m.events = append(m.events, allocator.Event{Kind: allocator.Free, Block: s.block})
		}
		if len(m.roots) > 0 {
			m.unroot(id)
		}
		if len(m.mirrors) > 0 {
			m.freeMirrors(id)
		}
	} else if s.refs < 0 {
		panic("graph: storage of " + m.Describe(id) + " released twice")
	}
}

// recat says that a storage is now for something else.
func (m *Machine) recat(id storageID, c Category) {
	if s := &m.storages[id]; s.cat != c && s.block != ghostBlock {
		s.cat = c
		m.events = append(m.events, allocator.Event{Kind: allocator.Recat, Block: s.block, Category: uint8(c)})
	}
}

// Recat counts t's storage under c from now on.
func (m *Machine) Recat(t *Tensor, c Category) { m.recat(t.storage, c) }

// As runs body with new storages counted under c.
func (m *Machine) As(c Category, body func()) {
	old := m.cat
	m.cat = c
	body()
	m.cat = old
}

// addModule registers a module's path and returns its index.
func (m *Machine) addModule(path string) int32 {
	m.paths = append(m.paths, path)
	return int32(len(m.paths) - 1)
}

// Describe names the module and op that made a storage.
func (m *Machine) Describe(id int32) string {
	o := m.made[id]
	return m.paths[o.Module] + " " + o.Rule.Name
}

// alias returns another tensor over t's storage, holding a reference of its
// own: what returning a named tensor, or passing a gradient on, amounts to.
func (m *Machine) alias(t *Tensor) *Tensor {
	r := m.newTensor()
	t.part = false
	*r = *t
	r.temp = false
	m.retain(t)
	return r
}

// Make allocates a tensor for r in category c, owned by the caller until it
// gives it to Forget: optimizer state, buckets, temporaries of a step.
func (m *Machine) Make(r *Rule, c Category, d DType, shape Dims) *Tensor {
	m.rule = r
	old := m.cat
	m.cat = c
	t := m.alloc(shape, d)
	m.cat = old
	return t
}

// Forget gives back a reference taken by Make, Own or Keep.
func (m *Machine) Forget(t *Tensor) { m.release(t) }

// Keep takes one more reference to t for the caller, who gives it back with
// Forget.
func (m *Machine) Keep(t *Tensor) *Tensor { return m.alias(t) }

// Scratch takes bytes and gives them back at once: the workspace of a kernel.
func (m *Machine) Scratch(r *Rule, c Category, bytes int64) {
	m.rule = r
	m.scratch(bytes, c)
}

// InModule names the module that allocates from now on; nil is none.
func (m *Machine) InModule(x *Module) {
	m.module = 0
	if x != nil {
		m.module = x.index
	}
}

// Repeatable finds what a stretch of the program replaces: the storages from
// before it that it frees, paired with those of equal size it leaves behind. It
// returns false when the two do not pair up, so that running the stretch again
// would not leave the same state.
func (m *Machine) Repeatable(parts ...allocator.Part) ([]allocator.Carry, bool) {
	fresh, gone := map[int32]bool{}, map[int32]bool{}
	for _, p := range parts {
		for _, e := range p.Events {
			switch {
			case e.Kind == allocator.Alloc:
				fresh[e.Block] = true
			case e.Kind == allocator.Free && fresh[e.Block]:
				delete(fresh, e.Block)
			case e.Kind == allocator.Free:
				gone[e.Block] = true
			}
		}
		for _, c := range p.Carry { // what the part replaced goes by its old name again
			delete(fresh, c.From)
			if gone[c.To] {
				delete(gone, c.To)
			} else { // it was made in an earlier part, and is again
				fresh[c.To] = true
			}
		}
	}
	left, lost := slices.Sorted(maps.Keys(fresh)), slices.Sorted(maps.Keys(gone))
	if len(left) != len(lost) {
		return nil, false
	}
	carry := make([]allocator.Carry, len(left))
	for i := range left {
		if m.bytesOf(left[i]) != m.bytesOf(lost[i]) {
			return nil, false
		}
		carry[i] = allocator.Carry{From: left[i], To: lost[i]}
	}
	return carry, true
}

// Rename makes later events call storages by the names carry gives them.
func (m *Machine) Rename(carry []allocator.Carry) {
	for _, c := range carry {
		i := m.byBlock[c.From]
		if _, renamed := m.byBlock[c.From]; !renamed {
			i = c.From
		}
		delete(m.byBlock, c.From)
		m.storages[i].block = c.To
		m.byBlock[c.To] = i
		m.made[c.To] = m.made[c.From]
	}
}

func (m *Machine) bytesOf(block int32) int64 {
	if i, ok := m.byBlock[block]; ok {
		return m.storages[i].bytes
	}
	return m.storages[block].bytes
}

// Blocks is one more than the highest block the events name.
func (m *Machine) Blocks() int { return len(m.storages) }

// Origin says what made a block.
func (m *Machine) Origin(block int32) Origin { return m.made[block] }

// Path is the path of a module by its index.
func (m *Machine) Path(module int32) string { return m.paths[module] }
