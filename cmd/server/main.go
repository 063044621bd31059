package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"memplan/internal/api"
	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/gpu"
	"memplan/internal/hub"
	"memplan/internal/microbench"
	"memplan/internal/obs"
	"memplan/internal/planner"
	"memplan/internal/queue"
	"memplan/internal/store"
	"memplan/web"
)

// grace is how long requests may take to finish once the service must stop.
const grace = 15 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

// run is the service, from its configuration to its end: it returns when ctx
// is done and everything has stopped, or when something cannot start. The
// address goes to stdout, the log to stderr.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	version := obs.BuildVersion()
	c, err := configure(args, getenv, version, stdout, stderr)
	if errors.Is(err, errStopped) {
		return nil
	}
	if err != nil {
		return err
	}
	if c.Check {
		return checkReady(ctx, c.Addr)
	}
	log, err := obs.NewLogger(stderr, c.LogFormat)
	if err != nil {
		return err
	}
	kept, err := store.Open(ctx, c.database())
	if err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	return errors.Join(runWith(ctx, c, kept, log, version, stdout), kept.Close())
}

// runWith is run once the store is open: pages and REST, unless this is a
// worker only, and beside them the benchmarks of this host's cards. Whatever
// ends first ends the rest.
func runWith(ctx context.Context, c config, kept *store.Store, log *slog.Logger, version string, stdout io.Writer) error {
	waiting, err := queue.Open(ctx, kept, log)
	if err != nil {
		return fmt.Errorf("open the queue: %w", err)
	}
	metrics := obs.NewMetrics(version)
	plan, err := assemble(c, kept, waiting, metrics)
	if err != nil {
		return err
	}
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return waiting.Work(ctx, plan, queue.WorkerName(), queue.Pace{}) })
	parts.Go(func() error { return plan.WatchBenchmarks(ctx, planner.Pace{}) })
	if c.Worker {
		fmt.Fprintln(stdout, "memplan works on the benchmarks of this host's GPUs")
		return parts.Wait()
	}
	handler := api.New(api.Config{
		Planner: plan, Log: log, Metrics: metrics, Version: version, RequestsPerMinute: c.PerMinute,
		Pages:    web.New(web.Config{Planner: plan, Version: version, Log: log, Stopping: ctx.Done()}),
		Stopping: ctx.Done(),
	})
	parts.Go(func() error { return serve(ctx, c.Addr, handler, log, stdout) })
	return parts.Wait()
}

// assemble builds the planner of the service from its parts.
func assemble(c config, kept planner.Store, waiting planner.Queue, metrics *obs.Metrics) (*planner.Planner, error) {
	tables, err := catalog.Open()
	if err != nil {
		return nil, err
	}
	cards := gpu.New(gpu.Config{})
	use := planner.Config{
		Catalog: tables, Store: kept, Engine: measured(metrics, estimator.Run), Devices: cards, Queue: waiting,
		Probes: microbench.Probes(), Prober: microbench.New(microbench.Config{Python: c.Python, Devices: cards}),
	}
	if c.Hub != "" {
		if use.Hub, err = hub.New(c.Hub, c.HubToken, nil); err != nil {
			return nil, err
		}
	}
	return planner.New(use), nil
}

// measured counts and times every run of the engine.
func measured(m *obs.Metrics, engine planner.Engine) planner.Engine {
	return func(job spec.Job, d spec.Device, k spec.Coefficients) (*estimator.Estimate, error) {
		begin := time.Now()
		est, err := engine(job, d, k)
		if err != nil {
			m.Estimated("error", time.Since(begin), 0)
			return nil, err
		}
		m.Estimated(string(est.Target.Verdict), time.Since(begin), int64(est.Peak.Required))
		return est, nil
	}
}

// serve answers requests until ctx is done, and then lets those in flight
// finish.
func serve(ctx context.Context, addr string, handler http.Handler, log *slog.Logger, stdout io.Writer) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	fmt.Fprintf(stdout, "memplan is at %s\n", address(listener.Addr()))
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	log.Info("stopping", "grace", grace)
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	return srv.Shutdown(finish)
}

// address is where a browser finds what listens on a: an address that stands
// for all interfaces is reached as localhost.
func address(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port) + "/"
}
