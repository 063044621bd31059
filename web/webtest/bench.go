package webtest

import (
	"context"
	"time"

	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// CardID is the id of the one attached card.
const CardID = "GPU-11111111-0000-0000-0000-000000000000"

// ListDevices lists one card, half full, with a process that has died.
func (p *Planner) ListDevices(context.Context) (planner.DeviceList, error) {
	if p.NoDriver != "" {
		return planner.DeviceList{Driver: p.NoDriver}, p.Err
	}
	used, busy := 40*units.GiB, 97
	return planner.DeviceList{Items: []planner.Device{{
		ID: CardID, GPU: "A100-SXM4-80GB", Name: "NVIDIA A100-SXM4-80GB", Driver: "580.95", CUDA: "13.0", Host: "node1", ECC: "on",
		Memory: planner.DeviceMemory{Total: 80 * units.GiB, Used: used, Free: 40 * units.GiB}, Utilisation: &busy,
		MIG: planner.MIG{Mode: "off"}, SeenAt: time.Now(), Processes: []planner.Process{{PID: 4711, Used: &used}},
		Advice: []planner.DeviceAdvice{{Code: "dead_process", Text: "A process that is not seen on this host holds memory.", Bytes: used}},
	}}}, p.Err
}

// BenchProbes are two.
func (p *Planner) BenchProbes() []planner.Probe {
	return []planner.Probe{{Name: "driver"}, {Name: "context_lazy"}}
}

// BenchmarkID is the id of the one benchmark.
const BenchmarkID = "bm_aaaaaaaaaaaaaaaa"

// Benchmark is one that runs, half done.
func (p *Planner) Benchmark(_ context.Context, id string) (planner.Benchmark, error) {
	if id != BenchmarkID {
		return planner.Benchmark{}, fault.New(fault.NotFound, "no benchmark %q is kept here", id)
	}
	b := planner.Benchmark{
		ID: id, State: planner.Running, Device: CardID, Name: "NVIDIA A100-SXM4-80GB", Probes: []string{"driver", "context_lazy"},
		Progress: planner.BenchProgress{Done: 1, Total: 2, SecondsLeft: 12}, CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Results: []planner.ProbeResult{{Probe: "driver", State: planner.ProbeDone, Figures: []planner.Figure{
			{Name: "bare context", Value: 512 << 20, Unit: "bytes"}, {Name: "matmul.bf16", Value: 250, Unit: "TFLOP/s"},
		}}},
	}
	if p.BenchState != "" {
		b.State = p.BenchState
	}
	return b, p.Err
}

// Benchmarks lists the one.
func (p *Planner) Benchmarks(ctx context.Context, _ int, _ string) (wire.Page[planner.Benchmark], error) {
	b, err := p.Benchmark(ctx, BenchmarkID)
	return wire.NewPage([]planner.Benchmark{b}, ""), err
}

// StartBenchmark gives the one.
func (p *Planner) StartBenchmark(ctx context.Context, r planner.BenchRequest, _ string) (planner.Benchmark, error) {
	if r.Device != CardID {
		return planner.Benchmark{}, fault.Fields{{Path: "device", Got: r.Device, Want: "the id of an attached card"}}
	}
	return p.Benchmark(ctx, BenchmarkID)
}

// CancelBenchmark gives the one.
func (p *Planner) CancelBenchmark(ctx context.Context, id string) (planner.Benchmark, error) {
	return p.Benchmark(ctx, id)
}

// RetryBenchmark gives the one.
func (p *Planner) RetryBenchmark(ctx context.Context, id string) (planner.Benchmark, error) {
	return p.Benchmark(ctx, id)
}
