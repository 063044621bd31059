package planner

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"memplan/internal/fault"
	"memplan/internal/wire"
)

// Pace is how workers show that they live, and how long the others wait.
type Pace struct {
	Beat     time.Duration // between two signs of life; 0: 5 s
	Patience time.Duration // without one, a worker is gone; 0: 30 s
}

func (p Pace) beat() time.Duration {
	if p.Beat > 0 {
		return p.Beat
	}
	return 5 * time.Second
}

func (p Pace) patience() time.Duration {
	if p.Patience > 0 {
		return p.Patience
	}
	return 30 * time.Second
}

// probeLimit is the most time one probe gets, and releaseGrace what a stopping
// worker takes to give its benchmark back.
const (
	probeLimit   = 3 * time.Minute
	releaseGrace = 5 * time.Second
)

// maxAttempts is how often a benchmark whose worker vanished is tried: one that
// takes its host down must not do so for ever.
const maxAttempts = 5

// ErrCardTaken says that the card runs another benchmark: try again later.
var ErrCardTaken = errors.New("the card runs another benchmark")

// errCancelled and errLost end the probes of a benchmark early.
var (
	errCancelled = errors.New("cancelled")
	errLost      = errors.New("another worker has the benchmark")
)

// RunBenchmark runs what is missing of a queued benchmark on a card of this
// host, as a worker. It keeps each result as it comes. A benchmark that is not
// queued any more is no error; where ctx ends first it is queued again.
func (p *Planner) RunBenchmark(ctx context.Context, id, worker string, pace Pace) error {
	err := p.store.ClaimBenchmark(ctx, id, worker)
	if fault.KindOf(err) == fault.Conflict {
		b, lerr := p.store.LoadBenchmark(ctx, id)
		if lerr == nil && b.State == Queued {
			return ErrCardTaken
		}
		return lerr
	}
	if fault.KindOf(err) == fault.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	b, err := p.store.LoadBenchmark(ctx, id)
	if err != nil {
		return err
	}
	err = p.probeWhileAlive(ctx, b, worker, pace)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseGrace)
	defer cancel()
	switch {
	case errors.Is(err, errLost):
		return nil
	case errors.Is(err, errCancelled):
		return p.store.FinishBenchmark(last, id, worker, Cancelled, "")
	case ctx.Err() != nil:
		return p.release(last, id)
	case fault.KindOf(err) == fault.Internal && err != nil:
		return errors.Join(err, p.store.FinishBenchmark(last, id, worker, Failed, "the worker failed; its log says why"))
	case err != nil:
		return p.store.FinishBenchmark(last, id, worker, Failed, userText(err))
	}
	return p.store.FinishBenchmark(last, id, worker, Done, "")
}

// probeWhileAlive runs the missing probes beside the beat that shows the others
// that this worker lives.
func (p *Planner) probeWhileAlive(ctx context.Context, b Benchmark, worker string, pace Pace) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var left atomic.Int64
	ended := make(chan struct{})
	defer func() { stop(nil); <-ended }()
	go func() {
		defer close(ended)
		tick := time.NewTicker(pace.beat())
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			cancelled, err := p.store.BeatBenchmark(ctx, b.ID, worker, time.Duration(left.Load()))
			switch {
			case fault.KindOf(err) == fault.Conflict:
				stop(errLost)
			case cancelled:
				stop(errCancelled)
			}
		}
	}()
	err := p.probeAll(ctx, b, worker, &left)
	if cause := context.Cause(ctx); errors.Is(cause, errLost) || errors.Is(cause, errCancelled) {
		return cause
	}
	return err
}

// probeAll runs the missing probes in order. A benchmark that was given less
// time than they take ends the rest as timed out.
func (p *Planner) probeAll(ctx context.Context, b Benchmark, worker string, left *atomic.Int64) error {
	here, err := p.attached(ctx)
	if err != nil {
		return err
	}
	device, err := findDevice(here, b.Device)
	if err != nil {
		return fault.New(fault.Unavailable, "the card is no longer attached to the worker's host")
	}
	end := p.now().Add(time.Duration(b.MaxSeconds) * time.Second)
	todo := missing(b)
	for i, name := range todo {
		left.Store(int64(p.usual(todo[i:])))
		if _, err := p.store.BeatBenchmark(ctx, b.ID, worker, p.usual(todo[i:])); err != nil {
			return err
		}
		rest := end.Sub(p.now())
		r := ProbeResult{Probe: name, State: ProbeTimedOut, Error: fmt.Sprintf("the benchmark's %d seconds were over", b.MaxSeconds)}
		if rest > 0 {
			r, err = p.prober.Run(ctx, device, name, ProbeOptions{Force: b.Force, Limit: min(rest, probeLimit)})
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if err := p.keepProbe(ctx, b.ID, worker, r); err != nil {
			return err
		}
	}
	return nil
}

// keepProbe keeps the result of a probe, after its measured jobs, which go among
// the runs that calibrations are fitted to. A worker that died between the two
// has kept the runs of its own attempt: those stand.
func (p *Planner) keepProbe(ctx context.Context, id, worker string, r ProbeResult) error {
	if err := p.keepProbeRuns(ctx, id, r); err != nil && fault.KindOf(err) != fault.Conflict {
		return err
	}
	return p.store.SaveProbe(ctx, id, worker, r)
}

func (p *Planner) keepProbeRuns(ctx context.Context, id string, r ProbeResult) error {
	if len(r.Runs) == 0 {
		return nil
	}
	runs := make([]wire.Run, len(r.Runs))
	for i, text := range r.Runs {
		var err error
		if runs[i], err = wire.DecodeRun(text); err != nil {
			return fault.Wrap(fault.Internal, "planner: a run of probe "+r.Probe, err)
		}
	}
	_, err := p.ReportRuns(ctx, runs, "benchmark "+id+" "+r.Probe)
	return err
}

// release queues a benchmark again that its worker has to leave.
func (p *Planner) release(ctx context.Context, id string) error {
	b, err := p.store.LoadBenchmark(ctx, id)
	if err != nil || b.State != Running {
		return err
	}
	if err := p.store.RequeueBenchmark(ctx, id, b.Beat, false); err != nil {
		return err
	}
	return p.queue.Enqueue(ctx, b.Device, id, b.Attempt+1)
}

// pulse is a benchmark's beat, and since when it stands still.
type pulse struct {
	beat  int64
	since time.Time
}

// WatchBenchmarks gives the work of workers that vanished back to the queue,
// and wakes up for what waits unheard, until ctx is done. Every process of the
// service may do so.
func (p *Planner) WatchBenchmarks(ctx context.Context, pace Pace) error {
	if p.store == nil || p.queue == nil {
		return nil
	}
	seen := map[string]pulse{}
	tick := time.NewTicker(max(pace.patience()/4, time.Millisecond))
	defer tick.Stop()
	for {
		if err := p.sweep(ctx, seen, pace.patience()); err != nil && ctx.Err() == nil && fault.KindOf(err) != fault.Unavailable {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// watched is how many benchmarks that have not ended are watched.
const watched = 1000

// sweep compares every beat with the one seen before.
func (p *Planner) sweep(ctx context.Context, seen map[string]pulse, patience time.Duration) error {
	all, err := p.store.ListBenchmarks(ctx, watched, nil, Queued, Running)
	if err != nil {
		return err
	}
	alive := map[string]bool{}
	now := time.Now() // its monotonic reading: a wall clock may be set
	for _, b := range all {
		alive[b.ID] = true
		old, known := seen[b.ID]
		if !known || old.beat != b.Beat {
			seen[b.ID] = pulse{b.Beat, now}
			continue
		}
		if now.Sub(old.since) < patience {
			continue
		}
		seen[b.ID] = pulse{b.Beat, now}
		if err := p.revive(ctx, b); err != nil && fault.KindOf(err) != fault.Conflict {
			return err
		}
	}
	for id := range seen {
		if !alive[id] {
			delete(seen, id)
		}
	}
	return nil
}

// revive queues what a vanished worker left, or wakes up for what is queued.
func (p *Planner) revive(ctx context.Context, b Benchmark) error {
	if b.State == Queued {
		return p.queue.Enqueue(ctx, b.Device, b.ID, b.Attempt)
	}
	if b.Attempt >= maxAttempts {
		return p.store.FinishBenchmark(ctx, b.ID, b.Worker, Failed, fmt.Sprintf("its worker vanished %d times", b.Attempt))
	}
	if err := p.store.RequeueBenchmark(ctx, b.ID, b.Beat, false); err != nil {
		return err
	}
	return p.queue.Enqueue(ctx, b.Device, b.ID, b.Attempt+1)
}
