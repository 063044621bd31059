package planner_test

import (
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/units"
)

func maxParallel() int { return runtime.GOMAXPROCS(0) }

const gib = units.GiB

func TestTarget(t *testing.T) {
	for _, test := range []struct {
		name    string
		target  spec.Target
		key     string
		low     units.Bytes // bounds of usable, for tables may be corrected
		high    units.Bytes
		warning string
		check   func(*testing.T, call)
	}{
		{name: "none", key: "A100-SXM4-80GB", low: 79 * gib, high: 80 * gib},
		{name: "key", target: spec.Target{GPU: "H100-SXM5-80GB"}, key: "H100-SXM5-80GB", low: 79 * gib, high: 80 * gib, check: func(t *testing.T, c call) {
			require.Equal(t, "Hopper", c.device.Architecture)
			require.Equal(t, spec.Version{9, 0}, c.device.ComputeCapability)
			require.Equal(t, "nvidia", c.device.Vendor)
			require.InDelta(t, 0.01, c.coefficients.EngineError, 1e-12)
		}},
		{name: "alias", target: spec.Target{GPU: "nvidia h100 80gb hbm3"}, key: "H100-SXM5-80GB", low: 79 * gib, high: 80 * gib},
		{name: "others and headroom", target: spec.Target{GPU: "T4", OtherProcessesGiB: 2 * gib, HeadroomGiB: gib}, key: "T4", low: 11 * gib, high: 12 * gib, warning: "no_bf16"},
		{name: "MIG", target: spec.Target{GPU: "A100-SXM4-80GB", MIGProfile: "1g.10gb"}, key: "A100-SXM4-80GB", low: 9 * gib, high: 10 * gib, check: func(t *testing.T, c call) {
			require.Contains(t, c.device.Name, "MIG 1g.10gb")
		}},
		{name: "a known card with its size", target: spec.Target{GPU: "T4", MemoryGiB: 14 * gib}, key: "T4", low: 14 * gib, high: 14 * gib, warning: "no_bf16"},
		{name: "AMD", target: spec.Target{GPU: "MI300X"}, key: "MI300X", low: 170 * gib, high: 192 * gib, warning: "unmeasured_card", check: func(t *testing.T, c call) {
			require.Equal(t, "amd", c.device.Vendor)
			require.InDelta(t, 0.10, c.coefficients.EngineError, 1e-12)
			require.Zero(t, c.device.ComputeCapability)
		}},
		{name: "a size", target: spec.Target{MemoryGiB: 16 * gib}, low: 16 * gib, high: 16 * gib, warning: "unknown_card", check: func(t *testing.T, c call) {
			require.Equal(t, "other", c.device.Vendor)
			require.InDelta(t, 0.10, c.coefficients.EngineError, 1e-12)
			require.Greater(t, c.coefficients.Context.SD, 150*units.MiB, "as wide as all cards together")
		}},
		{name: "a size and an unknown name", target: spec.Target{GPU: "Data Center GPU Max 1550", MemoryGiB: 128 * gib}, low: 128 * gib, high: 128 * gib, warning: "unknown_card", check: func(t *testing.T, c call) {
			require.Equal(t, "Data Center GPU Max 1550", c.device.Name)
		}},
		{name: "a size and a capability", target: spec.Target{MemoryGiB: 40 * gib, ComputeCapability: "8.0"}, low: 40 * gib, high: 40 * gib, warning: "unknown_card", check: func(t *testing.T, c call) {
			require.Equal(t, spec.Version{8, 0}, c.device.ComputeCapability)
			require.InDelta(t, 0.01, c.coefficients.EngineError, 1e-12, "the kernels are known")
		}},
		{name: "shared in time", target: spec.Target{GPU: "T4", Sharing: "time-sliced"}, key: "T4", low: 14 * gib, high: 15 * gib, warning: "shared_card"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, e := newPlanner(t, planner.Config{})
			job := gpt2()
			job.Target = test.target
			est, err := p.Estimate(t.Context(), job)
			require.NoError(t, err)
			c := e.last()
			require.Equal(t, test.key, c.device.Key)
			require.NotEmpty(t, est.Target.GPU, "lists show a card by its key or its name")
			require.GreaterOrEqual(t, c.device.Usable(), test.low)
			require.LessOrEqual(t, c.device.Usable(), test.high)
			if test.warning != "" {
				require.Contains(t, warned(est), test.warning)
			} else {
				require.Equal(t, []string{"engine"}, warned(est))
			}
			if test.check != nil {
				test.check(t, c)
			}
		})
	}
}

func TestTargetRefused(t *testing.T) {
	for _, test := range []struct {
		name    string
		target  spec.Target
		path    string
		nearest string
	}{
		{"unknown card", spec.Target{GPU: "A100-SXM4-81GB"}, "target.gpu", "A100-SXM4-80GB"},
		{"unknown profile", spec.Target{GPU: "A100-SXM4-80GB", MIGProfile: "1g.11gb"}, "target.mig_profile", "1g.10gb"},
		{"no profiles", spec.Target{GPU: "T4", MIGProfile: "1g.10gb"}, "target.mig_profile", ""},
		{"profile of an unknown card", spec.Target{MemoryGiB: gib, MIGProfile: "1g.10gb"}, "target.mig_profile", ""},
		{"attached device", spec.Target{Device: "GPU-0"}, "target.device", ""},
		{"nothing left", spec.Target{GPU: "T4", HeadroomGiB: 20 * gib}, "target.headroom_gib", "0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, _ := newPlanner(t, planner.Config{})
			job := gpt2()
			job.Target = test.target
			_, err := p.Estimate(t.Context(), job)
			fields := fault.FieldsOf(err)
			require.Len(t, fields, 1, "%v", err)
			require.Equal(t, test.path, fields[0].Path)
			require.Equal(t, test.nearest, fields[0].Nearest)
		})
	}
}

func TestRanks(t *testing.T) {
	for _, test := range []struct {
		name     string
		parallel spec.Parallelism
		count    int
		want     spec.Parallelism
		wantN    int
		refused  bool
	}{
		{name: "neither", wantN: 1},
		{name: "only sizes", parallel: spec.Parallelism{Data: 4, Tensor: 2}, want: spec.Parallelism{Data: 4, Tensor: 2}, wantN: 8},
		{name: "only a count", count: 8, want: spec.Parallelism{Data: 8, Sharding: "ddp"}, wantN: 8},
		{name: "count of one", count: 1, want: spec.Parallelism{Data: 1}, wantN: 1},
		{name: "the rest is data", parallel: spec.Parallelism{Tensor: 4, Sharding: "fsdp"}, count: 8, want: spec.Parallelism{Data: 2, Tensor: 4, Sharding: "fsdp"}, wantN: 8},
		{name: "equal", parallel: spec.Parallelism{Data: 2, Pipeline: 2, Context: 2}, count: 8, want: spec.Parallelism{Data: 2, Pipeline: 2, Context: 2}, wantN: 8},
		{name: "unequal", parallel: spec.Parallelism{Data: 2, Tensor: 2}, count: 8, refused: true},
		{name: "no multiple", parallel: spec.Parallelism{Tensor: 3}, count: 8, refused: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, e := newPlanner(t, planner.Config{})
			job := gpt2()
			job.Parallelism, job.Target.Count = test.parallel, test.count
			_, err := p.Estimate(t.Context(), job)
			if test.refused {
				fields := fault.FieldsOf(err)
				require.NotEmpty(t, fields)
				require.Equal(t, "target.count", fields[0].Path, "before what the engine has no rules for")
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, e.last().job.Parallelism)
			require.Equal(t, test.wantN, e.last().job.Target.Count)
		})
	}
}

func TestCoefficients(t *testing.T) {
	for _, test := range []struct {
		name     string
		parallel spec.Parallelism
		count    int
		nccl     units.Bytes
	}{
		{"one rank", spec.Parallelism{}, 1, 0},
		{"a pair", spec.Parallelism{Data: 2}, 2, 544 * units.MB},
		{"a group", spec.Parallelism{Data: 8}, 8, 688 * units.MB},
		{"the rest is data", spec.Parallelism{}, 8, 688 * units.MB},
		{"two dimensions", spec.Parallelism{Data: 4, Tensor: 2}, 8, (688 + 544) * units.MB},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, e := newPlanner(t, planner.Config{})
			job := gpt2()
			job.Parallelism, job.Target.Count = test.parallel, test.count
			_, err := p.Estimate(t.Context(), job)
			require.NoError(t, err)
			c := e.last().coefficients
			require.Equal(t, "prior", c.Calibration)
			require.Equal(t, "nccl", c.NCCL.Name)
			require.Equal(t, test.nccl, c.NCCL.Mean)
			require.Equal(t, test.nccl/2, c.NCCL.SD)
			require.NotEmpty(t, c.NCCL.Source)
			require.Equal(t, "context", c.Context.Name)
			require.Equal(t, 625*units.MiB, c.Context.Mean, "Ampere: 425 MiB and 200 for kernels")
			require.InDelta(t, 96, float64(c.Context.SD)/float64(units.MiB), 0.1, "75 and 60, in quadrature")
			require.NotEmpty(t, c.Context.Source)
		})
	}
}

func TestVersions(t *testing.T) {
	for _, test := range []struct {
		name    string
		runtime spec.Runtime
		path    string // of the assumption; empty for none
		value   string
	}{
		{"none", spec.Runtime{}, "", ""},
		{"known", spec.Runtime{FrameworkVersion: "2.6.0+cu124", LibraryVersions: map[string]string{"transformers": "5.24"}}, "", ""},
		{"between", spec.Runtime{FrameworkVersion: "2.7.1"}, "runtime.framework_version", "2.6.0"},
		{"newer than any", spec.Runtime{LibraryVersions: map[string]string{"transformers": "6.0.0"}}, "runtime.library_versions.transformers", "5.24.0"},
		{"of the trainer", spec.Runtime{Trainer: "trl", TrainerVersion: "1.0.0"}, "runtime.trainer_version", "1.16.0"},
		{"of a library nobody knows", spec.Runtime{LibraryVersions: map[string]string{"mine": "3"}}, "", ""},
		{"of another framework", spec.Runtime{Framework: "jax", FrameworkVersion: "0.4"}, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, e := newPlanner(t, planner.Config{})
			job := gpt2()
			job.Runtime = test.runtime
			est, err := p.Estimate(t.Context(), job)
			require.NoError(t, err)
			require.Equal(t, test.runtime, e.last().job.Runtime, "the engine sees what the user wrote")
			if test.path == "" {
				for _, a := range est.Assumptions {
					require.NotContains(t, a.Path, "version")
				}
				return
			}
			a := assumption(t, est, test.path)
			require.Equal(t, test.value, a.Value)
			require.False(t, a.Decides)
		})
	}
}

func TestCardsWithoutBF16(t *testing.T) {
	for _, test := range []struct {
		name      string
		target    spec.Target
		precision spec.Precision
		warns     bool
	}{
		{"by default", spec.Target{GPU: "T4"}, "", true},
		{"as asked", spec.Target{GPU: "V100-SXM2-32GB"}, spec.PrecisionBF16, true},
		{"fp16", spec.Target{GPU: "T4"}, spec.PrecisionFP16Mixed, false},
		{"Ampere", spec.Target{GPU: "A10G"}, "", false},
		{"AMD", spec.Target{GPU: "MI300X"}, "", false},
		{"nothing known of it", spec.Target{MemoryGiB: 16 * gib}, "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, _ := newPlanner(t, planner.Config{})
			job := gpt2()
			job.Target, job.Training.Precision = test.target, test.precision
			est, err := p.Estimate(t.Context(), job)
			require.NoError(t, err)
			require.Equal(t, test.warns, slices.Contains(warned(est), "no_bf16"))
		})
	}
}
