package graph

import (
	"iter"

	"memplan/internal/estimator/allocator"
)

// Repeated layers are alike, and what a layer does to memory does not depend on
// how many come before it. Of a long row of them five are run, the first three
// and the last two; the others are copies of the third with storages of their
// own, put between the third and the last but one, forward and backward. The
// copies are made only where the second and the third layer proved to do the
// same, event for event; otherwise every layer is run.

// executed is how many layers of a row are run: with fewer than two to copy,
// copying is not worth the proof.
const (
	executed  = 5
	template  = 2 // which of them stands for the others
	shortest  = executed + 2
	noTag     = int16(0)
	tagStride = int16(8)
)

// row is one loop over layers in the forward pass in hand.
type row struct {
	layers []*Module
	tag    int16 // of the first executed layer; the others follow
}

// bound is where in the events another layer begins to run.
type bound struct {
	at   int
	id   storageID
	tag  int16
	back bool
}

// RunEveryLayer makes the machine run every layer of a row. It is for hooks
// that act on each, and for proving that copies are exact.
func (m *Machine) RunEveryLayer() { m.everyLayer = true }

// Layers iterates over a row of layers that do the same, as
// "for layer in self.layers" does. The body calls the layer and binds its
// result.
func (f *Frame) Layers(layers []*Module) iter.Seq[*Module] {
	m := f.Machine
	if m.everyLayer || len(layers) < shortest || m.pass != Forward || m.tag != noTag {
		return func(yield func(*Module) bool) {
			for _, l := range layers {
				if !yield(l) {
					return
				}
			}
		}
	}
	r := row{layers: layers, tag: 1 + tagStride*int16(len(m.rows))}
	m.rows = append(m.rows, r)
	return func(yield func(*Module) bool) {
		n := len(layers)
		for k, i := range [executed]int{0, 1, 2, n - 2, n - 1} {
			m.enter(r.tag+int16(k), false)
			if !yield(layers[i]) {
				break
			}
		}
		m.enter(noTag, false)
	}
}

// enter says that the layer with a tag runs from here on.
func (m *Machine) enter(tag int16, back bool) {
	m.tag = tag
	if len(m.rows) > 0 {
		m.bounds = append(m.bounds, bound{len(m.events), storageID(len(m.storages)), tag, back})
	}
}

// Inexact reports that a row of layers turned out not to be copies of each
// other: the run must be written down again with RunEveryLayer.
func (m *Machine) Inexact() bool { return m.inexact }

// stretch is a row being filled in.
type stretch struct {
	*Machine
	row               row
	forward, backward [executed]stretchPart // by executed layer
	base              storageID             // of the copies
	each              storageID             // storages of one copy
}

// stretchPart is what one executed layer did in one pass.
type stretchPart struct {
	events []allocator.Event
	lo, hi storageID // storages it made
	seen   int
}

func (p *stretchPart) holds(block int32) bool { return block >= p.lo && block < p.hi }

// fillIn returns the events with the copies of every row put in.
func (m *Machine) fillIn(events []allocator.Event) []allocator.Event {
	rows, bounds := m.rows, m.bounds
	m.rows, m.bounds = nil, nil
	for _, r := range rows {
		s := &stretch{Machine: m, row: r}
		if !s.divide(events, bounds) || !s.alike() {
			m.inexact = true
			return events
		}
		s.makeStorages()
		events, bounds = s.emit(events, bounds)
		m.repeatWork(r.tag+template, s.copies())
		s.own()
	}
	return events
}

// parts iterates over the stretches between bounds.
func parts(events []allocator.Event, bounds []bound, f func(b bound, p stretchPart)) {
	for i, b := range bounds {
		p := stretchPart{lo: b.id, hi: 1 << 30}
		end := len(events)
		if i+1 < len(bounds) {
			end, p.hi = bounds[i+1].at, bounds[i+1].id
		}
		p.events = events[b.at:end]
		f(b, p)
	}
}

// layer returns which executed layer of the row a tag is of.
func (s *stretch) layer(tag int16) (int, bool) {
	k := int(tag - s.row.tag)
	return k, k >= 0 && k < executed
}

// divide finds what each executed layer did. It is false unless each ran once
// forward and, if there was a backward at all, once backward, one after the
// other.
func (s *stretch) divide(events []allocator.Event, bounds []bound) bool {
	next, ok := executed-1, true
	parts(events, bounds, func(b bound, p stretchPart) {
		k, mine := s.layer(b.tag)
		if !mine {
			return
		}
		side := &s.forward
		if b.back {
			side = &s.backward
			ok = ok && k == next
			next--
		}
		p.seen = side[k].seen + 1
		side[k] = p
	})
	for k := range executed {
		ok = ok && s.forward[k].seen == 1 && s.backward[k].seen == s.backward[0].seen
	}
	return ok && s.backward[0].seen <= 1
}

// place is where a storage was made, seen from a layer.
type place struct {
	back     bool
	distance int // in layers
	ordinal  int32
	outside  bool
}

// locate finds a storage from executed layer k: made by it, by a neighbour, or
// outside the row. It is false for one made by a layer further away.
func (s *stretch) locate(block int32, k int) (place, bool) {
	for d := -1; d <= 1; d++ {
		if p := &s.forward[k+d]; p.holds(block) {
			return place{distance: d, ordinal: block - p.lo}, true
		}
		if p := &s.backward[k+d]; p.seen > 0 && p.holds(block) {
			return place{back: true, distance: d, ordinal: block - p.lo}, true
		}
	}
	for i := range executed {
		if s.forward[i].holds(block) || s.backward[i].seen > 0 && s.backward[i].holds(block) {
			return place{}, false
		}
	}
	return place{ordinal: block, outside: true}, true
}

// alike compares the template with the layer before it, event for event.
func (s *stretch) alike() bool {
	return s.same(&s.forward[template-1], &s.forward[template]) && s.same(&s.backward[template-1], &s.backward[template]) && s.regular()
}

func (s *stretch) same(a, b *stretchPart) bool {
	if len(a.events) != len(b.events) || a.seen > 0 && a.hi-a.lo != b.hi-b.lo {
		return false
	}
	for i := range a.events {
		x, y := a.events[i], b.events[i]
		px, okx := s.locate(x.Block, template-1)
		py, oky := s.locate(y.Block, template)
		x.Block, y.Block = 0, 0
		if x != y || px != py || !okx || !oky {
			return false
		}
	}
	return true
}

// regular reports whether the layers' modules are numbered at equal distances,
// so that a copy's can be found.
func (s *stretch) regular() bool {
	step := s.step()
	for i, l := range s.row.layers {
		if l.index != s.row.layers[0].index+int32(i)*step {
			return false
		}
	}
	return true
}

func (s *stretch) step() int32 { return s.row.layers[1].index - s.row.layers[0].index }

// copies is the number of layers that are not run.
func (s *stretch) copies() int { return len(s.row.layers) - executed }

// first returns the first storage a layer of the row made in a pass, by its
// place among all layers.
func (s *stretch) first(layer int, back bool) storageID {
	side := &s.forward
	if back {
		side = &s.backward
	}
	n := len(s.row.layers)
	switch {
	case layer <= template:
		return side[layer].lo
	case layer >= n-2:
		return side[layer-n+executed].lo
	}
	id := s.base + storageID(layer-template-1)*s.each
	if back {
		id += s.forward[template].hi - s.forward[template].lo
	}
	return id
}

// makeStorages gives the copies storages of their own.
func (s *stretch) makeStorages() {
	f, b := &s.forward[template], &s.backward[template]
	s.base, s.each = storageID(len(s.storages)), f.hi-f.lo
	if b.seen > 0 {
		s.each += b.hi - b.lo
	}
	for c := range s.copies() {
		shift := int32(c+1) * s.step()
		s.copyStorages(f, shift)
		if b.seen > 0 {
			s.copyStorages(b, shift)
		}
	}
}

func (s *stretch) copyStorages(p *stretchPart, shift int32) {
	from := s.row.layers[template].index
	for id := p.lo; id < p.hi; id++ {
		o, st := s.made[id], s.storages[id]
		if o.Module >= from && o.Module < from+s.step() {
			o.Module += shift
		}
		if st.block != ghostBlock {
			st.block = storageID(len(s.storages))
		}
		st.refs = min(st.refs, 1)
		s.storages = append(s.storages, st)
		s.made = append(s.made, o)
	}
}

// mirrored is room for the events outside a row that its copies share.
const mirrored = 256

// emit writes the events anew with the copies in their places.
func (s *stretch) emit(events []allocator.Event, bounds []bound) ([]allocator.Event, []bound) {
	per := len(s.forward[template].events) + len(s.backward[template].events)
	out := s.memory.events.take(len(events) + per*s.copies() + mirrored)[:0]
	out = append(out, events[:bounds[0].at]...)
	var moved []bound
	n := len(s.row.layers)
	parts(events, bounds, func(b bound, p stretchPart) {
		k, mine := s.layer(b.tag)
		if mine && b.back && k == template {
			for layer := n - 3; layer > template; layer-- {
				out = s.copyOf(out, &s.backward[template], layer)
			}
		}
		b.at = len(out)
		moved = append(moved, b)
		switch {
		case !mine:
			out = s.mirror(out, p.events)
		case k > template: // what it takes from the layer before is the last copy's
			out = s.readdress(out, p.events, &s.forward[template], s.first(n-3, false))
		case k == template && b.back: // what it takes from the layer after is the first copy's
			at := len(out)
			out = s.readdress(out, p.events, &s.forward[template+1], s.first(template+1, false))
			if next := &s.backward[template+1]; next.seen > 0 {
				readdressed := out[at:]
				for i := range readdressed {
					if next.holds(readdressed[i].Block) {
						readdressed[i].Block += s.first(template+1, true) - next.lo
					}
				}
			}
		default:
			out = append(out, p.events...)
		}
		if mine && !b.back && k == template {
			for layer := template + 1; layer < n-2; layer++ {
				out = s.copyOf(out, &s.forward[template], layer)
			}
		}
	})
	return out, moved
}

// copyOf writes the template's events as those of another layer.
func (s *stretch) copyOf(out []allocator.Event, p *stretchPart, layer int) []allocator.Event {
	for _, e := range p.events {
		if at, _ := s.locate(e.Block, template); !at.outside {
			e.Block = s.first(layer+at.distance, at.back) + at.ordinal
		}
		out = append(out, e)
	}
	return out
}

// readdress copies events, with the storages of one part taken for others.
func (s *stretch) readdress(out, events []allocator.Event, p *stretchPart, to storageID) []allocator.Event {
	for _, e := range events {
		if p.holds(e.Block) {
			e.Block += to - p.lo
		}
		out = append(out, e)
	}
	return out
}

// mirror copies events outside the row: what happens to a storage of the
// template happens to those of the copies.
func (s *stretch) mirror(out, events []allocator.Event) []allocator.Event {
	for _, e := range events {
		out = append(out, e)
		if e.Kind == allocator.Mark {
			continue
		}
		for c, id := range s.twins(e.Block) {
			_ = c
			e.Block = id
			out = append(out, e)
		}
	}
	return out
}

// twins iterates over the copies' storages that stand for one of the template.
func (s *stretch) twins(block int32) iter.Seq2[int, storageID] {
	return func(yield func(int, storageID) bool) {
		f, b := &s.forward[template], &s.backward[template]
		var offset storageID
		switch {
		case f.holds(block):
			offset = block - f.lo
		case b.seen > 0 && b.holds(block):
			offset = block - b.lo + f.hi - f.lo
		default:
			return
		}
		for c := range s.copies() {
			if !yield(c, s.base+storageID(c)*s.each+offset) {
				return
			}
		}
	}
}

// own gives the copies' gradients to their parameters, and ties what else
// outlives the pass to the fate of the template's.
func (s *stretch) own() {
	owned := map[storageID]bool{}
	from := s.row.layers[template].Parameters()
	for c := range s.copies() {
		for i, p := range s.row.layers[template+1+c].Parameters() {
			g := from[i].Grad
			if g == nil {
				continue
			}
			for twin, id := range s.twins(g.storage) {
				if twin == c {
					owned[g.storage] = true
					p.Grad = s.twinOf(g, id)
				}
			}
		}
	}
	for _, side := range []*stretchPart{&s.forward[template], &s.backward[template]} {
		if side.seen == 0 {
			continue
		}
		for id := side.lo; id < side.hi; id++ {
			if st := &s.storages[id]; st.refs > 0 && !owned[id] {
				if s.mirrors == nil {
					s.mirrors = map[storageID][]storageID{}
				}
				for _, twin := range s.twins(id) {
					s.mirrors[id] = append(s.mirrors[id], twin)
				}
			}
		}
	}
}

func (s *stretch) twinOf(t *Tensor, id storageID) *Tensor {
	r := s.newTensor()
	*r = *t
	r.storage, r.temp = id, false
	return r
}

// freeMirrors frees the copies of a storage that was freed outside its row.
func (m *Machine) freeMirrors(id storageID) {
	for _, twin := range m.mirrors[id] {
		t := &m.storages[twin]
		t.refs = 0
		m.events = append(m.events, allocator.Event{Kind: allocator.Free, Block: t.block})
	}
	delete(m.mirrors, id)
}
