package queue

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/riverqueue/river"

	"memplan/internal/fault"
	"memplan/internal/planner"
)

// Planner is what a worker asks of the use cases; *planner.Planner is one.
type Planner interface {
	TellDevices(ctx context.Context, worker string) ([]planner.Device, error)
	RunBenchmark(ctx context.Context, id, worker string, pace planner.Pace) error
}

// Pace is how fast a worker is. The zero value is right outside tests.
type Pace struct {
	planner.Pace
	Poll time.Duration // between two looks into a queue; 0: 1 s
	Tell time.Duration // between two accounts of the host's cards; 0: 5 s
	Busy time.Duration // until a card that runs another benchmark is asked again; 0: 10 s
}

// WorkerName is a name for the worker of this process, which no other has.
func WorkerName() string {
	host, _ := os.Hostname() // a host without a name has workers too
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:6])
}

// stopGrace is how long a worker that must stop waits for its probe to end.
const stopGrace = 15 * time.Second

// Work takes benchmarks for the cards of this host, as a worker of a name, and
// tells the service about them, until ctx is done. Cards that appear later are
// taken up; a host without any is no failure: it waits for one.
func (q *Queue) Work(ctx context.Context, p Planner, worker string, pace Pace) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, &benchmarkWorker{planner: p, name: worker, pace: pace, log: q.log})
	listen := river.QueueConfig{MaxWorkers: 1, FetchPollInterval: pace.Poll, FetchCooldown: min(pace.Poll, 100*time.Millisecond)}
	client, err := river.NewClient(q.driver, &river.Config{
		Workers: workers, Logger: quiet(q.log), ID: worker,
		// River listens to one queue at least; nothing is put into this one.
		Queues:     map[string]river.QueueConfig{"unused": {MaxWorkers: 1}},
		JobTimeout: -1, // the planner limits what a benchmark takes
	})
	if err != nil {
		return fault.Wrap(fault.Internal, "queue: worker", err)
	}
	// The cards' probes are to end when ctx does, and River's own writes after.
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return fault.Wrap(fault.Unavailable, "queue: worker", err)
	}
	err = q.listen(ctx, p, worker, pace, func(device string) error { return client.Queues().Add(nameOf(device), listen) })
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	return errors.Join(err, client.StopAndCancel(stopping))
}

// listen tells of the host's cards again and again, and adds a queue for each
// that is new.
func (q *Queue) listen(ctx context.Context, p Planner, worker string, pace Pace, add func(device string) error) error {
	known := map[string]bool{}
	tick := time.NewTicker(cmp.Or(pace.Tell, 5*time.Second))
	defer tick.Stop()
	for {
		cards, err := p.TellDevices(ctx, worker)
		if err != nil && ctx.Err() == nil && fault.KindOf(err) != fault.Unavailable {
			q.log.LogAttrs(ctx, slog.LevelError, "the cards of this host cannot be told of", slog.String("error", err.Error()))
		}
		for _, id := range idsOf(cards) {
			if known[id] {
				continue
			}
			if err := add(id); err != nil {
				return fault.Wrap(fault.Internal, "queue: listen", err)
			}
			known[id] = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// idsOf is the ids that benchmarks may name: of cards, and of their slices.
func idsOf(cards []planner.Device) []string {
	var ids []string
	for _, d := range cards {
		if d.Unsupported != "" {
			continue
		}
		ids = append(ids, d.ID)
		for _, s := range d.MIG.Slices {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// benchmarkWorker does the River jobs of a worker.
type benchmarkWorker struct {
	river.WorkerDefaults[benchmarkArgs]
	planner Planner
	name    string
	pace    Pace
	log     *slog.Logger
}

// Work implements river.Worker.
func (w *benchmarkWorker) Work(ctx context.Context, job *river.Job[benchmarkArgs]) error {
	err := w.planner.RunBenchmark(ctx, job.Args.Benchmark, w.name, w.pace.Pace)
	if errors.Is(err, planner.ErrCardTaken) {
		return river.JobSnooze(cmp.Or(w.pace.Busy, 10*time.Second))
	}
	if err != nil {
		w.log.LogAttrs(ctx, slog.LevelError, "benchmark failed", slog.String("benchmark", job.Args.Benchmark), slog.String("error", err.Error()))
	}
	return err
}
