package step

import "memplan/internal/estimator/graph"

// coordinator decides when parameters are gathered and let go. The first
// forward and backward are recorded; from the second on it knows which
// parameters come next and gathers them ahead
// (deepspeed/runtime/zero/partitioned_param_coordinator.py @v0.16.4).
type coordinator struct {
	z *zero3

	mode    traceMode
	learned bool // in the step in hand
	step    int  // hooks that ran since the forward began
	modules []*zeroModule
	uses    []paramUse // in the order of the recorded modules
	queue   []paramUse // of those, the ones not fetched ahead yet
	latest  map[*zeroParam]int
	flying  []*zeroParam // in flight, in the order they were asked for
	present int64        // elements gathered
	letGo   map[releaseKey]map[*zeroParam]bool
}

// traceMode says what is known of the order of modules.
type traceMode uint8

// The modes, in their order.
const (
	unknownOrder traceMode = iota
	recordingOrder
	knownOrder
)

// paramUse is a parameter's use by a module.
type paramUse struct {
	param *zeroParam
	step  int
}

// releaseKey is a module at a step: what is released there is decided once.
type releaseKey struct {
	module *zeroModule
	step   int
}

// gather is one collective in flight.
type gather struct {
	params []*zeroParam
	flat   *graph.Tensor // nil where it is one parameter's own
	left   int           // parameters nobody has waited for yet
	done   bool
}

// gatherStream is that of all-gathers under overlap_comm.
const gatherStream = 2

var (
	gather3Rule = &graph.Rule{Name: "all_gather_coalesced", Source: "deepspeed/runtime/zero/partition_parameters.py@v0.16.4"}
	sameRule    = &graph.Rule{Name: "assert_ints_same_as_other_ranks", Source: "deepspeed/runtime/zero/utils.py@v0.16.4"}
)

func newCoordinator(z *zero3) coordinator {
	return coordinator{z: z, latest: map[*zeroParam]int{}, letGo: map[releaseKey]map[*zeroParam]bool{}}
}

// resetStep begins a forward: what was recorded of the last one is compared
// over the ranks and made the order to expect.
func (c *coordinator) resetStep(m *graph.Machine) {
	for _, p := range c.flying {
		c.wait(m, p)
		c.drop(m, p)
	}
	c.flying = nil
	if c.mode != knownOrder {
		c.learned = true
		c.compare(m, len(c.modules))
	}
	switch c.mode {
	case unknownOrder:
		c.mode = recordingOrder
	case recordingOrder:
		for i, u := range c.modules {
			for _, p := range byID(u.params) {
				c.uses = append(c.uses, paramUse{p, i})
			}
		}
		c.compare(m, len(c.uses))
		c.compare(m, len(c.uses))
		c.mode = knownOrder
	}
	c.queue = c.uses
	clear(c.latest)
	c.step = 0
}

// compare sends a list of numbers to the other ranks.
func (c *coordinator) compare(m *graph.Machine, n int) {
	m.Scratch(sameRule, graph.Temporaries, int64(n)*graph.I64.Size())
}

// enter is fetch_sub_module: the module's parameters are gathered and waited
// for, then those of the modules after it are asked for.
func (c *coordinator) enter(m *graph.Machine, u *zeroModule) {
	if c.mode == recordingOrder {
		c.modules = append(c.modules, u)
	}
	c.gather(m, u.params)
	for _, p := range u.params {
		p.use(u)
		if p.handle != nil {
			c.onGatherStream(m, func() { c.wait(m, p) })
			c.flying = removed(c.flying, p)
		}
	}
	if c.mode == knownOrder {
		c.skip(u)
		c.prefetch(m)
	}
	c.step++
}

// skip takes the module's own parameters off the queue.
func (c *coordinator) skip(u *zeroModule) {
	left := 0
	for _, p := range u.params {
		if c.fetchedFor(p) < c.step {
			left++
		}
	}
	seen := map[*zeroParam]bool{}
	for len(c.queue) > 0 && len(seen) < left {
		next := c.queue[0]
		c.queue = c.queue[1:]
		c.latest[next.param] = next.step
		seen[next.param] = true
	}
}

// fetchedFor is the last use that a fetch of the parameter was for.
func (c *coordinator) fetchedFor(p *zeroParam) int {
	if at, ok := c.latest[p]; ok {
		return at
	}
	return -1
}

// prefetch gathers the next parameters, as many as the bucket and the limit of
// live ones allow.
func (c *coordinator) prefetch(m *graph.Machine) {
	most := min(int64(c.z.settings.MaxLiveParameters.Value)-c.present, int64(c.z.settings.PrefetchBucketSize.Value))
	if c.z.settings.PrefetchBucketSize.Value <= 0 {
		return
	}
	var next []*zeroParam
	numel := int64(0)
	for len(c.queue) > 0 && numel < most {
		use := c.queue[0]
		c.queue = c.queue[1:]
		c.latest[use.param] = max(c.fetchedFor(use.param), use.step)
		if use.param.status == partitioned && !contains(next, use.param) {
			next = append(next, use.param)
			numel += use.param.Numel()
		}
	}
	c.gather(m, next)
}

// gather is all_gather_coalesced of those that are not here: a single parameter
// is gathered in place, several in one flat tensor that is cut when the first
// of them is waited for.
func (c *coordinator) gather(m *graph.Machine, ps []*zeroParam) {
	var missing []*zeroParam
	for _, p := range ps {
		if p.status == partitioned {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return
	}
	missing = byID(missing)
	h := &gather{params: missing, left: len(missing)}
	numel := int64(0)
	for _, p := range missing {
		p.status, p.handle = inFlight, h
		numel += p.part
		c.present += p.Numel()
		c.flying = append(c.flying, p)
	}
	c.onGatherStream(m, func() {
		h.flat = m.Make(gather3Rule, graph.Buckets, missing[0].DType, graph.D(numel*c.z.ranks))
		forgetList(m, c.z.bringParts(m, missing))
		if len(missing) == 1 {
			m.Over(h.flat, missing[0].Param)
			m.Forget(h.flat)
		}
	})
}

func (c *coordinator) onGatherStream(m *graph.Machine, body func()) {
	if c.z.overlap {
		m.OnStream(gatherStream, body)
		return
	}
	body()
}

// wait is AllGatherCoalescedHandle.wait. The flat tensor lives until all of its
// parameters were waited for.
func (c *coordinator) wait(m *graph.Machine, p *zeroParam) {
	h := p.handle
	if !h.done {
		h.done = true
		for _, q := range h.params {
			if len(h.params) > 1 {
				m.Place(gather3Rule, q.Param, q.Numel())
			}
			q.status = available
		}
		m.UseOn(h.flat, gatherStream)
	}
	p.handle = nil
	if h.left--; h.left == 0 && len(h.params) > 1 {
		m.Forget(h.flat)
	}
}

// release is release_sub_module.
func (c *coordinator) release(m *graph.Machine, u *zeroModule) {
	var released map[*zeroParam]bool
	if c.mode == knownOrder {
		released = c.toRelease(u)
	}
	for _, p := range u.params {
		p.unuse(u)
		if released == nil || released[p] {
			c.drop(m, p)
		}
	}
}

// drop lets a gathered parameter go that no module uses.
func (c *coordinator) drop(m *graph.Machine, p *zeroParam) {
	if p.status == available && len(p.users) == 0 {
		c.z.free(m, p)
		c.present -= p.Numel()
	}
}

// toRelease is __params_to_release: not those that persist, that were fetched
// for a later use already, or that are used again soon.
func (c *coordinator) toRelease(u *zeroModule) map[*zeroParam]bool {
	key := releaseKey{u, c.step}
	if known, ok := c.letGo[key]; ok {
		return known
	}
	out := map[*zeroParam]bool{}
	for _, p := range u.params {
		if !p.persists && c.fetchedFor(p) <= c.step {
			out[p] = true
		}
	}
	near := int64(c.z.settings.MaxReuseDistance.Value)
	for i := c.step; i < len(c.modules) && near > 0 && len(out) > 0; i++ {
		for _, p := range c.modules[i].params {
			delete(out, p)
			near -= p.Numel()
		}
	}
	c.letGo[key] = out
	return out
}

// releaseAll is release_and_reset_all.
func (c *coordinator) releaseAll(m *graph.Machine) {
	for _, p := range c.z.params {
		if p.handle != nil {
			c.wait(m, p)
			c.flying = removed(c.flying, p)
		}
		p.users = nil
		c.drop(m, p)
	}
	c.present = 0
}

func (p *zeroParam) use(u *zeroModule) {
	for _, v := range p.users {
		if v == u {
			return
		}
	}
	p.users = append(p.users, u)
}

func (p *zeroParam) unuse(u *zeroModule) {
	for i, v := range p.users {
		if v == u {
			p.users = append(p.users[:i:i], p.users[i+1:]...)
			return
		}
	}
}
