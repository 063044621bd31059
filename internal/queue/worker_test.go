package queue

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/store"
	"memplan/internal/store/pgtest"
	"memplan/internal/units"
)

// Variables that make this test's program a worker.
const (
	workerDatabase = "QUEUE_TEST_DATABASE"
	workerName     = "QUEUE_TEST_WORKER"
	workerStalls   = "QUEUE_TEST_STALLS" // at this probe, until it is told to stop
	workerLock     = "QUEUE_TEST_LOCK"   // a file that exists while a probe runs
)

func TestMain(m *testing.M) {
	if url := os.Getenv(workerDatabase); url != "" {
		if err := workAlone(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// quickly is a pace for tests.
var quickly = Pace{
	Pace: planner.Pace{Beat: 20 * time.Millisecond, Patience: 400 * time.Millisecond},
	Poll: 20 * time.Millisecond, Tell: 50 * time.Millisecond, Busy: 20 * time.Millisecond,
}

const card = "GPU-11111111-0000-0000-0000-000000000000"

// oneCard is a host with one card.
type oneCard struct{}

func (oneCard) List(context.Context) ([]planner.Device, error) {
	return []planner.Device{{ID: card, Name: "NVIDIA A100-SXM4-80GB", Host: "h", Memory: planner.DeviceMemory{Total: 80 * units.GiB, Free: 80 * units.GiB}}}, nil
}

// names is a prober that gives its worker's name, and makes sure that no other
// runs at the same time.
type names struct{ worker, stalls, lock string }

func (n names) Run(ctx context.Context, _ planner.Device, probe string, _ planner.ProbeOptions) (planner.ProbeResult, error) {
	r := planner.ProbeResult{Probe: probe, State: planner.ProbeDone, Figures: []planner.Figure{{Name: n.worker, Value: 1, Unit: "times"}}}
	fmt.Println("started", probe) // read by the test
	if probe == n.stalls {
		<-ctx.Done()
		return r, nil
	}
	if n.lock != "" {
		f, err := os.OpenFile(n.lock, os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return r, fault.New(fault.Conflict, "two at a time")
		}
		defer func() { _, _ = f.Close(), os.Remove(n.lock) }()
	}
	return r, nil
}

// probes are three, in this order.
var probes = []planner.Probe{{Name: "first", Seconds: time.Second}, {Name: "second", Seconds: time.Second}, {Name: "third", Seconds: time.Second}}

// openAll opens a planner with its store and queue.
func openAll(ctx context.Context, url string, prober planner.Prober) (*planner.Planner, *Queue, *store.Store, error) {
	kept, err := store.Open(ctx, url)
	if err != nil {
		return nil, nil, nil, err
	}
	tables, err := catalog.Open()
	if err != nil {
		return nil, nil, nil, err
	}
	q, err := Open(ctx, kept, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return nil, nil, nil, err
	}
	return planner.New(planner.Config{Catalog: tables, Store: kept, Queue: q, Devices: oneCard{}, Probes: probes, Prober: prober}), q, kept, nil
}

// workAlone is a worker's process.
func workAlone(url string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	name := os.Getenv(workerName)
	p, q, kept, err := openAll(ctx, url, names{name, os.Getenv(workerStalls), os.Getenv(workerLock)})
	if err != nil {
		return err
	}
	watched := make(chan error, 1)
	go func() { watched <- p.WatchBenchmarks(ctx, quickly.Pace) }()
	fmt.Println("ready")
	err = q.Work(ctx, p, name, quickly)
	if werr := <-watched; err == nil {
		err = werr
	}
	if cerr := kept.Close(); err == nil {
		err = cerr
	}
	return err
}

// process is a worker that runs.
type process struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// startWorker starts a worker's process, which ends with the test.
func startWorker(t *testing.T, url, name string, more ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(more, workerDatabase+"="+url, workerName+"="+name)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	})
	p := &process{cmd, bufio.NewScanner(out)}
	p.await(t, "ready")
	return p
}

// await reads what the worker prints until it is a line.
func (p *process) await(t *testing.T, line string) {
	t.Helper()
	for p.lines.Scan() {
		if p.lines.Text() == line {
			return
		}
	}
	t.Fatalf("the worker ended before it printed %q", line)
}

// eachEngine runs a test on both databases.
func eachEngine(t *testing.T, test func(t *testing.T, url string)) {
	t.Run("sqlite", func(t *testing.T) { test(t, filepath.Join(t.TempDir(), "memplan.db")) })
	t.Run("postgres", func(t *testing.T) { test(t, pgtest.Start(t).Database(t)) })
}

// asking is a process that serves pages: it takes no work.
func asking(t *testing.T, url string) *planner.Planner {
	t.Helper()
	p, _, kept, err := openAll(t.Context(), url, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, kept.Close()) })
	return p
}

func begin(t *testing.T, p *planner.Planner) planner.Benchmark {
	t.Helper()
	b, err := p.StartBenchmark(t.Context(), planner.BenchRequest{Device: card}, "")
	require.NoError(t, err)
	return b
}

// awaitState looks at a benchmark until it is in a state.
func awaitState(t *testing.T, p *planner.Planner, id string, want planner.BenchState) planner.Benchmark {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		b, err := p.Benchmark(t.Context(), id)
		require.NoError(t, err)
		if b.State == want {
			return b
		}
		require.False(t, b.State.Ended(), "it ended as %s: %s", b.State, b.Error)
		<-tick.C
	}
}

// by is who ran the probes of a benchmark, in their order.
func by(b planner.Benchmark) string {
	var all []string
	for _, r := range b.Results {
		all = append(all, r.Figures[0].Name)
	}
	return strings.Join(all, " ")
}

func TestAKilledWorkersBenchmarkGoesOn(t *testing.T) {
	eachEngine(t, func(t *testing.T, url string) {
		p := asking(t, url)
		one := startWorker(t, url, "one", workerStalls+"=second")
		b := begin(t, p)
		one.await(t, "started second")
		startWorker(t, url, "two")
		require.NoError(t, one.cmd.Process.Kill())
		b = awaitState(t, p, b.ID, planner.Done)
		require.Equal(t, "one two two", by(b), "what the first worker had finished is kept")
		require.Equal(t, 2, b.Attempt)
		require.Equal(t, planner.BenchProgress{Done: 3, Total: 3}, b.Progress)
	})
}

func TestAStoppedWorkerGivesItsBenchmarkBack(t *testing.T) {
	eachEngine(t, func(t *testing.T, url string) {
		p := asking(t, url)
		one := startWorker(t, url, "one", workerStalls+"=second")
		b := begin(t, p)
		one.await(t, "started second")
		require.NoError(t, one.cmd.Process.Signal(syscall.SIGTERM))
		for one.lines.Scan() { // until its output is closed
		}
		require.NoError(t, one.cmd.Wait())
		got, err := p.Benchmark(t.Context(), b.ID)
		require.NoError(t, err)
		require.Equal(t, planner.Queued, got.State, "at once, not when somebody misses it")
		startWorker(t, url, "two")
		require.Equal(t, "one two two", by(awaitState(t, p, b.ID, planner.Done)))
	})
}

func TestACardRunsOneBenchmarkAtATime(t *testing.T) {
	eachEngine(t, func(t *testing.T, url string) {
		p := asking(t, url)
		lock := workerLock + "=" + filepath.Join(t.TempDir(), "lock")
		startWorker(t, url, "one", lock)
		startWorker(t, url, "two", lock)
		var ids []string
		for range 6 {
			ids = append(ids, begin(t, p).ID)
		}
		for _, id := range ids {
			b := awaitState(t, p, id, planner.Done)
			require.Len(t, b.Results, 3)
			require.Equal(t, 1, b.Attempt)
		}
	})
}

func TestCancelAndRetry(t *testing.T) {
	eachEngine(t, func(t *testing.T, url string) {
		p := asking(t, url)
		waiting := begin(t, p)
		got, err := p.CancelBenchmark(t.Context(), waiting.ID)
		require.NoError(t, err)
		require.Equal(t, planner.Cancelled, got.State, "nobody has it yet")

		one := startWorker(t, url, "one", workerStalls+"=second")
		b := begin(t, p)
		one.await(t, "started second")
		_, err = p.RetryBenchmark(t.Context(), b.ID)
		require.Equal(t, fault.Conflict, fault.KindOf(err), "it still runs")
		got, err = p.CancelBenchmark(t.Context(), b.ID)
		require.NoError(t, err)
		require.True(t, got.Stopping || got.State == planner.Cancelled)
		got = awaitState(t, p, b.ID, planner.Cancelled)
		require.Equal(t, "one", by(got), "what was finished is kept")
		require.Zero(t, got.Progress.SecondsLeft)

		require.NoError(t, one.cmd.Process.Kill())
		startWorker(t, url, "two")
		_, err = p.RetryBenchmark(t.Context(), b.ID)
		require.NoError(t, err)
		require.Equal(t, "one two two", by(awaitState(t, p, b.ID, planner.Done)))
	})
}
