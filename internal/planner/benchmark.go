package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"memplan/internal/fault"
	"memplan/internal/wire"
)

// BenchStore keeps benchmarks, what their probes gave, and the cards that
// workers told of. Its errors are of package fault.
//
// A benchmark's row is the truth about it: the queue only wakes a worker up,
// which then claims the row. A worker that holds a row makes its beat grow; a
// beat that stands still tells the others that the worker is gone, whatever
// the hosts' clocks say.
type BenchStore interface {
	// SaveBenchmark keeps a new benchmark and returns its id; of a key used
	// before, for the same request, the id of then; for another fault.Conflict.
	SaveBenchmark(ctx context.Context, b Benchmark, key string) (id string, err error)
	// LoadBenchmark returns a benchmark with its results, or fault.NotFound.
	LoadBenchmark(ctx context.Context, id string) (Benchmark, error)
	// ListBenchmarks returns benchmarks without results, newest first. States
	// nil means all.
	ListBenchmarks(ctx context.Context, limit int, after *Position, states ...BenchState) ([]Benchmark, error)
	// ClaimBenchmark makes a queued benchmark run by a worker. fault.Conflict
	// where it is not queued, or its card runs another.
	ClaimBenchmark(ctx context.Context, id, worker string) error
	// BeatBenchmark shows that the worker lives and tells whether it is to stop.
	// fault.Conflict where the benchmark is no longer its own.
	BeatBenchmark(ctx context.Context, id, worker string, left time.Duration) (cancel bool, err error)
	// SaveProbe keeps the result of a probe of a benchmark, once.
	SaveProbe(ctx context.Context, id, worker string, r ProbeResult) error
	// FinishBenchmark ends a benchmark that the worker runs.
	FinishBenchmark(ctx context.Context, id, worker string, state BenchState, text string) error
	// RequeueBenchmark queues a benchmark again, if its beat is still the one
	// given, for another attempt. force drops results of probes that failed.
	RequeueBenchmark(ctx context.Context, id string, beat int64, again bool) error
	// CancelBenchmark ends a queued benchmark and asks a running one to stop.
	CancelBenchmark(ctx context.Context, id string) error
	// SaveDevices notes the cards of a worker in place of what was known of them.
	SaveDevices(ctx context.Context, all []Device) error
	// ListDevices returns every card that a worker told of.
	ListDevices(ctx context.Context) ([]Device, error)
}

// Queue wakes up a worker of a card for a benchmark. The same attempt may be
// asked for twice: it is woken once.
type Queue interface {
	Enqueue(ctx context.Context, device, benchmark string, attempt int) error
}

// Prober runs probes on a card of this host.
type Prober interface {
	// Run runs one probe. What goes wrong with it, running out of memory or
	// time included, is its result; the error is of a card that cannot be used
	// at all: fault.Conflict where it is busy.
	Run(ctx context.Context, d Device, probe string, o ProbeOptions) (ProbeResult, error)
}

// Probe is one micro-benchmark that can be asked for.
type Probe struct {
	Name    string        `json:"name"`
	Text    string        `json:"text"`
	Seconds time.Duration `json:"-"` // what it usually takes
}

// ProbeOptions is how a probe may treat the card.
type ProbeOptions struct {
	Force bool          // also where others use the card
	Limit time.Duration // the most time it may take
}

// BenchState is where a benchmark is.
type BenchState string

// The states of a benchmark.
const (
	Queued    BenchState = "queued"
	Running   BenchState = "running"
	Done      BenchState = "done"
	Failed    BenchState = "failed"
	Cancelled BenchState = "cancelled"
)

// Ended reports whether nothing more will happen by itself.
func (s BenchState) Ended() bool { return s == Done || s == Failed || s == Cancelled }

// Benchmark is a calibration of one card: a list of probes, and what they gave.
type Benchmark struct {
	ID         string        `json:"id"`
	State      BenchState    `json:"state" enum:"queued,running,done,failed,cancelled"`
	Device     string        `json:"device" doc:"The card's UUID."`
	Name       string        `json:"name" doc:"The card's name."`
	GPU        string        `json:"gpu,omitempty"`
	Host       string        `json:"host,omitempty"`
	Probes     []string      `json:"probes"`
	MaxSeconds int           `json:"max_seconds"`
	Force      bool          `json:"force"`
	Progress   BenchProgress `json:"progress"`
	Worker     string        `json:"worker,omitempty"`
	Attempt    int           `json:"attempt"`
	Stopping   bool          `json:"stopping,omitempty" doc:"Cancelled, and the probe that runs is being ended."`
	Error      string        `json:"error,omitempty"`
	CreatedAt  time.Time     `json:"created_at"`
	Results    []ProbeResult `json:"results"`

	Beat int64 `json:"-"` // grows while a worker is at it
}

// BenchProgress is how far a benchmark is.
type BenchProgress struct {
	Done        int `json:"done"`
	Total       int `json:"total"`
	SecondsLeft int `json:"seconds_left"`
}

// ProbeResult is what a probe gave. State is done, skipped (it has nothing to
// run on here), out_of_memory, timed_out or failed: each is a result.
type ProbeResult struct {
	Probe   string            `json:"probe"`
	State   string            `json:"state" enum:"done,skipped,out_of_memory,timed_out,failed"`
	Runs    []json.RawMessage `json:"runs" doc:"Measured jobs, as POST /runs takes them."`
	Figures []Figure          `json:"figures" doc:"Measured quantities that belong to no job."`
	Events  []int64           `json:"events,omitempty" doc:"Of a training step: every allocation, and every free as a negative number, in bytes."`
	Seconds float64           `json:"seconds"`
	Error   string            `json:"error,omitempty"`
}

// States of a ProbeResult.
const (
	ProbeDone     = "done"
	ProbeSkipped  = "skipped"
	ProbeOOM      = "out_of_memory"
	ProbeTimedOut = "timed_out"
	ProbeFailed   = "failed"
)

// Figure is one measured quantity.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// BenchRequest asks for a benchmark.
type BenchRequest struct {
	Device     string
	Probes     []string // nil: all
	MaxSeconds int      // 0: 900
	Force      bool
}

// Limits of a benchmark.
const (
	defaultBenchSeconds = 900
	maxBenchSeconds     = 4 * 60 * 60
)

// BenchProbes returns the probes that can be asked for, in their order.
func (p *Planner) BenchProbes() []Probe { return p.probes }

// errNoBenchmarks is the answer where nothing can be queued.
var errNoBenchmarks = fault.New(fault.Unavailable, "no benchmark runs here: no store or no queue is configured")

// asFault is errors.As for the type that carries sentences for users.
func asFault(err error, e **fault.Error) bool { return errors.As(err, e) }

// StartBenchmark queues a benchmark. A key makes it idempotent, as of Save.
func (p *Planner) StartBenchmark(ctx context.Context, r BenchRequest, key string) (Benchmark, error) {
	if p.store == nil || p.queue == nil {
		return Benchmark{}, errNoBenchmarks
	}
	device, err := p.checkBenchmark(ctx, &r)
	if err != nil {
		return Benchmark{}, err
	}
	b := Benchmark{
		ID: newIDOf(benchmarkPrefix), State: Queued, Device: device.ID, Name: device.Name, GPU: device.GPU, Host: device.Host,
		Probes: r.Probes, MaxSeconds: r.MaxSeconds, Force: r.Force, Attempt: 1, CreatedAt: p.now(),
	}
	id, err := p.store.SaveBenchmark(ctx, b, key)
	if err != nil {
		return Benchmark{}, err
	}
	if id == b.ID {
		if err := p.queue.Enqueue(ctx, b.Device, b.ID, b.Attempt); err != nil {
			return Benchmark{}, err
		}
	}
	return p.Benchmark(ctx, id)
}

// checkBenchmark fills the defaults of a request; every wrong field is reported.
func (p *Planner) checkBenchmark(ctx context.Context, r *BenchRequest) (Device, error) {
	var wrong fault.Fields
	device, err := p.deviceByID(ctx, r.Device)
	if err != nil && fault.KindOf(err) != fault.Invalid {
		return device, err
	}
	wrong = append(wrong, fault.FieldsOf(err)...)
	if device.Unsupported != "" {
		wrong.Add("device", r.Device, "an NVIDIA card: "+device.Unsupported, "")
	}
	if r.MaxSeconds == 0 {
		r.MaxSeconds = defaultBenchSeconds
	}
	if r.MaxSeconds < 1 || r.MaxSeconds > maxBenchSeconds {
		wrong.Add("max_seconds", r.MaxSeconds, fmt.Sprintf("1 to %d", maxBenchSeconds), strconv.Itoa(max(1, min(r.MaxSeconds, maxBenchSeconds))))
	}
	probes, bad := p.chooseProbes(r.Probes)
	r.Probes = probes
	return device, append(wrong, bad...).Err()
}

// chooseProbes puts the probes asked for into their order; none means all.
func (p *Planner) chooseProbes(asked []string) ([]string, fault.Fields) {
	var all []string
	for _, x := range p.probes {
		all = append(all, x.Name)
	}
	if len(asked) == 0 {
		return all, nil
	}
	var wrong fault.Fields
	for i, name := range asked {
		if !slices.Contains(all, name) {
			wrong.Add(fmt.Sprintf("probes.%d", i), name, "one of "+strings.Join(all, ", "), "")
		}
	}
	return slices.DeleteFunc(all, func(name string) bool { return !slices.Contains(asked, name) }), wrong
}

// Benchmark returns a benchmark with what its probes gave so far.
func (p *Planner) Benchmark(ctx context.Context, id string) (Benchmark, error) {
	if p.store == nil || !validIDOf(benchmarkPrefix, id) {
		return Benchmark{}, fault.New(fault.NotFound, "no benchmark %q is kept here", id)
	}
	b, err := p.store.LoadBenchmark(ctx, id)
	if err != nil {
		return b, err
	}
	b.Progress.Total, b.Progress.Done = len(b.Probes), len(b.Results)
	switch b.State {
	case Done, Failed, Cancelled:
		b.Progress.SecondsLeft = 0
	case Queued:
		b.Progress.SecondsLeft = int(p.usual(missing(b)).Seconds())
	}
	return b, nil
}

// missing is the probes of a benchmark that have no result yet.
func missing(b Benchmark) []string {
	return slices.DeleteFunc(slices.Clone(b.Probes), func(name string) bool {
		return slices.ContainsFunc(b.Results, func(r ProbeResult) bool { return r.Probe == name })
	})
}

// usual is what probes usually take together.
func (p *Planner) usual(names []string) time.Duration {
	var sum time.Duration
	for _, x := range p.probes {
		if slices.Contains(names, x.Name) {
			sum += x.Seconds
		}
	}
	return sum
}

// Benchmarks returns a page of benchmarks without their results, newest first.
func (p *Planner) Benchmarks(ctx context.Context, limit int, cursor string) (wire.Page[Benchmark], error) {
	var after *Position
	if cursor != "" {
		at, err := positionOf(cursor)
		if err != nil {
			return wire.Page[Benchmark]{}, fault.Fields{{Path: "cursor", Got: cursor, Want: "next_cursor of the page before"}}
		}
		after = &at
	}
	if p.store == nil {
		return wire.NewPage[Benchmark](nil, ""), nil
	}
	if limit == 0 {
		limit = defaultPage
	}
	all, err := p.store.ListBenchmarks(ctx, limit+1, after)
	if err != nil {
		return wire.Page[Benchmark]{}, err
	}
	next := ""
	if len(all) > limit {
		all = all[:limit]
		next = cursorOf(Position{all[limit-1].CreatedAt, all[limit-1].ID})
	}
	return wire.NewPage(all, next), nil
}

// CancelBenchmark ends a benchmark: what waits at once, what runs as soon as
// its worker has ended the probe it is at. What has ended stays as it is.
func (p *Planner) CancelBenchmark(ctx context.Context, id string) (Benchmark, error) {
	if _, err := p.Benchmark(ctx, id); err != nil {
		return Benchmark{}, err
	}
	if err := p.store.CancelBenchmark(ctx, id); err != nil {
		return Benchmark{}, err
	}
	return p.Benchmark(ctx, id)
}

// RetryBenchmark queues a benchmark that has ended once more. Results of probes
// that were done are kept; the others run again.
func (p *Planner) RetryBenchmark(ctx context.Context, id string) (Benchmark, error) {
	b, err := p.Benchmark(ctx, id)
	switch {
	case err != nil:
		return b, err
	case p.queue == nil:
		return b, errNoBenchmarks
	case !b.State.Ended():
		return b, fault.New(fault.Conflict, "benchmark %s is %s: only one that has ended can be tried again", id, b.State)
	}
	if err := p.store.RequeueBenchmark(ctx, id, b.Beat, true); err != nil {
		return b, err
	}
	if err := p.queue.Enqueue(ctx, b.Device, b.ID, b.Attempt+1); err != nil {
		return b, err
	}
	return p.Benchmark(ctx, id)
}
