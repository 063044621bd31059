package planner

import (
	"context"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// defaultCacheEntries is how many answers are kept in memory unless configured.
// An answer is some 100 KiB.
const defaultCacheEntries = 512

// Engine answers a job whose model is given by its configuration.
type Engine = func(spec.Job, spec.Device, spec.Coefficients) (*estimator.Estimate, error)

// Config is what a planner is made of. Only Catalog is needed.
type Config struct {
	Catalog      *catalog.Catalog
	Store        Store            // nil: nothing is kept
	Hub          Hub              // nil: models come from the catalogue or are pasted
	Devices      Devices          // nil: no card of this host is looked for
	Probes       []Probe          // the micro-benchmarks there are, in the order they run
	Prober       Prober           // nil: this process runs none of them
	Queue        Queue            // nil: none can be asked for
	Engine       Engine           // nil: estimator.Run
	Now          func() time.Time // nil: time.Now
	CacheEntries int              // answers kept in memory; 0 means 512, negative none
}

// Planner answers the use cases. It is safe for use by several goroutines.
type Planner struct {
	catalog *catalog.Catalog
	store   Store
	hub     Hub
	devices Devices
	probes  []Probe
	prober  Prober
	queue   Queue
	engine  Engine
	now     func() time.Time
	answers *lru.Cache[answerKey, *estimator.Estimate] // nil: switched off
	force   *force                                     // the calibrations in force
	by      string                                     // the calibration asked for in place of those: its id, or prior

	workspaces *sync.Pool // of *estimator.Workspace
}

// New returns a planner.
func New(c Config) *Planner {
	p := &Planner{
		catalog: c.Catalog, store: c.Store, hub: c.Hub, engine: c.Engine, now: c.Now, force: &force{},
		devices: c.Devices, probes: c.Probes, prober: c.Prober, queue: c.Queue,
	}
	p.workspaces = &sync.Pool{New: func() any { return new(estimator.Workspace) }}
	if p.engine == nil {
		p.engine = p.simulate
	}
	if p.now == nil {
		p.now = time.Now
	}
	if c.CacheEntries == 0 {
		c.CacheEntries = defaultCacheEntries
	}
	if c.CacheEntries > 0 {
		p.answers, _ = lru.New[answerKey, *estimator.Estimate](c.CacheEntries) // fails only on a size below 1
	}
	return p
}

// simulate is the engine with its working memory kept from one answer to the next.
// A workspace in which the engine panicked is not used again.
func (p *Planner) simulate(job spec.Job, device spec.Device, co spec.Coefficients) (*estimator.Estimate, error) {
	w := p.workspaces.Get().(*estimator.Workspace)
	est, err := w.Run(job, device, co)
	p.workspaces.Put(w)
	return est, err
}

// Estimate answers a job and keeps nothing. The answer may be shared with other
// callers: it must not be changed. Errors are fault.Fields for every wrong
// field, or of the kinds Unavailable and NotFound where a hub was asked.
func (p *Planner) Estimate(ctx context.Context, job spec.Job) (*estimator.Estimate, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	key, err := keyOf(job)
	if err != nil {
		return nil, err
	}
	inForce, err := p.inForce(ctx)
	if err != nil {
		return nil, err
	}
	answer := answerKey{key, inForce.key}
	if est, ok := p.cached(answer); ok {
		return est, nil
	}
	ready, err := p.prepare(ctx, job)
	if err != nil {
		return nil, err
	}
	est, err := p.run(ready)
	if err != nil {
		return nil, err
	}
	if !ready.fetched { // a hub's main branch may change
		p.remember(answer, est)
	}
	return est, nil
}

// ReadyCheck fails when the store does not answer; without a store it does not.
func (p *Planner) ReadyCheck(ctx context.Context) error {
	if p.store == nil {
		return nil
	}
	return p.store.ReadyCheck(ctx)
}

// Models returns up to limit models that fit the query, best first, of the
// catalogue and of the libraries whose models go by a name; all of them for an
// empty query and a limit of 0.
func (p *Planner) Models(query string, limit int) []catalog.Model {
	return p.catalog.Models(query, limit, libraryModels()...)
}

// GPUs returns the catalogue's cards.
func (p *Planner) GPUs() []catalog.GPU { return p.catalog.GPUs() }

// errNothingKept is the answer to saving without a store.
var errNothingKept = fault.New(fault.Unavailable, "nothing is kept here: no store is configured")
